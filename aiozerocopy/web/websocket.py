"""One viewer's WebSocket: the handshake, what the viewer says, and frame headers.

wsproto reads what viewers say, under limits that are set here.  Pictures do not pass
through it: their header is made here, unmasked as a server's must be, and goes out with
the picture in one gathered send.
"""

from __future__ import annotations

import base64
import struct
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import CloseConnection, Message, Ping
from wsproto.extensions import Extension
from wsproto.frame_protocol import CloseReason, ParseFailed, RsvBits
from wsproto.utilities import LocalProtocolError, generate_accept_token

from aiozerocopy.web.exchange import (
    CLOSE_SECONDS,
    MAX_MESSAGE,
    READ_SIZE,
    UPGRADE,
    Talk,
    first_to_end,
)
from aiozerocopy.web.link import Link
from aiozerocopy.web.request import Refused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer
    from wsproto.events import Event
    from wsproto.frame_protocol import FrameDecoder, FrameProtocol, Opcode

    from aiozerocopy.web.exchange import HttpStream
    from aiozerocopy.web.request import Request

PING_SECONDS = 20.0

_WHOLE_BINARY = 0x82  # one frame that is a whole binary message


def binary_header(nbytes: int) -> bytes:
    if nbytes < 126:
        return struct.pack("!BB", _WHOLE_BINARY, nbytes)
    if nbytes < 1 << 16:
        return struct.pack("!BBH", _WHOLE_BINARY, 126, nbytes)
    return struct.pack("!BBQ", _WHOLE_BINARY, 127, nbytes)


def in_a_frame(buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    nbytes = sum(memoryview(buffer).nbytes for buffer in buffers)
    return (binary_header(nbytes), *buffers)


class _Limit(Extension):
    """Refuses a frame that is too long as soon as its header says so."""

    name = "limit"

    def enabled(self) -> bool:
        return True

    def offer(self) -> bool:
        return False

    def frame_inbound_header(
        self,
        proto: FrameDecoder | FrameProtocol,
        opcode: Opcode,
        rsv: RsvBits,
        payload_length: int,
    ) -> RsvBits:
        if payload_length > MAX_MESSAGE:
            raise ParseFailed("the message is too long", CloseReason.MESSAGE_TOO_BIG)
        return RsvBits(False, False, False)


class WebSocket:
    """The server's side of one WebSocket: a `Viewer`."""

    wrap: staticmethod[[Sequence[Buffer]], Sequence[Buffer]] = staticmethod(in_a_frame)

    def __init__(self, stream: HttpStream, early: bytes) -> None:
        """``early`` is what came directly after the handshake."""
        self.stream: HttpStream = stream
        self._ws = Connection(ConnectionType.SERVER, [_Limit()])
        self._message_bytes = 0
        self._talk = Talk()
        self.link: Link = Link()
        self._is_alive = True  # something came since the last ping
        self._ws.receive_data(early)

    async def wait_left(self) -> None:
        """Return when the viewer has left, must, or does not answer a ping."""
        await first_to_end(self.listen, self._until_dead)

    async def _until_dead(self) -> None:
        """Ping: every browser answers, so one that does not is gone."""
        while self._is_alive:
            self._is_alive = False
            await self._send(Ping())
            await anyio.sleep(PING_SECONDS)

    async def listen(self) -> None:
        """Answer what the viewer says; return when it has left, or must.

        Pictures may be sent meanwhile: messages go out whole.
        """
        while await self._answer_all():
            try:
                data = await self.stream.receive(READ_SIZE)
            except anyio.EndOfStream:
                return
            self._is_alive = True
            self._ws.receive_data(data)
            await anyio.lowlevel.checkpoint()

    async def _answer_all(self) -> bool:
        """Answer what was received; False if the WebSocket is closed then."""
        for event in self._ws.events():
            await self._answer(event)
            if self._talk.is_too_fast():
                await self.close(CloseReason.POLICY_VIOLATION, "too many messages")
            if self._ws.state is not ConnectionState.OPEN:
                return False
            await anyio.lowlevel.checkpoint()
        return True

    async def _answer(self, event: Event) -> None:
        if isinstance(event, (Ping, CloseConnection)):
            await self._send(event.response())
        elif isinstance(event, Message):
            self._message_bytes += len(event.data)
            if self._message_bytes > MAX_MESSAGE:
                await self.close(CloseReason.MESSAGE_TOO_BIG, "the message is too long")
            elif event.message_finished:
                if self._message_bytes == len(event.data):
                    self.link.hear(event.data)
                self._message_bytes = 0

    async def close(self, code: int, reason: str) -> None:
        """Send a close frame, unless one was sent; the stream stays open."""
        if self._ws.state is ConnectionState.OPEN:
            await self._send(CloseConnection(code, reason))

    async def _send(self, event: Event) -> None:
        try:
            data = self._ws.send(event)
        except LocalProtocolError:  # it is closed already
            return
        with anyio.move_on_after(CLOSE_SECONDS):
            await self.stream.send(data)


def accepting(request: Request) -> dict[str, str]:
    """Return the headers that complete the handshake.

    Raises: Refused, if the request is no handshake.
    """
    headers = request.headers
    if not (
        request.method == "GET"
        and request.version != "1.0"
        and request.wants_websocket
        and "upgrade" in request.connection
        and headers.get("sec-websocket-version") == "13"
    ):
        raise Refused(426, "this is for WebSockets only", UPGRADE)
    key = headers.get("sec-websocket-key", "").encode(errors="replace")
    try:
        length = len(base64.b64decode(key, validate=True))
    except ValueError:
        length = 0
    if length != 16:
        raise Refused(400, "Sec-WebSocket-Key must be 16 bytes in base64")
    token = generate_accept_token(key).decode()
    return {"Upgrade": "websocket", "Sec-WebSocket-Accept": token}
