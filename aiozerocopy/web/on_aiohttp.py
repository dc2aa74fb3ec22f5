"""The viewer as an application of aiohttp: see `aiohttp_app`.

A request is one call of ``answer``, in aiohttp's task.  The connection of a viewer that
is too slow is dropped.  A viewer that leaves is noticed at once if it has a WebSocket,
and otherwise within `LOOK_SECONDS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
from aiohttp import WSMsgType, web

from aiozerocopy.web.exchange import (
    CLOSE_SECONDS,
    MAX_MESSAGE,
    POLICY_VIOLATION,
    UPGRADE,
    ForeignViewer,
    Talk,
    breaking,
)
from aiozerocopy.web.guard import Guard
from aiozerocopy.web.modes import Modes
from aiozerocopy.web.request import COMMON_HEADERS, Refused, Request, fields_of, joined
from aiozerocopy.web.settings import MODES, PATIENCE, VIEWERS
from aiozerocopy.web.site import Site

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozerocopy.broadcast import Broadcast
    from aiozerocopy.web.exchange import Viewer
    from aiozerocopy.web.request import Headers

PING_SECONDS = 20.0
LOOK_SECONDS = 1.0  # between two looks whether a viewer has left


def aiohttp_app(
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
) -> web.Application:
    """`app` for aiohttp: an application to add to another, or to run alone.

        application.add_subapp("/viewer", azc.web.aiohttp_app(hub))

    Enter the hub (``async with``) in the server's event loop, such as in a cleanup
    context.  When aiohttp shuts down, viewers hear that the stream ends.

    Raises:
        TypeError, ValueError: a wrong setting, or no mode that can be offered here.
        ModuleNotFoundError: aiohttp is not installed.
    """
    limits = max_viewers, max_per_address
    ways = Modes(hub, modes, quality, patience, *limits, hardware=hardware)
    site = Site(hub, ways, Guard(None, token, hosts, origins), title)

    async def answer(request: web.Request) -> web.StreamResponse:
        exchange = _Exchange(request, site.count)
        await site.serve(exchange, lambda: request_of(request))
        return exchange.response

    async def end(_application: web.Application) -> None:
        ways.close()

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    application.router.add_route("*", "", _add_slash)  # if mounted below another
    application.on_shutdown.append(end)
    return application


async def _add_slash(request: web.Request) -> web.StreamResponse:
    """Redirect: without a slash, browsers look for parts in the folder above."""
    place = f"./{request.rel_url.raw_name}/"
    query = request.rel_url.raw_query_string
    raise web.HTTPTemporaryRedirect(f"{place}?{query}" if query else place)


def request_of(request: web.Request) -> Request:
    """Raises: Refused, for an invalid address."""
    headers = joined(request.headers.items())
    return Request(
        method=request.method,
        authority=headers.get("host", ""),
        path=f"/{request.match_info['path']}",
        query=fields_of(request.rel_url.raw_query_string),
        headers=headers,
        version=f"{request.version.major}.{request.version.minor}",
        wants_websocket=headers.get("upgrade", "").lower() == "websocket",
        peer=request.remote or "",
        is_secure=request.secure,
    )


class _Exchange(ForeignViewer):
    """One request: its ``response``, which the handler returns, and its viewer.

    aiohttp ends an endless answer when the handler returns.
    """

    def __init__(self, request: web.Request, count: Callable[[int], object]) -> None:
        super().__init__()
        self.response: web.StreamResponse = web.Response(status=500)
        self._request = request
        self._count = count

    async def respond(self, status: int, body: bytes, headers: Headers) -> None:
        self._count(status)
        headers = {**COMMON_HEADERS, **headers}
        if body:
            self.response = web.Response(status=status, body=body, headers=headers)
        else:
            self.response = web.StreamResponse(status=status, headers=headers)

    async def start(self, headers: Headers) -> Viewer:
        self._count(200)
        self.response = web.StreamResponse(headers={**COMMON_HEADERS, **headers})
        with breaking():
            await self.response.prepare(self._request)
        return self

    async def accept(self, request: Request) -> Viewer:
        socket = web.WebSocketResponse(
            timeout=CLOSE_SECONDS,
            heartbeat=PING_SECONDS,
            compress=False,  # pictures gain nothing
            max_msg_size=MAX_MESSAGE,
        )
        if request.method != "GET" or not socket.can_prepare(self._request):
            raise Refused(426, "this is for WebSockets only", UPGRADE)
        self._count(101)
        self.response = socket
        with breaking():
            await socket.prepare(self._request)
        return _WebSocket(self, socket)

    async def _deliver(self, data: bytes) -> None:
        with breaking():
            await self.response.write(data)

    async def wait_left(self) -> None:
        transport = self._request.transport
        while transport is not None and not transport.is_closing():  # noqa: ASYNC110
            await anyio.sleep(LOOK_SECONDS)

    def _drop(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()


class _WebSocket(ForeignViewer):
    def __init__(self, exchange: _Exchange, socket: web.WebSocketResponse) -> None:
        super().__init__()
        self._exchange = exchange
        self._socket = socket

    async def _deliver(self, data: bytes) -> None:
        with breaking():
            await self._socket.send_bytes(data)

    async def wait_left(self) -> None:
        talk = Talk()
        async for message in self._socket:
            if message.type is WSMsgType.ERROR:  # also a message that is too long
                break
            if message.type is WSMsgType.TEXT:
                self.link.hear(message.data)
            if talk.is_too_fast():
                await self.close(POLICY_VIOLATION, "too many messages")
        self.is_open = False

    def _drop(self) -> None:
        self._exchange._drop()

    async def _say_goodbye(self, code: int, reason: str) -> None:
        await self._socket.close(code=code, message=reason.encode())
