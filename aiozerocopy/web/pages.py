"""What the server has besides pictures: the page, its health, status and metrics."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from aiozerocopy.web import assets, metrics
from aiozerocopy.web.metrics import Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from aiozerocopy.broadcast import Broadcast
    from aiozerocopy.web.exchange import Exchange
    from aiozerocopy.web.modes import Modes, Route
    from aiozerocopy.web.request import Request


class Pages:
    """Answers from memory: the packaged page, /healthz, /status, /metrics.

    ``server_metrics`` gives those of the server itself.
    """

    def __init__(
        self,
        hub: Broadcast,
        modes: Modes,
        server_metrics: Callable[[], Iterable[Metric]],
        title: str,
    ) -> None:
        self._hub = hub
        self._modes = modes
        self._server_metrics = server_metrics
        self._title = title
        self.routes: dict[str, Route] = {
            "/": self._send_page,
            **dict.fromkeys(assets.PARTS, self._send_part),
            "/healthz": self._send_health,
            "/metrics": self._send_metrics,
            "/status": self._send_status,
        }

    async def _send_page(self, exchange: Exchange, _request: Request) -> None:
        page = assets.filled(assets.PAGE, title=self._title).encode()
        await exchange.respond(200, page, assets.headers(assets.PAGE))

    async def _send_part(self, exchange: Exchange, request: Request) -> None:
        name = assets.PARTS[request.path]
        await exchange.respond(200, assets.content(name), assets.headers(name))

    async def _send_health(self, exchange: Exchange, _request: Request) -> None:
        await exchange.respond(200, b"ok\n", {"Content-Type": "text/plain"})

    async def _send_status(self, exchange: Exchange, _request: Request) -> None:
        status = {
            "title": self._title,
            "modes": self._modes.modes,
            "sequence": self._hub.sequence,
            "viewers": self._modes.viewers,
            "full": self._modes.is_full,
            "now_us": time.time_ns() // 1000,
        }
        body = json.dumps(status).encode()
        await exchange.respond(200, body, {"Content-Type": "application/json"})

    async def _send_metrics(self, exchange: Exchange, _request: Request) -> None:
        body = metrics.as_page(self._metrics())
        await exchange.respond(200, body, {"Content-Type": metrics.CONTENT_TYPE})

    def _metrics(self) -> Iterator[Metric]:
        yield Metric(
            "frames_published_total",
            "counter",
            "Frames that were published to the hub.",
            [({}, self._hub.sequence)],
        )
        yield from self._modes.metrics()
        yield from self._server_metrics()
