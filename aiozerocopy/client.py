"""A client that comes back: frames from a server, through lost connections."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio
from anyio.abc import AsyncResource

from aiozerocopy._core.errors import StreamClosed
from aiozerocopy._core.lifetime import Ready
from aiozerocopy._net.admission import TokenRefused as TokenRefused
from aiozerocopy._net.admission import present_token as present_token
from aiozerocopy._net.connecting import (
    DEAD_AFTER,
    check_seconds,
    connect_tcp,
    connect_unix,
)
from aiozerocopy._net.foreign_streams import drop_stream
from aiozerocopy._net.tls import secure
from aiozerocopy.framing import (
    FRAME_TIMEOUT,
    MAX_BYTES,
    FrameError,
    FrameReceiver,
    FrameTooSlow,
    TruncatedFrame,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable

    from anyio.abc import ByteStream
    from typing_extensions import Self

    from aiozerocopy.framing import ReceivedFrame
    from aiozerocopy.pool import FramePool
    from aiozerocopy.streams import Stream

    Connect = Callable[[], Awaitable[ByteStream]]

# "connected" (how often before), "lost" (the error), "waiting" (seconds),
# "gap" (how many frames are missing)
ConnectionEvent: TypeAlias = Literal["connected", "lost", "waiting", "gap"]
Hook: TypeAlias = Callable[[ConnectionEvent, Any], object]

# How long to wait before the next attempt to connect, in seconds: longer each time, and
# less a random part, for a thousand clients of a server that comes back should not come
# all at once.
FIRST_WAIT = 0.1
FACTOR = 2.0
LONGEST_WAIT = 10.0
JITTER = 0.5  # the largest part that is left out

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
    missing: int = 0  # frames, going by the gaps in the sequence
    gaps: int = 0
    connections: int = 0
    failures: int = 0  # attempts to connect that did not succeed


def connect_frames(
    address: str,
    port: int | None = None,
    *,
    token: str | bytes | None = None,
    ssl_context: ssl.SSLContext | None = None,
    hostname: str | None = None,
    timeout: float = 10.0,
    dead_after: float | None = DEAD_AFTER,
    **options: Any,
) -> FrameClient:
    """A `FrameClient` of a server; ``options`` are `FrameClient`'s.

    ``address`` is a host, or without a ``port`` "HOST:PORT" or the path of a Unix
    socket.  ``ssl_context`` asks for TLS, in which the server must be ``hostname`` (the
    host).  ``timeout`` is for one attempt to connect, ``dead_after`` is as for
    `connect_tcp`.
    """
    check_seconds(timeout=timeout, dead_after=dead_after)
    host, port = (address, port) if port is not None else parse_address(address)

    async def connect() -> ByteStream:
        with anyio.fail_after(timeout):
            return await open_stream(
                host, port, token, ssl_context, hostname, dead_after
            )

    return FrameClient(connect, **options)


def parse_address(address: str) -> tuple[str, int | None]:
    """Host and port of "HOST:PORT", "[::1]:PORT"; a path, which has no port."""
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

    Without a port the host is the path of a Unix socket.

    Raises:
        OSError: nobody answered, or TLS failed (ssl.SSLError).
        TokenRefused: the token is not the server's.
    """
    if port is None:
        plain: Stream = await connect_unix(host)
    else:
        plain = await connect_tcp(host, port, dead_after=dead_after)
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


class FrameClient(Ready, AsyncResource):
    """Frames from a server, through lost connections: ``async for frame in client``.

    ``connect`` is an async function that returns a new stream.  Each time the
    connection is lost, or cannot be made, it is called again after a pause of 0.1
    seconds, which grows to 10.  A frame of which only a part came is lost, and so is
    what is sent meanwhile: ``stats`` counts the gaps, and ``on_event(event, detail)``
    hears of "connected", "lost", "waiting" and "gap".  A sequence that begins anew is
    a server that did, and no gap.

    A connection on which no frame comes for ``idle_timeout`` seconds is lost, and so is
    one on which a frame takes too long (``frame_timeout``, see `FrameReceiver`).

    Without ``reconnect`` there is one attempt, and the end of the stream is the end of
    the frames.

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
        idle_timeout: float | None = None,
        frame_timeout: float | None = FRAME_TIMEOUT,
    ) -> None:
        check_seconds(idle_timeout=idle_timeout)
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
        self._failed = 0  # attempts in a row
        self._expected: int | None = None
        self._connecting = anyio.CancelScope()
        self._closed = False

    async def receive(self) -> ReceivedFrame:
        """The next frame; connects first, as often as it must.

        Cancelled, it loses nothing.

        Raises:
            StreamClosed: the client was closed.
            TokenRefused, ssl.SSLCertVerificationError, FrameError: it is the wrong
                server, or we are the wrong client; to come again would not help.
            OSError, EndOfStream, ...: the connection failed, or its stream has ended,
                and it is not to reconnect.
        """
        while True:
            if self._closed:
                raise StreamClosed("the client was closed")
            if self._receiver is None:
                with anyio.CancelScope() as self._connecting:
                    await self._reconnect()
            elif (frame := await self._receive(self._receiver)) is not None:
                return frame

    async def _receive(self, receiver: FrameReceiver) -> ReceivedFrame | None:
        """None if the connection was lost."""
        try:
            with anyio.move_on_after(self._idle_timeout) as scope:
                frame = await receiver.receive()
            if scope.cancelled_caught:
                raise TimeoutError(
                    f"no frame came for {self._idle_timeout:g} seconds (idle_timeout)"
                )
        except (*_LOST, anyio.ClosedResourceError) as error:
            await self._drop_stream()
            if not self._closed and self._count_failure(error):
                raise
            return None
        except FrameError:
            await self._drop_stream()
            raise
        self._failed = 0
        self._count(frame.sequence)
        return frame

    async def _reconnect(self) -> None:
        if self._failed:
            seconds = seconds_to_wait(self._failed - 1)
            self._tell("waiting", seconds)
            await anyio.sleep(seconds)
        try:
            self._stream = await self._connect()
        except _LOST as error:
            self.stats.failures += 1
            if self._count_failure(error):
                raise
            return
        self._receiver = self._new_receiver(self._stream)
        self._tell("connected", self.stats.connections)
        self.stats.connections += 1

    def _count_failure(self, error: Exception) -> bool:
        """True if it is the last: one is enough, or more are of no use."""
        import ssl  # takes its time, and is not needed before

        if isinstance(error, (TokenRefused, ssl.SSLCertVerificationError)):
            return True  # the next attempt would end the same way
        self._failed += 1
        if not self._reconnects:
            return True
        self._tell("lost", error)
        return False

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
        except (StreamClosed, anyio.EndOfStream):  # the latter without reconnecting
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        """Close; a task that receives gets StreamClosed, a loop over us ends."""
        self._closed = True
        self._connecting.cancel()
        await self._drop_stream()


def seconds_to_wait(attempt: int) -> float:
    """The wait after the attempt of that number, from 0 on."""
    wait = FIRST_WAIT * FACTOR ** min(attempt, 100)  # (more could overflow)
    return min(wait, LONGEST_WAIT) * (1 - JITTER * random.random())
