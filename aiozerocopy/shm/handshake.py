"""How two processes come to share a ring: `listen_ring` and `connect_ring`.

The side that connects asks for a role, the side that listens offers its ring.  The
messages are those of csrc/azc_ring.h; here they wait for their sockets.  A peer that
cannot take part (of another user, of another version, or only testing whether somebody
listens) is turned away and does not disturb the listener.

The listener hears up to `VISITORS` at a time; another one takes the place of the oldest
that has not asked yet.  Visitors that have asked are offered the ring one after the
other, and each has `DECISION` seconds to take it.
"""

from __future__ import annotations

import collections
import errno
import logging
import os
import socket
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from aiozerocopy._core import ring_end
from aiozerocopy._core.borrows import and_end
from aiozerocopy._core.change import Change
from aiozerocopy._core.ring_end import ANY, CONSUMER, PRODUCER, RingEnd
from aiozerocopy._net.block import Block
from aiozerocopy._net.connecting import (
    AGAIN,
    check_counts,
    check_seconds,
    connect_once_possible,
    located,
)
from aiozerocopy._net.listening import EXHAUSTED, Listener, listen_unix
from aiozerocopy.opening import Opening
from aiozerocopy.shm.ring import Ring

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable

Path = str | bytes | os.PathLike[str]

log: logging.Logger = logging.getLogger("aiozerocopy")

RING_SOCKET = socket.AF_UNIX, socket.SOCK_SEQPACKET
MOMENT = 0.2  # seconds between the reset of a visitor and the end of its listener
BACKLOG = 8
MOST = 1 << 39  # capacity
PATIENCE = 10.0  # seconds for the other side's part
DECISION = 3.0  # seconds for an answer to an offer; other visitors wait meanwhile
VISITORS = 8
PAUSE = 0.1  # seconds without accepting, when there are no fds
_AGAIN = -errno.EAGAIN

_HUNG_UP = (ConnectionResetError, "the other side hung up")
_VERSION = "the other side has another version of the ring's layout"
_REFUSALS = {
    errno.EACCES: (PermissionError, "the other process is another user's"),
    errno.EPROTO: (ConnectionError, "the other side does not speak this protocol"),
    errno.EPERM: (ConnectionError, "the memory that was offered is not sealed"),
    errno.EPROTONOSUPPORT: (ConnectionError, _VERSION),
    errno.ECONNRESET: _HUNG_UP,
    errno.EPIPE: _HUNG_UP,
}
_SAME_ROLE = {
    PRODUCER: "both sides want to send: one of them has to receive",
    CONSUMER: "both sides want to receive: one of them has to send",
}


def listen_ring(
    path: Path,
    capacity: int,
    *,
    sends: bool = False,
    spin: int = 0,
    any_user: bool = False,
    timeout: float | None = None,
) -> Opening[Ring]:
    """Wait at a path for the other side, and share a ring with it; to be awaited, or
    used with ``async with``.

    This side receives, or sends if ``sends``.  It listens until a process has taken the
    ring, and then removes the file.  The capacity is rounded up to a power of two, 64
    KiB at least (see `Ring.capacity`); all of it is allocated at once.  A call that
    finds nothing to do looks again for ``spin`` microseconds before it sleeps, which
    holds its event loop up.  Only a process of the same user can take part, unless both
    sides say ``any_user``.

    Raises:
        ValueError: a capacity that no ring can have.
        OSError: another process listens there; no memory; ``timeout`` (TimeoutError).
    """
    if not isinstance(capacity, int):
        raise TypeError(f"capacity must be a number of bytes, not {capacity!r}")
    if not 0 < capacity <= MOST:
        raise ValueError(f"capacity must be from 1 to {MOST:,} bytes, not {capacity:,}")
    check_seconds(timeout=timeout)
    check_counts(0, spin=spin)
    where = os.fspath(path)

    async def listen() -> Ring:
        await anyio.lowlevel.checkpoint()
        role = PRODUCER if sends else CONSUMER
        try:
            end = RingEnd(capacity, role)
        except OSError as error:
            place = f"no memory for a ring of {capacity:,} bytes"
            raise located(error, place) from error
        mode = 0o666 if any_user else 0o600
        listener: Listener | None = None

        async def share() -> Ring:
            nonlocal end, listener
            listener = listen_unix(where, mode, BACKLOG, socket.SOCK_SEQPACKET)
            with anyio.fail_after(timeout):
                async with Visits(listener, role, any_user) as visits:
                    while not await _is_taken(end, await visits.next(), listener):
                        end = RingEnd(capacity, role)  # a visitor may have the old one
            return Ring(end, spin)  # (after the block, at whose end a cancel may come)

        def close() -> None:
            if listener is not None:
                listener.close()

        try:
            return await and_end(share, close)
        except BaseException as error:
            end.free()  # (at once, since the traceback may be kept)
            if isinstance(error, OSError) and listener is not None:
                why = f"cannot listen for a ring on {where!r}"
                raise located(error, why) from error
            raise

    return Opening(listen())


