"""What is offered to whom: the same behind our own server, ASGI and aiohttp."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from aiozerocopy.web.metrics import Metric
from aiozerocopy.web.modes import PATHS, Modes
from aiozerocopy.web.pages import Pages
from aiozerocopy.web.request import Refused, refuse_body
from aiozerocopy.web.waiting import PEER_LEFT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from aiozerocopy.broadcast import Broadcast
    from aiozerocopy.web.exchange import Exchange, ForeignExchange
    from aiozerocopy.web.guard import Guard
    from aiozerocopy.web.request import Request

MODES = tuple(PATHS)
PATIENCE = 15.0  # seconds that one frame may take to a viewer
VIEWERS = 256


class Site:
    """The page, the ways to watch, health, status and metrics, for who may see them."""

    def __init__(
        self,
        hub: Broadcast,
        modes: Modes,
        guard: Guard,
        title: str,
        server_metrics: Callable[[], Iterable[Metric]] = tuple,
    ) -> None:
        self._modes = modes
        self._guard = guard
        self._server_metrics = server_metrics
        self._routes = {
            **modes.routes,
            **Pages(hub, modes, self._metrics, title).routes,
        }
        self._answers: collections.Counter[int] = collections.Counter()

    async def answer(self, exchange: Exchange, request: Request) -> None:
        """Raises: Refused."""
        self.check(request)
        handler = self._routes.get(request.path)
        if handler is None:
            raise Refused(404, "there is no such page")
        if request.wants_websocket:
            self._guard.check_origin(request)
        await handler(exchange, request)

    def check(self, request: Request) -> None:
        """Raises: Refused, whatever was asked for."""
        self._guard.check(request)
        if request.method not in ("GET", "HEAD"):
            raise Refused(405, "GET or HEAD", {"Allow": "GET, HEAD"})

    async def serve(
        self, exchange: ForeignExchange, read: Callable[[], Request]
    ) -> None:
        """Answer a request that another server took; return too if the client left."""
        try:
            try:
                request = read()
                refuse_body(request)
                await self.answer(exchange, request)
            except Refused as refusal:
                await exchange.refuse(refusal)
        except PEER_LEFT:
            pass

    def count(self, status: int) -> None:
        """An answer has begun."""
        self._answers[status] += 1

    def _metrics(self) -> Iterator[Metric]:
        yield from self._server_metrics()
        yield Metric(
            "web_responses_total",
            "counter",
            "Answers by their status.",
            [({"code": str(code)}, n) for code, n in sorted(self._answers.items())],
        )
