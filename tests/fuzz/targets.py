"""The Python parts that read untrusted bytes, as functions of such bytes.

Each target passes the bytes to the code that reads them, and lets unexpected exceptions
out.  Where a checksum or a number would make nearly every input fail at once, the
target corrects it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import struct
import zlib
from typing import TYPE_CHECKING, Any, ClassVar, cast

import anyio
import numpy

from aiozerocopy import web
from aiozerocopy._net.admission import Guest
from aiozerocopy._net.frame_header import HEADER_SIZE, FrameError, FrameHeader
from aiozerocopy.broadcast import Broadcast
from aiozerocopy.capture import screen, x11
from aiozerocopy.capture.connection import Connection, list_monitors
from aiozerocopy.capture.x11 import Rectangle, ScreenError
from aiozerocopy.dask import messages as dask_messages
from aiozerocopy.framing import FrameReceiver
from aiozerocopy.web.http import HttpConnection
from aiozerocopy.web.request import Refused, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from typing_extensions import Buffer

LOOP = asyncio.new_event_loop()
MOST = 1 << 16  # bytes of a frame or of a Dask message


class Peer:
    """A byte stream from a stranger, who sent these bytes in pieces, and left."""

    _raw_socket: ClassVar[socket.socket] = socket.socket()  # (http.py sets its options)

    def __init__(self, data: bytes, piece: int = 1 << 16) -> None:
        self.unread = data
        self.piece = piece
        self.sent = b""

    async def receive(self, most: int = 65536) -> bytes:
        if not self.unread:
            raise anyio.EndOfStream
        n = min(most, self.piece)
        piece, self.unread = self.unread[:n], self.unread[n:]
        return piece

    async def receive_exactly(self, buffer: Buffer) -> None:
        view = memoryview(buffer).cast("B")
        if len(view) > len(self.unread):
            raise anyio.EndOfStream
        view[:], self.unread = self.unread[: len(view)], self.unread[len(view) :]

    async def send(self, data: bytes) -> None:
        self.sent += data

    async def send_eof(self) -> None:
        pass


TARGETS: dict[str, Callable[[bytes], None]] = {}


def target(read: Callable[[bytes], Coroutine[Any, Any, None]]) -> None:
    """Register the coroutine function as a target of its name."""
    TARGETS[read.__name__] = lambda data: LOOP.run_until_complete(read(data))


# ---- frames ---------------------------------------------------------------------


def _with_checksum(data: bytes) -> bytes:
    """Return the data with a correct magic, version and checksum in its header."""
    fields = b"AZCF\1" + data[5 : HEADER_SIZE - 4]
    return fields + struct.pack("<I", zlib.crc32(fields)) + data[HEADER_SIZE:]


@target
async def frame(data: bytes) -> None:
    """Feed `FrameHeader.unpack` and a `FrameReceiver`."""
    if data[:1] != b"A" and len(data) >= HEADER_SIZE:
        data = _with_checksum(data)
    receiver = FrameReceiver(cast("Any", Peer(data, 100)), max_bytes=MOST)
    with contextlib.suppress(FrameError, anyio.EndOfStream):
        while True:
            with await receiver.receive() as one:
                assert one.header.payload_length <= MOST
    with contextlib.suppress(FrameError):
        header = FrameHeader.unpack(data, MOST)
        assert header.payload_length <= MOST
        assert FrameHeader.unpack(header.pack(), MOST) == header


# ---- Dask -----------------------------------------------------------------------


@target
async def dask_message(data: bytes) -> None:
    """Feed `receive_frames`, whose result must equal the bytes that were sent."""
    peer = Peer(data)
    try:
        frames = await dask_messages.receive_frames(peer, MOST)
    except (dask_messages.NotAMessage, anyio.EndOfStream):
        return
    read = data[: len(data) - len(peer.unread)]
    taken = b"".join(frames)
    assert read.endswith(taken)
    assert len(read) == 8 * (2 + len(frames)) + len(taken)


# ---- the web --------------------------------------------------------------------


@target
async def http(data: bytes) -> None:
    """Send requests on one connection, until the server refuses one."""
    peer = Peer(data, 1 + len(data) % 50)
    connection = HttpConnection(cast("Any", peer), lambda status: None, Guest(""))
    try:
        while (request := await connection.next_request()) is not None:
            _use(request)
            await connection.respond(200, b"ok", {})
    except Refused as refusal:
        await connection.refuse(refusal)
    assert peer.sent.startswith(b"HTTP/1.1 ") or not peer.sent


def _use(request: Request) -> None:
    assert request.host == request.host.lower()
    assert all(name == name.lower() for name in request.headers)
    assert "\n" not in request.path
    assert len(request.query) <= 16
    assert isinstance(request.wants_close, bool)


_UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@target
async def websocket(data: bytes) -> None:
    """Send a viewer's bytes after the handshake."""
    peer = Peer(_UPGRADE + data, len(_UPGRADE) + len(data) % 50)
    http = HttpConnection(cast("Any", peer), lambda status: None, Guest(""))
    request = await http.next_request()
    assert request is not None
    talk = await http.accept(request)
    await talk.listen()
    assert len(peer.sent) < 10_000 + 2 * len(data)
    await talk.close(1001, "the end")


async def _closed_hub() -> Broadcast:
    async with Broadcast() as hub:
        return hub


APP = web.app(LOOP.run_until_complete(_closed_hub()), token="a")


