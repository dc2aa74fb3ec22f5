"""The seam between what is shown and who serves it: our server, ASGI or aiohttp.

    a request comes      `Exchange`: it is answered once
        respond            with a whole answer, and that is all
        start, accept      with a `Viewer`: an answer without an end, or a WebSocket
    a viewer watches     a feed sends whole messages on its ``stream``, each as ``wrap``
                         makes it; ``wait_left`` runs beside that
    it leaves, or must   then ``close`` says goodbye, unless it has gone

An `Exchange` and its `Viewer` belong to the task that answers the request, and end with
it.

Another server keeps what it is given for as long as it likes.  So it gets copies as a
few `bytes`: of JPEG and raw frames, one copy that all viewers share; of H.264 and AV1,
one for each viewer.  It gets these `bytes` one by one: if a viewer does not read,
hardly more than one of them waits in that server.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol, TypeAlias

import anyio

from aiozerocopy._core.errors import StreamBroken, StreamClosed
from aiozerocopy._net.admission import Pace
from aiozerocopy._net.foreign_streams import PIECE, MessageStream
from aiozerocopy.web.link import Link

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from typing_extensions import Buffer

    from aiozerocopy._net.admission import Guest
    from aiozerocopy._net.tls import TLSStream
    from aiozerocopy.streams import SendStream, Stream
    from aiozerocopy.web.request import Headers, Request

    HttpStream: TypeAlias = Stream | TLSStream
    Sink: TypeAlias = SendStream | MessageStream
    # Makes a message ready to be sent; all viewers of one kind have the same function.
    Wrap: TypeAlias = Callable[[Sequence[Buffer]], Sequence[Buffer]]

GOING_AWAY, POLICY_VIOLATION, TOO_BIG, CANNOT = 1001, 1008, 1009, 4406
UPGRADE = {"Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
CLOSE_SECONDS = 1.0  # that a goodbye may take
READ_SIZE = 4 << 10  # bytes

# Limits of what a viewer may send: it only has to watch and to acknowledge.
MAX_MESSAGE = 4 << 10  # bytes
MAX_EVENTS = 100  # fragments, pings and pongs at once
EVENTS_A_SECOND = 50  # in the long run
MAX_WORDS = 64  # pieces of a body, from a viewer without a WebSocket

PEER_LEFT = (
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    TimeoutError,
)


class Viewer(Protocol):
    @property
    def stream(self) -> Sink:
        """Takes whole messages."""

    @property
    def wrap(self) -> Wrap: ...

    @property
    def link(self) -> Link:
        """Hears what the viewer acknowledges, if it is a WebSocket."""

    async def wait_left(self) -> None:
        """Return when the viewer has left, or must."""

    async def close(self, code: int, reason: str) -> None:
        """Say goodbye, unless that was done; a WebSocket also says why."""


class Exchange(Protocol):
    """A request's answer.  Methods raise one of `PEER_LEFT` if the client is gone."""

    @property
    def guest(self) -> Guest | None:
        """The client's connection; None under other servers."""

    async def respond(self, status: int, body: bytes, headers: Headers) -> None:
        """Send a whole answer.

        For HEAD, an empty ``body`` says that GET's answer would have no end.
        """

    async def start(self, headers: Headers) -> Viewer:
        """Begin an answer that has no end."""

    async def accept(self, request: Request) -> Viewer:
        """Open a WebSocket.

        Raises: Refused, if none was asked for.
        """


async def first_to_end(*waits: Callable[[], Awaitable[object]]) -> int:
    """Run functions until one returns or its peer has left; return its number."""
    ended: list[int] = []

    async def run(number: int, wait: Callable[[], Awaitable[object]]) -> None:
        with contextlib.suppress(*PEER_LEFT):
            await wait()
        ended.append(number)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for number, wait in enumerate(waits):
            tasks.start_soon(run, number, wait)
    return ended[0]


class Talk(Pace):
    """Counts what one viewer says, to limit its rate."""

    def __init__(self) -> None:
        super().__init__(MAX_EVENTS, EVENTS_A_SECOND)

    def is_too_fast(self) -> bool:
        """Count an event; are there too many?"""
        return self.count(anyio.current_time()) > 0


def as_it_is(buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    return buffers


def in_pieces(buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return a copy in pieces, which another server may keep."""
    whole = b"".join(buffers)
    return [whole[at : at + PIECE] for at in range(0, len(whole), PIECE)]


@contextlib.contextmanager
def breaking() -> Iterator[None]:
    """Make a `StreamBroken` of what other servers raise when they cannot send."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        raise StreamBroken(f"the server cannot send: {error}") from error


class ForeignViewer(MessageStream):
    """A viewer under another server, and the stream to it.

    If a send is cancelled, a part of its message may be out, so no message follows.
    """

    wrap: staticmethod[[Sequence[Buffer]], Sequence[Buffer]] = staticmethod(in_pieces)
    guest: Guest | None = None

    def __init__(self) -> None:
        self.link: Link = Link()
        self.is_open: bool = True
        self.is_over: bool = False  # it has left, or has heard the goodbye

    @property
    def stream(self) -> MessageStream:
        return self

    async def send(self, item: Buffer = b"", *more: Buffer) -> None:
        """Send one message.

        Raises:
            StreamClosed: it is closed, or the viewer has left.
            StreamBroken: the server could not send it.
        """
        if not self.is_open:
            raise StreamClosed("the viewer has left")
        is_out = False
        try:
            for piece in (item, *more):
                await self._deliver(piece if type(piece) is bytes else bytes(piece))
            is_out = True
        finally:
            self.is_open = self.is_open and is_out

    async def aclose(self) -> None:
        """Send no more, and drop the connection if the server lets us."""
        self.is_open = False
        self._drop()

    async def close(self, code: int, reason: str) -> None:
        if self.is_open:
            self.is_open = False
            with anyio.move_on_after(CLOSE_SECONDS):
                await self._say_goodbye(code, reason)
                self.is_over = True
        if not self.is_over:
            await self._outlast(code, reason)

    async def _outlast(self, code: int, reason: str) -> None:
        """Wait until the viewer `is_over`; not needed where `_drop` works."""

    async def _deliver(self, data: bytes) -> None:
        """Send one piece of a message."""
        raise NotImplementedError

    def _drop(self) -> None:
        """Drop the connection, if the server lets us."""

    async def _say_goodbye(self, code: int, reason: str) -> None:
        """End the answer, unless the server does so when its handler returns."""
