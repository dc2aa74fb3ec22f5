"""One client's connection to our server: requests under limits, and their answers.

h11 reads a request's line and headers, once they are complete and known to be small.
Bodies are not read.  A refused client gets an answer with the reason.  We write answers
ourselves, because h11 keeps no HTTP/1.0 connection open.

No client holds up the others: the event loop has a turn after each request, and after
each piece of one.
"""

from __future__ import annotations

import contextlib
import math
import re
import socket
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import h11

from aiozerocopy._net.admission import ADMISSION_SECONDS
from aiozerocopy._net.tls import TLSStream
from aiozerocopy.web.exchange import (
    CLOSE_SECONDS,
    MAX_WORDS,
    PEER_LEFT,
    READ_SIZE,
    as_it_is,
)
from aiozerocopy.web.link import Link
from aiozerocopy.web.request import (
    COMMON_HEADERS,
    SEND_SECONDS,
    Refused,
    Request,
    decoded,
    fields_of,
    refuse_body,
)
from aiozerocopy.web.websocket import WebSocket, accepting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

    from aiozerocopy._net.admission import Guest
    from aiozerocopy.web.exchange import HttpStream, Viewer
    from aiozerocopy.web.request import Headers

MAX_HEADER = 16 << 10  # bytes of a request's line and headers
MAX_LINES = 100  # of these; each takes time
HEADER_SECONDS = 5.0  # from a request's first byte to the end of its headers
IDLE_SECONDS = 30.0  # without a request
GOODBYE_SECONDS = 1.0  # that a client has to read the last answer
GOODBYE_BYTES = 256 << 10  # that it may still send meanwhile
UNSENT = 32 << 10  # bytes for a viewer that the kernel may hold unsent
UNREAD = 256 << 10  # bytes in all, if the viewer cannot acknowledge what it has read

_LAST_CHUNK = b"0\r\n\r\n"
_END = re.compile(rb"\n\r?\n")  # of a request's line and headers

# Characters that headers must not have.  (h11 would refuse them itself, but takes 0.8 s
# to find one behind 16 KiB of blanks.)
_CONTROL = re.compile(rb"[^\t\r\n -~\x80-\xff]|\r[^\n]")


def parse_request(event: h11.Request, peer: str, *, is_secure: bool) -> Request:
    """Raises: Refused, for another version, or an invalid address."""
    if not event.http_version.startswith(b"1."):
        raise Refused(505, "only HTTP/1.1 and HTTP/1.0 are spoken here")
    headers = decoded(event.headers)
    authority = headers.get("host", "")
    try:
        target = event.target.decode("ascii")
        if target.startswith("/"):
            path, _, query = target.partition("?")
        else:  # a URL, as proxies get it: its authority counts, not the header
            parts = urlsplit(target)
            authority = parts.netloc or authority
            path, query = parts.path or "/", parts.query
    except ValueError as error:
        raise Refused(400, "the address is invalid") from error
    return Request(
        method=event.method.decode("ascii"),
        authority=authority,
        path=path,
        query=fields_of(query),
        headers=headers,
        version=event.http_version.decode("ascii"),
        wants_websocket=headers.get("upgrade", "").lower() == "websocket",
        peer=peer,
        is_secure=is_secure,
    )


