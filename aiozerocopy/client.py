"""A client that connects again: frames from a server, through lost connections.

The states of a client, and what ends each
    apart     there is no stream: until `_retry_at`, then it connects
    unknown   no frame has come yet: until one comes.  If the calls have waited for
              `_patience` seconds, or the connection is lost, it asks what kind of
              server this is
    known     a frame has come, or the question was answered: the connection is lost
              when the calls have waited for ``idle_timeout`` seconds
    closed    for good
A call of `receive` may be cancelled in any state, and the next one goes on from there:
so the pause has a time of its end, the silence of a server is counted from call to call
(`_Silence`), and a question counts only once it is answered.  An attempt to connect, or
a question, that was cut off begins anew.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio
from anyio.abc import AsyncResource

from aiozerocopy._core.borrows import or_undo
from aiozerocopy._core.errors import StreamClosed
from aiozerocopy._core.lifetime import Ready
from aiozerocopy._net.admission import REFUSED, tokens_of
from aiozerocopy._net.admission import TokenRefused as TokenRefused
from aiozerocopy._net.admission import present_token as present_token
from aiozerocopy._net.connecting import (
    DEAD_AFTER,
    bracketed,
    check_hook,
    check_port,
    check_seconds,
    connect_tcp,
    connect_unix,
)
from aiozerocopy._net.foreign_streams import drop_stream
from aiozerocopy._net.greeting import find_obstacle
from aiozerocopy._net.tls import check_context, secure
from aiozerocopy.framing import (
    FRAME_TIMEOUT,
    MAX_BYTES,
    FrameError,
    FrameReceiver,
    FrameTooSlow,
    TruncatedFrame,
    WrongMagic,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from anyio.abc import ByteStream
    from typing_extensions import Self

    from aiozerocopy.framing import ReceivedFrame
    from aiozerocopy.pool import FramePool
    from aiozerocopy.streams import Stream

    Connect = Callable[[], Awaitable[ByteStream]]

# Events, and their details: "connected" (connections before), "lost" (the error),
# "waiting" (seconds), "gap" (missing frames), "silent" (seconds without a first frame).
ConnectionEvent: TypeAlias = Literal["connected", "lost", "waiting", "gap", "silent"]
Hook: TypeAlias = Callable[[ConnectionEvent, Any], object]

# Seconds before the next attempt to connect.  They grow each time, and a random part is
# left out, so that a thousand clients of a restarted server do not come at once.
FIRST_WAIT = 0.1
FACTOR = 2.0
LONGEST_WAIT = 10.0
JITTER = 0.5  # the largest part that is left out

SILENCE = 0.4  # seconds without a first frame until we ask what kind of server it is
LOOK = 0.01  # seconds that a call waits at least, for what came between two calls

# What is wrong, by the `Obstacle` that `greeting` found.  The last two are for clients
# with a token.
_REASONS: dict[str, str] = {
    "tls": "speaks TLS: give ssl_context=",
    "plain": "speaks no TLS: leave out ssl_context=",
    "web": "is for browsers: serve_tcp and Broadcast serve frames",
    "foreign": "is no server of frames",
    "token": "wants a token: give token=",
    "wrong token": "refused the token",
    "no token": "wants no token: leave out token=",
}

log: logging.Logger = logging.getLogger("aiozerocopy")

_LOST = (
    OSError,
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    TruncatedFrame,
    FrameTooSlow,
)


@dataclass
class FrameClientStats:
    """What a client has seen so far."""

    received: int = 0
    missing: int = 0  # frames, counted by the gaps in the sequence
    gaps: int = 0
    connections: int = 0
    failures: int = 0  # attempts to connect that did not succeed


def connect_frames(
    address: str | os.PathLike[str],
    port: int | None = None,
    *,
    token: str | bytes | None = None,
    ssl_context: ssl.SSLContext | None = None,
    hostname: str | None = None,
    timeout: float = 10.0,
    dead_after: float | None = DEAD_AFTER,
    **options: Any,
) -> FrameClient:
    """Return a `FrameClient` of a server; ``options`` are `FrameClient`'s.

    ``address`` is a host; without a ``port`` it is "HOST:PORT", or the path of a UNIX
    socket (a `Path`, or a string with a slash).  ``ssl_context`` asks for TLS; the
    server's certificate must be for ``hostname`` (by default the host).  ``timeout`` is
    for one attempt to connect, ``dead_after`` is as for `connect_tcp`.

    If no first frame comes, a second connection finds out what kind of server it is.
    An error that no further attempt can mend, such as a wrong token, is raised.

    Raises:
        ValueError, TypeError: not an address, a token, a time, or a client's context.
    """
    check_seconds(timeout=timeout, dead_after=dead_after)
    check_context(ssl_context, server_side=False)
    host, port = place_of(address, port)
    has_token = bool(tokens_of(token))
    place = host if port is None else f"{bracketed(host)}:{port}"

    async def connect() -> ByteStream:
        try:
            with anyio.fail_after(timeout):
                return await open_stream(
                    host, port, token, ssl_context, hostname, dead_after
                )
        except TimeoutError as error:
            if error.errno is not None:
                raise
            text = f"{place} has not answered within {timeout:g} seconds"
            raise TimeoutError(errno.ETIMEDOUT, text) from None

    async def ask(refusal: str) -> str | None:
        if refusal == REFUSED:
            return "wrong token"
        found, sends = await find_obstacle(
            lambda: _connect(host, port, dead_after), ssl_context, hostname or host
        )
        if has_token and found in ("token", None):
            if not refusal:
                return None
            wants_none = sends or "no token" in refusal
            return "no token" if wants_none else "wrong token"
        return found

    client = FrameClient(connect, **options)
    client._ask, client._place = ask, place
    return client


def place_of(
    address: str | os.PathLike[str], port: int | None
) -> tuple[str, int | None]:
    """Return host and port, or the path of a UNIX socket and None.

    Raises: ValueError: it is neither.
    """
    if not isinstance(address, str):
        return os.fspath(address), None
    if "://" in address:
        raise ValueError(f"{address!r} is not an address: leave out the ...://")
    if port is not None:
        check_port(port)
        return address, port
    host, number = parse_address(address)
    if number is not None:
        check_port(number)
    elif "/" not in host and not host.startswith("\0"):
        raise ValueError(
            f"{address!r} has no port: write HOST:PORT, or put ./ before the path of a "
            "UNIX socket"
        )
    return host, number


def parse_address(address: str) -> tuple[str, int | None]:
    """Return host and port of "HOST:PORT" or "[::1]:PORT"; else the text and None."""
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdecimal():
        return address, None
    return host.removeprefix("[").removesuffix("]"), int(port)


async def open_stream(
    host: str,
    port: int | None,
    token: str | bytes | None = None,
    ssl_context: ssl.SSLContext | None = None,
    hostname: str | None = None,
    dead_after: float | None = DEAD_AFTER,
) -> ByteStream:
    """Connect to a server of `serving`: TCP, then TLS, then the token.

    Without a port the host is the path of a UNIX socket.

    Raises:
        OSError: nobody answered, or TLS failed (ssl.SSLError).
        TokenRefused: the token is not the server's.
    """
    plain = await _connect(host, port, dead_after)
    stream: ByteStream = plain
    try:
        if ssl_context is not None:
            stream = await secure(plain, ssl_context, hostname=hostname or host)
        if token is not None:
            await present_token(stream, token)
    except BaseException:
        plain.abort()
        raise
    return stream


async def _connect(host: str, port: int | None, dead_after: float | None) -> Stream:
    if port is None:
        return await connect_unix(host)
    return await connect_tcp(host, port, dead_after=dead_after)


class _Silence:
    """Counts the seconds for which calls have waited for a server's next frame.

    The time between two calls does not count, as nobody looks then, nor does the wait
    for a slot of the client's own pool.
    """

    def __init__(self) -> None:
        self.seconds: float = 0.0
        self._scope = anyio.CancelScope()

    async def wait(
        self, receiver: FrameReceiver, limit: float | None, come: list[ReceivedFrame]
    ) -> bool:
        """Append the next frame; False if there is silence for ``limit`` seconds."""
        left = None if limit is None else max(limit - self.seconds, LOOK)
        began = time.monotonic()
        try:
            with anyio.move_on_after(left) as self._scope:
                # (one statement: no signal handler runs before `come` has it)
                come += (await receiver.receive(),)
        finally:
            self.seconds += time.monotonic() - began
        return bool(come)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Do not count the time in this block."""
        began = time.monotonic()
        left = self._scope.deadline - anyio.current_time()
        self._scope.deadline = math.inf
        try:
            yield
        finally:
            self.seconds -= time.monotonic() - began
        self._scope.deadline = anyio.current_time() + left