@target
async def asgi(data: bytes) -> None:
    """Call the application with a scope of these fields, and then a disconnect."""
    kind, method, path, root, query, *headers = (data + b"\n" * 4).split(b"\n")[:20]
    is_http = len(kind) % 2 == 0
    scope: dict[str, Any] = {
        "type": "http" if is_http else "websocket",
        "path": path.decode(errors="replace"),
        "root_path": root.decode(errors="replace"),
        "query_string": query,
        "headers": [tuple((one + b":").split(b":", 1)) for one in headers],
        "client": (kind.decode(errors="replace"), 1),
        "extensions": {"websocket.http.response": {}} if len(kind) % 3 else None,
        **({"method": method.decode(errors="replace")} if is_http else {}),
    }
    told = [{"type": "http.request" if is_http else "websocket.connect"}]
    said: list[Any] = []

    async def receive() -> Any:
        end = "http.disconnect" if is_http else "websocket.disconnect"
        return told.pop() if told else {"type": end}

    async def send(message: Any) -> None:
        said.append(message)

    await APP(scope, receive, send)
    starts = [one for one in said if one["type"].endswith((".start", ".close"))]
    assert len(starts) == 1, said
    for name, value in starts[0].get("headers", ()):
        assert not {10, 13, 0} & {*name, *value}, starts
    assert starts[0].get("status", 403) != 500


class Wire(asyncio.Transport):
    """Keeps everything that a server writes."""

    written = b""
    is_over = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_over

    def close(self) -> None:
        self.is_over = True

    abort = close


@target
async def aiohttp(data: bytes) -> None:
    """Send a client's bytes to the application under aiohttp."""
    from aiohttp.web import AppRunner

    if not RUNNERS:
        logging.getLogger("aiohttp").setLevel(logging.CRITICAL)  # (it logs bad input)
        hub = await _closed_hub()
        RUNNERS.append(AppRunner(web.aiohttp_app(hub, token="a"), access_log=None))
        await RUNNERS[0].setup()
    wire, protocol = Wire(), RUNNERS[0].server()
    protocol.connection_made(wire)
    protocol.data_received(data)
    for _ in range(50):
        await asyncio.sleep(0)
    protocol.connection_lost(None)
    await asyncio.sleep(0)
    assert wire.written.startswith(b"HTTP/") or not wire.written
    assert re.search(rb"HTTP/\d\.\d 500", wire.written) is None


RUNNERS: list[Any] = []


# ---- an X server ------------------------------------------------------------------


class HostileServer:
    """A socket to an X server that answers with these bytes.

    A byte in front of each answer selects its treatment: an even number leaves the
    answer alone; an odd one corrects sequence number and length, so that the answer
    is taken for the one that was asked for.
    """

    family = socket.AF_UNIX

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._asked: list[int] = []
        self._number = 0
        self._answer = b""

    def sendmsg(self, buffers: list[bytes], _beside: object) -> int:
        (request,) = buffers
        if self._number:
            at = 0
            while at < len(request):
                self._asked.append(self._number)
                self._number += 1
                at += 4 * max(1, struct.unpack_from("=H", request, at + 2)[0])
        else:  # hello
            self._number = 1
            head = bytearray(self._take(8).ljust(8, b"\0"))
            head[6:] = bytes((head[6] % 100, 0))  # the length of the rest
            self._answer = bytes(head) + self._take(4 * head[6])
        return len(request)

    def recv_into(self, view: memoryview) -> int:
        if not self._answer:
            self._answer = self._next_answer()
        n = min(len(view), len(self._answer))
        view[:n], self._answer = self._answer[:n], self._answer[n:]
        return n

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        pass

    def _take(self, n: int) -> bytes:
        taken, self._data = self._data[:n], self._data[n:]
        return taken

    def _next_answer(self) -> bytes:
        kind = self._take(1)
        if not kind or kind[0] % 2 == 0:
            return self._take(32)
        head = bytearray(self._take(32).ljust(32, b"\0"))
        length = kind[0] // 2 % 32
        number = self._asked.pop(0) if self._asked else 0
        struct.pack_into("=B", head, 0, x11.REPLY)
        struct.pack_into("=HI", head, 2, number & 0xFFFF, length)
        return bytes(head) + self._take(4 * length).ljust(4 * length, b"\0")


class Display:
    name = ":9"

    def __init__(self, screen: int) -> None:
        self.screen = screen

    def cookie(self, _sock: object) -> tuple[bytes, bytes]:
        return b"", b""


@target
async def x_server(data: bytes) -> None:
    """Connect, and read the answers to a screen's first requests."""
    connection = Connection(cast("Any", HostileServer(data)), ":9")
    try:
        await connection._greet(cast("Any", Display(len(data) % 2)))
        found = await connection.extensions()
        asked = connection.ask(x11.get_geometry(connection.setup.root))
        whole = x11.geometry(await connection.answer(asked))
        await list_monitors(connection, found, whole)
        asked = connection.ask(x11.fetch_region(1, 1))
        x11.rectangles(await connection.answer(asked))
        asked = connection.ask(x11.get_cursor(1))
        shown = x11.cursor(await connection.answer(asked))
        picture = numpy.zeros((20, 30, 4), "u1")
        screen.draw(shown, picture, Rectangle(0, 0, 30, 20), "bgr0")
    except ScreenError:
        pass
    finally:
        connection.close()
