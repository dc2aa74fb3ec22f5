"""The viewer as an ASGI 3 application: see `app`.

A request is one call of the application, in the server's task.  A slow viewer holds up
that task only; the hub decides which frames it misses.

Why a viewer's call ends, and what this application then sends to the server:
    it left                  nothing
    this application closes  a WebSocket's close, or the end of the answer
    it was too slow          the same, once it has read what is on its way, as an
                             application cannot drop a connection.  Until it reads or
                             leaves, it counts as one of ``max_viewers``
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

import anyio

from aiozerocopy._core.errors import StreamClosed
from aiozerocopy.web.exchange import (
    MAX_MESSAGE,
    MAX_WORDS,
    POLICY_VIOLATION,
    TOO_BIG,
    UPGRADE,
    ForeignViewer,
    Talk,
    breaking,
    first_to_end,
)
from aiozerocopy.web.guard import Guard
from aiozerocopy.web.modes import Modes
from aiozerocopy.web.request import (
    COMMON_HEADERS,
    SEND_SECONDS,
    Refused,
    Request,
    decoded,
    fields_of,
)
from aiozerocopy.web.settings import MODES, PATIENCE, VIEWERS
from aiozerocopy.web.site import Site

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping, Sequence

    from aiozerocopy.broadcast import Broadcast
    from aiozerocopy.web.exchange import Viewer
    from aiozerocopy.web.request import Headers

    Scope: TypeAlias = MutableMapping[str, Any]
    Message: TypeAlias = MutableMapping[str, Any]
    Receive: TypeAlias = Callable[[], Awaitable[Message]]
    Send: TypeAlias = Callable[[Message], Awaitable[None]]


def app(
    hub: Broadcast,
    *,
    token: str | Sequence[str] | None = None,
    title: str = "aiozerocopy",
    modes: Sequence[str] = MODES,
    hardware: bool = False,
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    quality: int = 80,
    max_viewers: int = VIEWERS,
    max_per_address: int | None = None,
    patience: float = PATIENCE,
) -> WebApp:
    """The page of `serve` as an ASGI application, to mount in another or to run alone.

        api.mount("/viewer", azc.web.app(hub))

    Enter the hub (``async with``) in the server's event loop, such as in the lifespan
    of the application around this one.

    ``token``, ``title``, ``modes``, ``hardware``, ``origins``, ``quality`` and
    ``patience`` are those of `serve`.  So are ``hosts``, without which requests for any
    address and for this machine's name are answered, and with a token those for every
    name; ``hosts=["*"]`` leaves names to the application around this one.  While
    ``max_viewers`` watch, or ``max_per_address`` from one address (by default half of
    them; 127.0.0.1 and ::1 have no such limit), the page tells others that too many are
    watching, and tries again.

    The server gets copies: of JPEG and raw frames one for all its viewers, of H.264 and
    AV1 one for each.  It may copy again.

    Raises:
        TypeError, ValueError: a wrong setting, or no mode that can be offered here.
    """
    limits = max_viewers, max_per_address
    ways = Modes(hub, modes, quality, patience, *limits, hardware=hardware)
    return WebApp(Site(hub, ways, Guard(None, token, hosts, origins), title))


class WebApp:
    """What `app` returns: call it as ASGI says."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._modes = site.modes

    @property
    def viewers(self) -> int:
        """How many watch now."""
        return self._modes.viewers

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that are offered, the best first."""
        return self._modes.modes

    def close(self) -> None:
        """End the stream of every viewer.

        At the end of its own lifespan the application does this itself.  A mounted one
        has no lifespan: call this at the end of the outer application's.
        """
        self._modes.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or live through a lifespan.

        Raises:
            ValueError: a scope of another kind.
            RuntimeError: the hub is not entered, and an encoder needs that.
        """
        kind = scope["type"]
        if kind == "lifespan":
            await self._live(receive, send)
        elif kind in _EXCHANGES:
            exchange = _EXCHANGES[kind](scope, receive, send, self._site.count)
            await self._site.serve(exchange, lambda: request_of(scope))
        else:
            raise ValueError(f"a scope of type {kind!r} is not supported")

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self.close()
        await send({"type": "lifespan.shutdown.complete"})


def request_of(scope: Scope) -> Request:
    """Raises: Refused, for an invalid address, or one without its last slash."""
    headers = decoded(scope["headers"])
    query = (scope.get("query_string") or b"").decode("latin-1")
    return Request(
        method=scope.get("method", "GET"),
        authority=headers.get("host", ""),
        path=_path_in(scope, query),
        query=fields_of(query),
        headers=headers,
        version=scope.get("http_version", "1.1"),
        wants_websocket=scope["type"] == "websocket",
        peer=(scope.get("client") or ("",))[0] or "",
        is_secure=scope.get("scheme") in ("https", "wss"),
    )