class FrameClient(Ready, AsyncResource):
    """Frames from a server, through lost connections: ``async for frame in client``.

    ``connect`` is an async function that returns a new stream.  Whenever the connection
    is lost, or cannot be made, the client calls it again after a pause, which grows
    from 0.1 to 10 seconds.  The frame that was cut off is lost, and so are frames that
    the server sends meanwhile: ``stats`` counts these gaps.  A sequence that begins
    anew is no gap: the server was restarted.

    ``on_event(event, detail)``, a plain function, is called for "connected", "lost",
    "waiting", "gap" and "silent".  Without it the first failure in a row is logged.

    A connection counts as lost if no frame comes for ``idle_timeout`` seconds, or if a
    frame takes too long (``frame_timeout``, see `FrameReceiver`).  Waiting for a slot
    of the ``pool`` does not count.

    Without ``reconnect`` a call makes one attempt, and the frames end with the stream;
    the next call connects anew.  With ``connect_within`` the last error is raised if
    for that many seconds no frame came, and no connection could be made, or kept as
    long as that.

    Use it with ``async with``, which closes the stream at the end.
    """

    def __init__(
        self,
        connect: Connect,
        *,
        pool: FramePool | None = None,
        max_bytes: int = MAX_BYTES,
        reconnect: bool = True,
        on_event: Hook | None = None,
        connect_within: float | None = None,
        idle_timeout: float | None = None,
        frame_timeout: float | None = FRAME_TIMEOUT,
    ) -> None:
        check_seconds(idle_timeout=idle_timeout, connect_within=connect_within)
        FrameReceiver._check(pool, max_bytes, frame_timeout)
        check_hook(on_event)
        self._within = connect_within
        self._idle_timeout = idle_timeout
        self._new_receiver = partial(
            FrameReceiver, pool=pool, max_bytes=max_bytes, frame_timeout=frame_timeout
        )
        self.stats: FrameClientStats = FrameClientStats()
        self._connect = connect
        self._reconnects = reconnect
        self._on_event = on_event
        self._stream: ByteStream | None = None
        self._receiver: FrameReceiver | None = None
        self._is_busy = False  # a task receives
        self._come: list[ReceivedFrame] = []  # a frame that no call has returned yet
        self._failed = 0  # attempts in a row
        self._failing_since: float | None = None
        self._retry_at = -math.inf
        self._connected_at = 0.0
        self._silence = _Silence()
        self._patience = SILENCE
        self._place = "the server"
        self._ask: Callable[[str], Awaitable[str | None]] | None = None
        self._is_known = False  # True: a frame has come, or the question was answered
        self._obstacle: str | None = None  # a key of _REASONS; `view` asks for it
        self._expected: int | None = None
        self._connecting = anyio.CancelScope()
        self._closed = False

    async def receive(self) -> ReceivedFrame:
        """Return the next frame; connect first, as often as it takes.

        One task at a time may receive.  A cancelled call loses no frame, and its pauses
        and limits go on in the next call.  An attempt to connect, or to find out why no
        frame comes, begins anew: let some calls wait for a few seconds.

        Raises:
            StreamClosed: the client was closed.
            BusyResourceError: another task is receiving.
            TokenRefused, ssl.SSLError, FrameError: the server does not fit this client;
                another attempt would not help.
            OSError, EndOfStream, ...: the connection failed or ended, and the client
                must not connect again, or ``connect_within`` is over.
        """
        if self._is_busy:
            raise anyio.BusyResourceError("reading from")
        return await or_undo(self._receive_alone, self._end_receive)

    async def _end_receive(self, _: BaseException) -> None:
        self._is_busy = False

    async def _receive_alone(self) -> ReceivedFrame:
        self._is_busy = True
        while True:
            if self._closed:
                raise StreamClosed("the client was closed")
            if self._come:
                break
            if self._receiver is not None:
                await self._receive(self._receiver)
                continue
            with anyio.CancelScope() as self._connecting:
                await self._reconnect()
        frame = self._come[0]
        self._failed, self._failing_since, self._is_known = 0, None, True
        self._silence.seconds = 0.0
        self._count(frame.sequence)
        # (One line without a call: a signal handler may raise at a new line or a call.)
        del self._come[0]; self._is_busy = False; return frame  # noqa: E702  # fmt: skip

    async def _receive(self, receiver: FrameReceiver) -> None:
        """Get the next frame, unless the connection is lost."""
        try:
            await self._next_frame(receiver)
        except (*_LOST, anyio.ClosedResourceError) as error:
            await self._drop_stream()
            if anyio.current_time() - self._connected_at >= (self._within or 0):
                self._failing_since = None
            if not self._closed:
                is_last = self._count_failure(error)
                await self._look_for_obstacle()
                if is_last:
                    raise
        except FrameError:
            await self._drop_stream()
            raise

    async def _next_frame(self, receiver: FrameReceiver) -> None:
        limit, patience = self._idle_timeout, self._patience
        if not self._is_known and (limit is None or patience < limit):
            if await self._silence.wait(receiver, patience, self._come):
                return
            self._patience *= FACTOR  # (for the next question, if this is cut off)
            await self._look_for_obstacle()
            self._tell("silent", patience)
            self._silence.seconds = 0.0  # (a frame may have come meanwhile)
        if not await self._silence.wait(receiver, limit, self._come):
            raise TimeoutError(f"no frame came for {limit:g} seconds (idle_timeout)")

    async def _look_for_obstacle(self, refusal: str = "") -> None:
        """Find out once, before the first frame, what kind of server it is.

        ``refusal`` is the text of its answer to our token.

        Raises:
            TokenRefused, WrongMagic: there is an obstacle, and it will stay.
        """
        if self._is_known:
            return
        with anyio.CancelScope() as self._connecting:
            if self._ask is not None:
                self._obstacle = await self._ask(refusal)
            self._is_known = True
        if self._obstacle is None:
            return
        await self._drop_stream()
        kind = TokenRefused if self._obstacle.endswith("token") else WrongMagic
        raise kind(f"{self._place} {_REASONS[self._obstacle]}") from None

    async def _reconnect(self) -> None:
        if self._failing_since is None:
            self._failing_since = anyio.current_time()
        await self._drop_stream()  # (if an exception came between it and its receiver)
        if self._failed:
            pause = max(0.0, self._retry_at - anyio.current_time())
            seconds = min(pause, self._seconds_left())
            self._tell("waiting", seconds)
            await anyio.sleep(seconds)
        try:
            with anyio.move_on_after(self._seconds_left()) as scope:
                self._stream = await self._connect()
            if scope.cancelled_caught:
                raise TimeoutError(
                    errno.ETIMEDOUT,
                    f"no connection to {self._place} within {self._within:g} seconds",
                )
        except _LOST as error:
            self.stats.failures += 1
            is_last = self._count_failure(error)
            if _came_after_connecting(error):
                refused = isinstance(error, TokenRefused)
                await self._look_for_obstacle(str(error) if refused else "")
            if is_last:
                raise
            return
        if self._closed:  # (by `aclose`, which could not cancel `connect`)
            await self._drop_stream()
            return
        assert self._stream is not None
        self._connected_at = anyio.current_time()
        self._silence = _Silence()
        receiver = self._new_receiver(self._stream)
        receiver._waits_for_slot = self._silence.pause
        self._receiver = receiver
        self._tell("connected", self.stats.connections)
        self.stats.connections += 1

    def _count_failure(self, error: Exception) -> bool:
        """Count a failure; return whether no further attempt may or should follow."""
        self._failed += 1
        self._retry_at = anyio.current_time() + seconds_to_wait(self._failed - 1)
        if not self._reconnects or _is_for_good(error) or self._seconds_left() <= 0:
            return True
        self._tell("lost", error)
        if self._failed == 1 and self._on_event is None:
            why = str(error) or "the connection has ended"
            log.warning("no frames from %s for now: %s", self._place, why)
        return False

    def _seconds_left(self) -> float:
        if self._within is None or self._failing_since is None:
            return math.inf
        return max(0.0, self._failing_since + self._within - anyio.current_time())

    async def _drop_stream(self) -> None:
        stream, self._stream, self._receiver = self._stream, None, None
        if stream is not None:
            await drop_stream(stream)

    def _count(self, sequence: int) -> None:
        expected, self._expected = self._expected, sequence + 1
        self.stats.received += 1
        if expected is not None and sequence > expected:
            self.stats.gaps += 1
            self.stats.missing += sequence - expected
            self._tell("gap", sequence - expected)

    def _tell(self, event: ConnectionEvent, detail: Any) -> None:
        if self._on_event is not None:
            try:
                self._on_event(event, detail)
            except Exception:
                log.exception("the hook of a frame client failed")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedFrame:
        try:
            return await self.receive()
        except (StreamClosed, anyio.EndOfStream):  # (the latter: without reconnect)
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        """Close; a task that receives gets StreamClosed, an ``async for`` ends."""
        self._closed = True
        self._connecting.cancel()
        self._come.clear()
        await self._drop_stream()


def _came_after_connecting(error: Exception) -> bool:
    """Return whether a server accepted the connection, but then did not serve us."""
    kinds = TokenRefused, ssl.SSLError, anyio.EndOfStream, anyio.BrokenResourceError
    return isinstance(error, kinds)


def _is_for_good(error: Exception) -> bool:
    """Return whether the next attempt would fail the same way."""
    of_connection = ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError
    return isinstance(error, TokenRefused) or (
        isinstance(error, ssl.SSLError) and not isinstance(error, of_connection)
    )


def seconds_to_wait(attempt: int) -> float:
    """Return the seconds to wait after an attempt; the first has the number 0."""
    wait = FIRST_WAIT * FACTOR ** min(attempt, 100)  # (more could overflow)
    return min(wait, LONGEST_WAIT) * (1 - JITTER * random.random())