class Visits(Block):
    """The visitors that have asked for our ring, in the order in which they asked."""

    def __init__(self, listener: Listener, role: int, any_user: bool) -> None:
        self._listener = listener
        self._wanted = role, any_user
        # The visitors that have not asked, the oldest first, and those that have.
        self._visitors: dict[socket.socket, anyio.CancelScope] = {}
        self._asked: collections.deque[socket.socket] = collections.deque()
        self._arrival = Change()

    async def _begin(self, undo: contextlib.AsyncExitStack) -> None:
        undo.callback(self._hang_up)
        self._tasks = await self._tasks_until(undo)
        self._tasks.start_soon(self._accept)

    def _hang_up(self) -> None:
        for sock in (*self._asked, *self._visitors):
            sock.close()

    async def _accept(self) -> None:
        while True:
            await anyio.wait_readable(self._listener.sock)
            try:
                sock, _ = self._listener.sock.accept()
            except OSError as error:  # no connection is pending, or it was reset
                if error.errno in EXHAUSTED:
                    await anyio.sleep(PAUSE)
                continue
            sock.setblocking(False)
            if len(self._visitors) >= VISITORS:
                next(iter(self._visitors.values())).cancel()
                await anyio.lowlevel.checkpoint()
            self._visitors[sock] = anyio.CancelScope()
            self._tasks.start_soon(self._hear, sock)

    async def _hear(self, sock: socket.socket) -> None:
        try:
            with self._visitors[sock]:
                await _hear_ask(sock, *self._wanted)
                self._asked.append(sock)
                self._arrival.happen()
        except OSError as error:
            _turned_away(self._listener, error)
        finally:
            del self._visitors[sock]
            if sock not in self._asked:
                sock.close()

    async def next(self) -> socket.socket:
        while not self._asked:
            await self._arrival.next()
        return self._asked.popleft()


async def _is_taken(end: RingEnd, sock: socket.socket, listener: Listener) -> bool:
    """Offer the ring to a visitor; return whether it was taken."""
    try:
        with sock:
            await _offer(sock, end)
    except OSError as error:
        _turned_away(listener, error)
        return False
    return True


def _turned_away(listener: Listener, error: OSError) -> None:
    why = error.strerror or "it did not answer"  # (a TimeoutError has no text)
    log.warning("a visitor of the ring at %s was turned away: %s", listener, why)


def connect_ring(
    path: Path,
    *,
    sends: bool | None = None,
    spin: int = 0,
    any_user: bool = False,
    timeout: float | None = None,
) -> Opening[Ring]:
    """Share the ring of the process that listens at a path; to be awaited, or used
    with ``async with``.

    This side sends if the other receives, and the other way round; ``sends`` demands
    one of the two.  With a ``timeout`` it waits that long for somebody to listen: then
    two processes can be started in any order.  ``spin`` and ``any_user`` are as for
    `listen_ring`.

    Raises:
        OSError: nobody listens there, or another user does; ``timeout`` (TimeoutError).
            The path is in the text.
    """
    check_seconds(timeout=timeout)
    check_counts(0, spin=spin)
    where = os.fspath(path)
    role = ANY if sends is None else PRODUCER if sends else CONSUMER

    async def connect() -> Ring:
        await anyio.lowlevel.checkpoint()
        is_there, is_patient = False, timeout is not None
        try:
            with anyio.fail_after(timeout):
                while True:
                    found = _identity(where)
                    with socket.socket(*RING_SOCKET) as sock:
                        await connect_once_possible(sock, where, is_patient=is_patient)
                        is_there = True
                        try:
                            return Ring(await _ask(sock, role, any_user), spin)
                        except ConnectionResetError:
                            if not is_patient or await _still_listens(where, found):
                                raise
                    is_there = False
        except OSError as error:
            raise located(_worded(error, is_there), f"no ring at {where!r}") from error

    return Opening(connect())


