"""One client's HTTP: requests read under limits, answers with every header they need.

h11 knows the protocol; here are the limits.  A request's header must be small and
complete in time, bodies are not read, and whoever is refused hears why.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import anyio
import h11

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiozerocopy.web.secure import Connection

MAX_HEADER = 16 << 10  # bytes of a request's line and headers
READ_SIZE = 4 << 10
HEADER_SECONDS = 10.0  # from a request's first byte to the end of its headers
IDLE_SECONDS = 30.0  # without a request
SEND_SECONDS = 30.0  # for an answer, which is small: to a client that does not read
GOODBYE_SECONDS = 1.0  # that a refused client has to read why
GOODBYE_BYTES = 256 << 10  # that it may still send meanwhile

# What every answer says: take it for what it is, and tell nobody the address, which
# may hold the token.
COMMON_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}

REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    426: "Upgrade Required",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}

_CONNECTION_LOST = (anyio.BrokenResourceError, anyio.ClosedResourceError)


class Refused(Exception):
    """A request that is answered with an error, and ``text`` to say why."""

    def __init__(
        self, status: int, text: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = dict(headers or {})


@dataclass(frozen=True)
class Request:
    """A request's line and headers, whose names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    target: bytes = b""
    raw_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    version: bytes = b"1.1"

    @property
    def host(self) -> str:
        """The host that the client asked for, in lower case and without the port."""
        try:
            return urlsplit(f"//{self.headers.get('host', '')}").hostname or ""
        except ValueError:
            return ""

    @property
    def wants_websocket(self) -> bool:
        return self.headers.get("upgrade", "").lower() == "websocket"


def parse_request(event: h11.Request) -> Request:
    """Raises: Refused, for a target that is no address."""
    headers = [(bytes(name), bytes(value)) for name, value in event.headers]
    try:
        target = urlsplit(event.target.decode("ascii"))
        query = parse_qs(target.query, max_num_fields=16)
    except ValueError as error:
        raise Refused(400, "the address makes no sense") from error
    return Request(
        method=event.method.decode("ascii"),
        path=target.path,
        query={name: values[-1] for name, values in query.items()},
        headers={
            name.decode("latin-1"): value.decode("latin-1") for name, value in headers
        },
        target=bytes(event.target),
        raw_headers=headers,
        version=bytes(event.http_version),
    )


class HttpConnection:
    """The server's side of one connection; ``on_answer`` hears of every status."""

    def __init__(self, stream: Connection, on_answer: Callable[[int], object]) -> None:
        self.stream = stream
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER)
        self._is_head = False
        self._on_answer = on_answer

    # -- requests -----------------------------------------------------------------

    async def next_request(self) -> Request | None:
        """The next request; None if the client left or had nothing to ask.

        Raises:
            Refused: what came is no request, too long, or too slow.
            StreamBroken: the client broke the connection.
        """
        if self._h11.our_state is h11.DONE:
            if self._h11.their_state is not h11.DONE:
                return None
            self._h11.start_next_cycle()
        elif self._h11.our_state is not h11.IDLE:
            return None
        if not self._h11.trailing_data[0]:
            with anyio.move_on_after(IDLE_SECONDS) as idle:
                if not await self._read():
                    return None
            if idle.cancelled_caught:
                return None
        with anyio.move_on_after(HEADER_SECONDS):
            return await self._read_request()
        raise Refused(408, f"a request must be complete in {HEADER_SECONDS:g} s")

    async def _read_request(self) -> Request | None:
        while True:
            try:
                event = self._h11.next_event()
            except h11.RemoteProtocolError as error:
                raise Refused(error.error_status_hint, f"not HTTP: {error}") from error
            if isinstance(event, h11.Request):
                self._is_head = event.method == b"HEAD"
                request = parse_request(event)
                self._refuse_body(request)
                return request
            if event is not h11.NEED_DATA or not await self._read():
                return None

    def _refuse_body(self, request: Request) -> None:
        length = request.headers.get("content-length", "0")
        if length.strip("0") or "transfer-encoding" in request.headers:
            if request.method in ("GET", "HEAD"):
                raise Refused(413, "nothing here takes a body")
            return  # the method is refused anyhow
        self._h11.next_event()  # the end of a message without a body

    async def _read(self) -> bool:
        """Feed h11; False at the end."""
        try:
            data = await self.stream.receive(READ_SIZE)
        except anyio.EndOfStream:
            return False
        self._h11.receive_data(data)
        return True

    # -- answers ------------------------------------------------------------------

    async def respond(
        self, status: int, body: bytes, headers: Mapping[str, str]
    ) -> None:
        """Send a whole answer, without its body where the method is HEAD."""
        length = {"Content-Length": str(len(body))}
        head = self._head(status, {**headers, **length})
        data = b"" if self._is_head else self._h11.send(h11.Data(data=body))
        end = self._h11.send(h11.EndOfMessage())
        with anyio.fail_after(SEND_SECONDS):
            await self.stream.send(head + (data or b"") + (end or b""))

    async def refuse(self, refusal: Refused) -> None:
        """Send an error, in such a way that the client can read it."""
        if self._h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers = {
            "Content-Type": "text/plain; charset=utf-8",
            "Connection": "close",
            **refusal.headers,
        }
        await self.respond(refusal.status, f"{refusal.text}\n".encode(), headers)
        await self._say_goodbye()

    async def start(self, headers: Mapping[str, str]) -> bool:
        """Begin an answer that has no end, of which the caller sends the rest itself.

        True if that must go in chunks (see `chunk_header`).
        """
        head = self._head(200, headers)
        with anyio.fail_after(SEND_SECONDS):
            await self.stream.send(head)
        return self._h11.their_http_version != b"1.0"

    async def switch(self, answer: bytes) -> None:
        """Answer by another protocol, which has the connection from here on."""
        self._on_answer(101)
        with anyio.fail_after(SEND_SECONDS):
            await self.stream.send(answer)

    def take_over(self) -> bytes:
        """What came after the request; from here on the caller reads the stream."""
        return self._h11.trailing_data[0]

    def _head(self, status: int, headers: Mapping[str, str]) -> bytes:
        self._on_answer(status)
        response = h11.Response(
            status_code=status,
            reason=REASONS.get(status, "").encode(),
            headers=list({**COMMON_HEADERS, **headers}.items()),
        )
        return self._h11.send(response) or b""

    async def _say_goodbye(self) -> None:
        """Close our half, and read until theirs is closed.

        Closed with bytes unread, a socket sends RST, and that may overtake our answer.
        """
        with anyio.move_on_after(GOODBYE_SECONDS):
            await self.stream.send_eof()
            try:
                for _ in range(GOODBYE_BYTES // READ_SIZE):
                    await self.stream.receive(READ_SIZE)
            except (anyio.EndOfStream, *_CONNECTION_LOST):
                pass
