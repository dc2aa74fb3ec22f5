"""A client of the web server and its applications, which may break the rules.

Its functions take a server: an object with a ``port``, a ``prefix`` if the viewer is
mounted below one, and a ``host`` if that is not this machine.
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import numpy as np
import pytest
from anyio.streams.tls import TLSStream
from links import cut_short, until
from numpy.typing import NDArray

import aiozerocopy as azc
from aiozerocopy.broadcast import Broadcast
from aiozerocopy.web import jpeg

pytest.importorskip("h11")
wsproto = pytest.importorskip("wsproto")

from wsproto import events  # noqa: E402

HEIGHT, WIDTH = 48, 64
HEADER = struct.Struct("<BBBBIIIQq")  # of a picture
END_OF_JPEG = b"\xff\xd9"
BIG = np.zeros((1024, 1024, 4), np.uint8)
KEY = b"AAAAAAAAAAAAAAAAAAAAAA=="

with_each_encoder = pytest.mark.usefixtures("encoders")  # of H.264
needs_jpeg = pytest.mark.skipif(
    jpeg.find_compressor() is None, reason="needs simplejpeg or Pillow"
)


def picture(number: int = 0, channels: int = 3) -> NDArray[np.uint8]:
    frame = np.arange(HEIGHT * WIDTH * channels, dtype=np.uint32) + number
    return (frame & 0xFF).astype(np.uint8).reshape(HEIGHT, WIDTH, channels)


def number_of(message: bytes) -> int:
    """Return the number of a frame, and check that it is a whole frame of `picture`."""
    number: int = HEADER.unpack(message[:32])[7]
    assert message[32:] == picture(number).tobytes()
    return number


class Answer:
    """The answer to one HTTP request."""

    def __init__(self, data: bytes) -> None:
        head, _, self.body = data.partition(b"\r\n\r\n")
        line, *fields = head.decode().split("\r\n")
        self.status = int(line.split()[1])
        self.headers = {
            name.lower(): value.strip()
            for name, _, value in (field.partition(":") for field in fields)
        }


def asking(path: str = "/healthz", *fields: str, method: str = "GET") -> bytes:
    """Make a request, with a Host field unless ``fields`` has one."""
    if not any(field.startswith("Host:") for field in fields):
        fields = ("Host: localhost", *fields)
    return "\r\n".join([f"{method} {path} HTTP/1.1", *fields, "", ""]).encode()


def upgrade(path: str, *fields: str) -> bytes:
    return asking(
        path,
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {KEY.decode()}",
        *fields,
    )


@asynccontextmanager
async def connected(to: Any, trust: ssl.SSLContext | None = None) -> AsyncIterator[Any]:
    """Connect; with ``trust`` over TLS, which ends without a close_notify."""
    async with azc.connect_tcp(getattr(to, "host", "127.0.0.1"), to.port) as stream:
        if trust is None:
            yield stream
        else:
            yield await TLSStream.wrap(stream, hostname="localhost", ssl_context=trust)


async def until_seen(stream: Any, end: bytes) -> bytes:
    """Return the data that arrives, as soon as this end is in it."""
    data = b""
    while end not in data:
        data += await stream.receive()
    return data


async def rest(stream: anyio.abc.ByteReceiveStream) -> bytes:
    return b"".join([piece async for piece in stream])


async def say(to: Any, data: bytes, trust: ssl.SSLContext | None = None) -> bytes:
    """Send data; return everything that comes back until the server closes."""
    async with connected(to, trust) as stream:
        await stream.send(data)
        return await rest(stream)


async def ask(
    to: Any,
    path: str = "/healthz",
    *fields: str,
    method: str = "GET",
    body: bytes = b"",
) -> Answer:
    path = getattr(to, "prefix", "") + path
    request = asking(path, "Connection: close", *fields, method=method)
    return Answer(await say(to, request + body))


_OPEN = wsproto.connection.ConnectionState.OPEN


class Viewer:
    """A client of a WebSocket, which checks with wsproto what it receives."""

    def __init__(self, stream: anyio.abc.ByteStream) -> None:
        self.stream = stream
        self.ws = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        self._events: list[Any] = []

    async def send(self, event: events.Event) -> None:
        await self.stream.send(self.ws.send(event))

    async def next_event(self) -> Any:
        while not self._events:
            self.ws.receive_data(await self.stream.receive())
            self._events.extend(self.ws.events())
        return self._events.pop(0)

    async def next_of(self, kind: type) -> Any:
        while not isinstance(event := await self.next_event(), kind):
            if isinstance(event, events.Ping) and self.ws.state is _OPEN:
                await self.send(event.response())
        return event

    async def message(self) -> tuple[tuple[int, ...], bytes]:
        """Return header and payload of the next message, joining its fragments."""
        data = bytearray()
        while True:
            event = await self.next_of(events.BytesMessage)
            data += event.data
            if event.message_finished:
                header = HEADER.unpack(data[:32])
                if len(data) >= 32 + header[6]:
                    return header, bytes(data[32:])

    async def number(self) -> int:
        """Return the number of the next frame, and compare it with `picture`."""
        header, payload = await self.message()
        assert payload == picture(header[7]).tobytes()
        return header[7]

    async def code(self) -> int:
        """Return the code of the server's close."""
        code: int = (await self.next_of(events.CloseConnection)).code
        return code

    async def leave(self) -> None:
        await self.send(events.CloseConnection(1000))
        await self.next_of(events.CloseConnection)


@asynccontextmanager
async def watching(
    to: Any, path: str = "/raw", trust: ssl.SSLContext | None = None
) -> AsyncIterator[Viewer]:
    async with connected(to, trust) as stream:
        viewer = Viewer(stream)
        query = to.url.partition("?")[2] if hasattr(to, "url") else ""
        target = f"{getattr(to, 'prefix', '')}{path}?{query}"
        request = events.Request(host=f"localhost:{to.port}", target=target)
        await viewer.send(request)
        assert isinstance(await viewer.next_event(), events.AcceptConnection)
        yield viewer


@asynccontextmanager
async def publishing(hub: Broadcast, height: int = HEIGHT) -> AsyncIterator[None]:
    """Publish frames, with a millisecond after each."""

    async def publish() -> None:
        frame = np.zeros((height, WIDTH, 3), np.uint8)
        while True:
            frame[:] = hub.sequence & 0xFF
            await hub.publish(frame)
            await anyio.sleep(0.001)

    async with cut_short(publish):
        yield


async def outlast(hub: Broadcast, good: Viewer) -> int:
    """Publish until one of two viewers is dropped; the other gets every frame."""
    number = 0
    while len(hub.clients) == 2:
        # (publish when the good viewer is ready, so that it needs no patience)
        await until(lambda: any(not client.stats.queued for client in hub.clients))
        await hub.publish(BIG)
        header, _ = await good.message()
        assert header[7] == number
        number += 1
    return number