def _path_in(scope: Scope, query: str) -> str:
    """Return the path below the one where the application is mounted.

    Raises: Refused, if that has no slash: a browser would look for the page's parts in
    the folder above.
    """
    path: str = scope["path"]
    root: str = (scope.get("root_path") or "").rstrip("/")
    # (some servers cut the root off, others do not)
    below = path[len(root) :] if f"{path}/".startswith(f"{root}/") else path
    name = (path or root).rpartition("/")[2]
    if below or not name:
        return below or "/"
    place = f"./{quote(name)}/"
    rest = quote(query, safe="%/?:@!$&'()*+,;=", encoding="latin-1")
    target = f"{place}?{rest}" if rest else place
    raise Refused(307, f"the page is at {place}", {"Location": target})


class _Exchange(ForeignViewer):
    """One call of the application: a request, and its viewer if it gets one."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, count: Callable[[int], object]
    ) -> None:
        super().__init__()
        self._scope = scope
        self._receive = receive
        self._send = send
        self._count = count

    async def _say(self, kind: str, **fields: object) -> None:
        with breaking():
            await self._send({"type": kind, **fields})

    async def _begin(self, kind: str, status: int, headers: Headers) -> None:
        self._count(status)
        raw = [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in {**COMMON_HEADERS, **headers}.items()
        ]
        await self._say(kind, status=status, headers=raw)

    async def _outlast(self, code: int, reason: str) -> None:
        await first_to_end(partial(self._say_goodbye, code, reason), self._until_gone)

    async def _until_gone(self) -> None:
        while not (await self._receive())["type"].endswith(".disconnect"):
            pass
        self.is_over = True


class _Http(_Exchange):
    """One request, which gets a whole answer or one that has no end."""

    async def respond(self, status: int, body: bytes, headers: Headers) -> None:
        if body:
            headers = {**headers, "Content-Length": str(len(body))}
        with anyio.fail_after(SEND_SECONDS):
            await self._begin("http.response.start", status, headers)
            rest = b"" if self._scope["method"] == "HEAD" else body
            await self._say("http.response.body", body=rest)

    async def start(self, headers: Headers) -> Viewer:
        with anyio.fail_after(SEND_SECONDS):
            await self._begin("http.response.start", 200, headers)
        return self

    async def accept(self, request: Request) -> Viewer:
        raise Refused(426, "this is for WebSockets only", UPGRADE)

    async def _deliver(self, data: bytes) -> None:
        await self._say("http.response.body", body=data, more_body=True)

    async def wait_left(self) -> None:
        for _ in range(MAX_WORDS):
            if (await self._receive())["type"] == "http.disconnect":
                self.is_over = True
                break

    async def _say_goodbye(self, code: int, reason: str) -> None:
        await self._say("http.response.body", body=b"")


class _WebSocket(_Exchange):
    """A WebSocket, which gets a refusal or is accepted."""

    async def _connect(self) -> None:
        if (await self._receive())["type"] != "websocket.connect":
            raise StreamClosed("the viewer has left")

    async def accept(self, request: Request) -> Viewer:
        await self._connect()
        with anyio.fail_after(SEND_SECONDS):
            self._count(101)
            await self._say("websocket.accept", headers=[])
        return self

    async def respond(self, status: int, body: bytes, headers: Headers) -> None:
        if status == 200:
            raise Refused(404, "there is no WebSocket here")
        await self._connect()
        with anyio.fail_after(SEND_SECONDS):
            if "websocket.http.response" in (self._scope.get("extensions") or {}):
                await self._begin("websocket.http.response.start", status, headers)
                await self._say("websocket.http.response.body", body=body)
            else:
                self._count(403)  # what the server sends then
                await self._say("websocket.close", code=POLICY_VIOLATION)

    async def start(self, headers: Headers) -> Viewer:
        raise Refused(404, "there is no WebSocket here")

    async def _deliver(self, data: bytes) -> None:
        await self._say("websocket.send", bytes=data)

    async def wait_left(self) -> None:
        talk = Talk()
        while (message := await self._receive())["type"] == "websocket.receive":
            said = message.get("bytes") or message.get("text") or ""
            self.link.hear(said)
            if len(said) > MAX_MESSAGE:
                await self.close(TOO_BIG, "the message is too long")
            elif talk.is_too_fast():
                await self.close(POLICY_VIOLATION, "too many messages")
            if not self.is_open:
                return
        self.is_open, self.is_over = False, True

    async def _say_goodbye(self, code: int, reason: str) -> None:
        await self._say("websocket.close", code=code, reason=reason)


_EXCHANGES: dict[str, type[_Http] | type[_WebSocket]] = {
    "http": _Http,
    "websocket": _WebSocket,
}
