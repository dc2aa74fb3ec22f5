"""One viewer's WebSocket: the handshake, what the viewer says, and frame headers.

wsproto knows the protocol.  Pictures do not pass through it: their header is made here,
unmasked as a server's must be, and goes out with the picture in one gathered send.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import anyio
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    CloseConnection,
    Message,
    Ping,
    Request,
)
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from aiozerocopy.web.http import READ_SIZE, HttpConnection, Refused

if TYPE_CHECKING:
    from wsproto.events import Event

    from aiozerocopy.web.http import Request as HttpRequest

MAX_MESSAGE = 4 << 10  # of the viewer's, which has nothing to say
CLOSE_SECONDS = 1.0

_WHOLE_BINARY = 0x82  # one frame that is a whole binary message


def binary_header(nbytes: int) -> bytes:
    """The header of a binary message of this size."""
    if nbytes < 126:
        return struct.pack("!BB", _WHOLE_BINARY, nbytes)
    if nbytes < 1 << 16:
        return struct.pack("!BBH", _WHOLE_BINARY, 126, nbytes)
    return struct.pack("!BBQ", _WHOLE_BINARY, 127, nbytes)


class WebSocket:
    """The server's side of one WebSocket."""

    def __init__(self, http: HttpConnection) -> None:
        self.stream = http.stream
        self._ws = WSConnection(ConnectionType.SERVER)
        self._message_bytes = 0
        self.is_alive = True  # something came since `ask_for_life`

    @classmethod
    async def accept(cls, http: HttpConnection, request: HttpRequest) -> WebSocket:
        """Complete the handshake.

        Raises:
            Refused: what was asked for is no WebSocket.
        """
        self = cls(http)
        try:
            self._ws.initiate_upgrade_connection(request.raw_headers, request.target)
            asked = isinstance(next(self._ws.events(), None), Request)
        except RemoteProtocolError as error:
            raise _not_a_websocket(error) from error
        if request.method != "GET" or not asked:
            raise _not_a_websocket()
        await http.switch(self._ws.send(AcceptConnection()))
        if early := http.take_over():
            self._ws.receive_data(early)
        return self

    async def listen(self) -> None:
        """Answer what the viewer says; return when it has left, or must.

        Pictures may be sent meanwhile: messages go out whole.
        """
        while await self._answer_all():
            try:
                data = await self.stream.receive(READ_SIZE)
            except anyio.EndOfStream:
                return
            self.is_alive = True
            self._ws.receive_data(data)

    async def _answer_all(self) -> bool:
        """False if that was the end."""
        try:
            for event in self._ws.events():
                await self._answer(event)
        except RemoteProtocolError as error:
            if error.event_hint is not None:
                await self._send(error.event_hint)
            return False
        return self._ws.state is ConnectionState.OPEN

    async def _answer(self, event: Event) -> None:
        if isinstance(event, (Ping, CloseConnection)):
            await self._send(event.response())
        elif isinstance(event, Message):
            self._message_bytes += len(event.data)
            if self._message_bytes > MAX_MESSAGE:
                await self._send(CloseConnection(1009, "the message is too long"))
            elif event.message_finished:
                self._message_bytes = 0

    async def ask_for_life(self) -> None:
        """Send a ping; a browser answers it by itself, and `is_alive` says so."""
        self.is_alive = False
        await self._send(Ping())

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


def _not_a_websocket(error: RemoteProtocolError | None = None) -> Refused:
    text = f"this is for WebSockets only{f': {error}' if error else ''}"
    headers = {"Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    return Refused(426, text, headers)