class HttpConnection:
    """An `Exchange` for each request; ``on_answer`` hears of every status.

    What viewers are sent goes out without a copy.
    """

    def __init__(
        self, stream: HttpStream, on_answer: Callable[[int], object], guest: Guest
    ) -> None:
        self.stream = stream
        self.guest = guest
        self._latest = guest.since + ADMISSION_SECONDS  # for the first request
        self._unread = bytearray()
        self._is_answered = False  # (the current request)
        self._is_last = self._has_websocket = False  # either ends the connection
        self._is_head = False
        self._version = "1.1"
        self._on_answer = on_answer

    # -- requests -----------------------------------------------------------------

    async def next_request(self) -> Request | None:
        """Return the next request; None if the client left or asked for nothing.

        Raises:
            Refused: what came is no request, too long, or too slow.
            StreamBroken: the client broke the connection.
        """
        if self._is_last:
            return None
        await anyio.lowlevel.checkpoint()
        self._is_answered = self._is_head = False
        self._unread = self._unread.lstrip(b"\r\n")  # what some send after a request
        latest, self._latest = self._latest, math.inf
        if not self._unread:
            with _until(latest, IDLE_SECONDS) as idle:
                if not await self._read():
                    return None
            if idle.cancelled_caught:
                return None
        with _until(latest, HEADER_SECONDS):
            return await self._read_request()
        raise Refused(408, f"a request must be complete in {HEADER_SECONDS:g} s")

    async def _read_request(self) -> Request | None:
        head = await self._read_head()
        if head is None:
            return None
        parser = h11.Connection(h11.SERVER, MAX_HEADER)
        parser.receive_data(head)
        try:
            event = parser.next_event()
        except h11.RemoteProtocolError as error:
            raise Refused(error.error_status_hint, f"not HTTP: {error}") from error
        assert isinstance(event, h11.Request)
        self._is_head = event.method == b"HEAD"
        is_secure = isinstance(self.stream, TLSStream)
        request = parse_request(event, self.guest.address, is_secure=is_secure)
        refuse_body(request)
        self._is_last, self._version = request.wants_close, request.version
        return request

    async def _read_head(self) -> bytes | None:
        """Return a request's line and headers; None if the client left before the end.

        Each byte is looked at once, however small the pieces that come.
        """
        start = seen = lines = 0  # (empty lines before a request are skipped: RFC 9112)
        while True:
            while self._unread.startswith((b"\r", b"\n"), start):
                start += 1
            found = _END.search(self._unread, max(start, seen - 2))
            end = found.end() if found else len(self._unread)
            lines += self._unread.count(b"\n", seen, end)
            if end > MAX_HEADER or lines > MAX_LINES:
                raise Refused(431, "the request's headers are too long")
            if _CONTROL.search(self._unread, max(seen - 1, 0), end):
                raise Refused(400, "not HTTP: a control character is in it")
            if found is not None:
                del found  # (the match holds the memory, which is to shrink)
                head = bytes(self._unread[start:end])
                del self._unread[:end]
                return head
            seen = end
            if not await self._read():
                return None

    async def _read(self) -> bool:
        """Read a piece; False at the end."""
        try:
            self._unread += await self.stream.receive(READ_SIZE)
        except anyio.EndOfStream:
            return False
        await anyio.lowlevel.checkpoint()
        return True

    # -- answers ------------------------------------------------------------------

    async def respond(self, status: int, body: bytes, headers: Headers) -> None:
        """Send a whole answer, without its body if the method is HEAD.

        For HEAD, an empty body stands for an endless one, which has no length.
        """
        if body or not self._is_head:
            headers = {**headers, "Content-Length": str(len(body))}
        await self._send(status, headers, b"" if self._is_head else body)

    async def refuse(self, refusal: Refused) -> None:
        """Send an error, in such a way that the client can read it."""
        if self._is_answered:
            return
        self._is_last = True
        await self.respond(refusal.status, refusal.body, refusal.headers)
        await self._say_goodbye()

    async def begin(self, status: int, headers: Headers, length: int) -> None:
        """Begin an answer of ``length`` bytes, which the caller sends itself.

        For HEAD the caller sends no bytes.
        """
        await self._send(status, {**headers, "Content-Length": str(length)})

    async def start(self, headers: Headers) -> Viewer:
        self._is_last = True
        is_chunked = self._version != "1.0"
        if is_chunked:
            headers = {**headers, "Transfer-Encoding": "chunked"}
        await self._send(200, headers)
        self._buffer_little()
        size = socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD
        self.stream._raw_socket.setsockopt(*size)
        return _Endless(self.stream, is_chunked=is_chunked)

    async def accept(self, request: Request) -> WebSocket:
        headers = {**accepting(request), "Connection": "Upgrade"}
        self._is_last = True
        await self._send(101, headers)
        self._buffer_little()
        self._has_websocket = True
        return WebSocket(self.stream, bytes(self._unread))

    async def part(self) -> None:
        """End the connection if it has become a WebSocket."""
        if self._has_websocket:
            await self._say_goodbye()

    def _buffer_little(self) -> None:
        """Let the kernel keep little: what waits there is late for a slow viewer."""
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            low = socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT
            self.stream._raw_socket.setsockopt(*low)

    async def _send(self, status: int, headers: Headers, body: bytes = b"") -> None:
        self._is_answered = True
        self._on_answer(status)
        fields = {**COMMON_HEADERS}
        if self._is_last:
            fields["Connection"] = "close"
        elif self._version == "1.0":
            fields["Connection"] = "keep-alive"
        fields.update(headers)
        lines = [f"{name}: {value}" for name, value in fields.items()]
        first = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"
        head = "\r\n".join([first, *lines, "", ""]).encode("latin-1")
        with anyio.fail_after(SEND_SECONDS):
            await self.stream.send(head + body)

    async def _say_goodbye(self) -> None:
        """Close our half, and read until theirs is closed.

        A socket that is closed with bytes unread sends RST, which may overtake our
        answer.
        """
        with anyio.move_on_after(GOODBYE_SECONDS):
            await self.stream.send_eof()
            with contextlib.suppress(*PEER_LEFT):
                for _ in range(GOODBYE_BYTES // READ_SIZE):
                    await self.stream.receive(READ_SIZE)


class _Endless:
    """An answer that has no end, and its viewer."""

    def __init__(self, stream: HttpStream, *, is_chunked: bool) -> None:
        self.stream = stream
        self.wrap = in_a_chunk if is_chunked else as_it_is
        self.link: Link = Link()

    async def wait_left(self) -> None:
        """Discard what comes, until the viewer closes its half or has said too much."""
        for _ in range(MAX_WORDS):
            await self.stream.receive(READ_SIZE)

    async def close(self, code: int, reason: str) -> None:
        if self.wrap is in_a_chunk:
            with anyio.move_on_after(CLOSE_SECONDS):
                await self.stream.send(_LAST_CHUNK)


def in_a_chunk(buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    length = sum(memoryview(buffer).nbytes for buffer in buffers)
    return (b"%x\r\n" % length, *buffers, b"\r\n")


def _until(latest: float, seconds: float) -> anyio.CancelScope:
    return anyio.CancelScope(deadline=min(latest, anyio.current_time() + seconds))