async def _still_listens(where: str | bytes, found: object) -> bool:
    """Return False if the listener's file goes within `MOMENT`: then another process
    has the ring."""
    with anyio.move_on_after(MOMENT):
        while _identity(where) == found:  # noqa: ASYNC110 (no event reports it)
            await anyio.sleep(AGAIN)
        return False
    return True


def _identity(where: str | bytes) -> object:
    """Return the identity of a listener's file, to notice a new one; None: no file."""
    try:
        status = os.stat(where)
    except (OSError, ValueError):
        return None
    return status.st_ino, status.st_ctime_ns


def _worded(error: OSError, is_there: bool) -> OSError:
    if isinstance(error, TimeoutError):
        why = "it did not answer" if is_there else "nobody listens there"
        return TimeoutError(errno.ETIMEDOUT, f"timed out: {why}")
    if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
        return type(error)(error.errno, f"nobody listens there ({error.strerror})")
    if error.errno == errno.EPROTOTYPE:
        return OSError(errno.EPROTOTYPE, "the socket there is not that of a ring")
    return error


# ---- the messages of the two sides -------------------------------------------------


def _checked(result: int, role: int = ANY) -> int:
    """Return the result; if it is an error, raise an OSError with a text for it."""
    if result >= 0:
        return result
    code = -result
    if code == errno.EADDRINUSE and role in _SAME_ROLE:
        raise ConnectionError(code, _SAME_ROLE[role])
    kind, text = _REFUSALS.get(code, (OSError, os.strerror(code)))
    raise kind(code, text)


async def _when_ready(sock: socket.socket, step: Callable[[], int]) -> int:
    """Call the step until it does not return "again"."""
    while (result := step()) == _AGAIN:
        await anyio.wait_readable(sock)
    return result


async def _hear_ask(sock: socket.socket, role: int, any_user: bool) -> None:
    """Begin the listener's part; raise an OSError if it must refuse the request."""
    number = sock.fileno()

    def check(result: int) -> int:
        if result < 0:
            ring_end.refuse(number, result)
        return _checked(result, role)

    with anyio.fail_after(PATIENCE):
        if not any_user:
            check(ring_end.check_user(number))
        asked = await _when_ready(sock, lambda: ring_end.hear_ask(number))
        check(-errno.EADDRINUSE if asked == role else asked)


async def _offer(sock: socket.socket, end: RingEnd) -> None:
    """Finish the listener's part; raise an OSError if the ring was not taken.

    The other side may have the ring's memory even then.
    """
    number = sock.fileno()
    with anyio.fail_after(DECISION):
        _checked(end.offer(number))
        _checked(await _when_ready(sock, lambda: end.hear_answer(number)))


async def _ask(sock: socket.socket, role: int, any_user: bool) -> RingEnd:
    """Do the part of the side that connects; raise an OSError if it gets no ring."""
    number = sock.fileno()
    end = RingEnd()
    with anyio.fail_after(PATIENCE):
        if not any_user:
            _checked(ring_end.check_user(number))
        asked = ring_end.ask(number, role)
        if asked != -errno.EPIPE:  # (a listener that refused at once has said why)
            _checked(asked)
        _checked(await _when_ready(sock, lambda: end.hear_offer(number)), role)
    if role not in (ANY, end.role):
        _checked(-errno.EPROTO)
    return end
