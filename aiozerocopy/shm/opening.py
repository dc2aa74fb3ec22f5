"""`listen_ring` and `connect_ring`."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from aiozerocopy._core.ring_end import ANY, CONSUMER, PRODUCER, RingEnd
from aiozerocopy._net.connecting import located
from aiozerocopy._net.listening import listen_unix
from aiozerocopy.opening import Opening
from aiozerocopy.shm import handshake
from aiozerocopy.shm.ring import Ring

if TYPE_CHECKING:
    from aiozerocopy._net.listening import Listener

Path = str | bytes | os.PathLike[str]

log: logging.Logger = logging.getLogger("aiozerocopy")

PACKETS = socket.SOCK_SEQPACKET
BACKLOG = 8
NOBODY_YET = 0.01  # seconds between attempts to connect
MOST = 1 << 39  # capacity


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

    This side receives, or sends if ``sends``.  It listens until a process has come with
    which the ring works; the file is removed then.  The capacity is rounded up to a
    power of two, 64 KiB at least: `Ring.capacity` tells.  All of that memory is taken
    at once.  A call that finds nothing to do looks again for ``spin`` microseconds
    before it sleeps, and holds its event loop up meanwhile.

    Raises:
        ValueError: a capacity that no ring can have.
        OSError: somebody listens there already; no memory; ``timeout`` (TimeoutError).
    """
    if not 0 < capacity <= MOST:
        raise ValueError(f"a ring has 1 to {MOST:,} bytes, not {capacity:,}")
    where = os.fspath(path)

    async def listen() -> Ring:
        await anyio.lowlevel.checkpoint()
        role = PRODUCER if sends else CONSUMER
        try:
            end = RingEnd(capacity, role)
        except OSError as error:
            raise located(
                error, f"no memory for a ring of {capacity:,} bytes"
            ) from error
        listener = listen_unix(where, 0o666 if any_user else 0o600, BACKLOG, PACKETS)
        try:
            with anyio.fail_after(timeout):
                while not await _is_taken(end, listener, any_user):
                    end = RingEnd(capacity, role)  # somebody may have the old one
                return Ring(end, spin)
        except OSError as error:
            raise located(error, f"cannot listen for a ring on {where!r}") from error
        finally:
            listener.close()

    return Opening(listen())


async def _is_taken(end: RingEnd, listener: Listener, any_user: bool) -> bool:
    """Offer the ring to who comes next."""
    await anyio.wait_readable(listener.sock)
    try:
        sock, _ = listener.sock.accept()
    except (BlockingIOError, ConnectionAbortedError):
        return False
    with sock:
        sock.setblocking(False)
        try:
            await handshake.offer(sock, end, any_user)
        except OSError as error:
            why = error.strerror or "it did not answer"  # (a TimeoutError has no words)
            log.warning(
                "a visitor of the ring at %s was turned away: %s", listener, why
            )
            return False
        return True


def connect_ring(
    path: Path,
    *,
    sends: bool | None = None,
    spin: int = 0,
    any_user: bool = False,
    timeout: float | None = None,
) -> Opening[Ring]:
    """Share the ring of who listens at a path; to be awaited, or used with
    ``async with``.

    This side does what the other does not: send, or receive; with ``sends`` it insists.
    With a ``timeout`` it waits that long for somebody to listen: two processes can be
    started in any order then.  ``spin`` is as for `listen_ring`.

    Raises:
        OSError: nobody listens there, or not for the likes of us; ``timeout``
            (TimeoutError).  The path is in the text.
    """
    where = os.fspath(path)
    role = ANY if sends is None else PRODUCER if sends else CONSUMER

    async def connect() -> Ring:
        await anyio.lowlevel.checkpoint()
        is_there = False
        try:
            with anyio.fail_after(timeout):
                with await _connected(where, timeout is not None) as sock:
                    is_there = True
                    return Ring(await handshake.ask(sock, role, any_user), spin)
        except OSError as error:
            raise located(_worded(error, is_there), f"no ring at {where!r}") from error

    return Opening(connect())


async def _connected(path: str | bytes, is_patient: bool) -> socket.socket:
    with contextlib.ExitStack() as undo:
        sock = undo.enter_context(socket.socket(socket.AF_UNIX, PACKETS))
        sock.setblocking(False)
        # No fd tells when it is worth another try.
        while not _connect(sock, path, is_patient):  # noqa: ASYNC110
            await anyio.sleep(NOBODY_YET)
        undo.pop_all()
        return sock


def _connect(sock: socket.socket, path: str | bytes, is_patient: bool) -> bool:
    """Not if the listener's backlog is full, or nobody listens yet."""
    try:
        sock.connect(path)
    except BlockingIOError:
        return False
    except (FileNotFoundError, ConnectionRefusedError):
        if is_patient:
            return False
        raise
    return True


def _worded(error: OSError, is_there: bool) -> OSError:
    if isinstance(error, TimeoutError):
        why = "it did not answer" if is_there else "nobody listens there"
        return TimeoutError(errno.ETIMEDOUT, f"timed out: {why}")
    if error.errno in (errno.ENOENT, errno.ECONNREFUSED):
        return type(error)(error.errno, f"nobody listens there ({error.strerror})")
    if error.errno == errno.EPROTOTYPE:
        return OSError(errno.EPROTOTYPE, "what listens there is no ring")
    return error
