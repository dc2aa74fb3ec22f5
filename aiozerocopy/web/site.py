"""The site: the answer to each path, the same under our server, ASGI and aiohttp."""

from __future__ import annotations

import collections
import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from aiozerocopy.web import assets
from aiozerocopy.web.exchange import PEER_LEFT
from aiozerocopy.web.request import Refused, refuse_body
from aiozerocopy.web.settings import check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from aiozerocopy.broadcast import Broadcast
    from aiozerocopy.web.exchange import Exchange
    from aiozerocopy.web.guard import Guard
    from aiozerocopy.web.modes import Modes, Route
    from aiozerocopy.web.request import Request

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


# Metrics of each mode, by their names in `Modes.counts`.
_BY_MODE = {
    "viewers": ("web_viewers", "gauge", "Viewers that watch now."),
    "sent": ("web_frames_sent_total", "counter", "Frames sent to viewers."),
    "dropped": ("web_frames_dropped_total", "counter", "Frames that viewers missed."),
    "bytes_sent": ("web_sent_bytes_total", "counter", "Bytes of those frames."),
}


def metric(
    name: str,
    kind: str,
    text: str,
    values: float | Mapping[Any, float],
    label: str = "",
) -> str:
    """Return a metric in Prometheus's format: one value, or one for each label."""
    name = f"aiozerocopy_{name}"
    lines = [f"# HELP {name} {text}\n", f"# TYPE {name} {kind}\n"]
    if isinstance(values, (int, float)):
        lines.append(f"{name} {values!r}\n")
    else:
        lines += [f'{name}{{{label}="{of}"}} {values[of]!r}\n' for of in values]
    return "".join(lines)


class Site:
    """The page, its modes, health, status and metrics."""

    def __init__(self, hub: Broadcast, modes: Modes, guard: Guard, title: str) -> None:
        check(title=title)
        self.modes = modes
        self.connections: Callable[[], int] | None = None  # open, on our server
        self._hub = hub
        self._guard = guard
        self._title = title
        self._routes: dict[str, Route] = {
            **modes.routes,
            "/": self._send_page,
            **dict.fromkeys(assets.PARTS, self._send_part),
            "/healthz": self._send_health,
            "/metrics": self._send_metrics,
            "/status": self._send_status,
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
        """Check what is the same for every path.  Raises: Refused."""
        self._guard.check(request)
        if request.method not in ("GET", "HEAD"):
            raise Refused(405, "only GET and HEAD are allowed", {"Allow": "GET, HEAD"})

    async def serve(self, exchange: Exchange, read: Callable[[], Request]) -> None:
        """Answer a request that another server received; return if the client left."""
        try:
            try:
                request = read()
                refuse_body(request)
                await self.answer(exchange, request)
            except Refused as refusal:
                await exchange.respond(refusal.status, refusal.body, refusal.headers)
        except PEER_LEFT:
            pass

    def count(self, status: int) -> None:
        """Note that an answer has begun."""
        self._answers[status] += 1

    # -- the pages that are not modes -------------------------------------------------

    async def _send_page(self, exchange: Exchange, request: Request) -> None:
        if "token" in request.query and request.wants_page:
            rest = {name: it for name, it in request.query.items() if name != "token"}
            place = f"./?{urlencode(rest)}" if rest else "./"
            cookie = self._guard.cookie_for(request)
            raise Refused(303, f"the page is at {place}", {"Location": place, **cookie})
        page = assets.filled(assets.PAGE, title=self._title).encode(errors="replace")
        await exchange.respond(200, page, assets.headers(assets.PAGE))

    async def _send_part(self, exchange: Exchange, request: Request) -> None:
        name = assets.PARTS[request.path]
        await exchange.respond(200, assets.content(name), assets.headers(name))

    async def _send_health(self, exchange: Exchange, _request: Request) -> None:
        await exchange.respond(200, b"ok\n", {"Content-Type": "text/plain"})

    async def _send_status(self, exchange: Exchange, request: Request) -> None:
        origin = request.query.get("origin")
        status = {
            "title": self._title,
            "modes": self.modes.modes,
            "sequence": self._hub.sequence,
            "viewers": self.modes.viewers,
            "full": not self.modes.crowd.has_seat(request.peer),
            "now_us": time.time_ns() // 1000,
            "refused": self._guard.reason_against(origin, request),
        }
        body = json.dumps(status).encode()
        kind = {"Content-Type": "application/json"}
        renewed = self._guard.cookie_for(request, renews=True)
        await exchange.respond(200, body, kind | renewed)

    async def _send_metrics(self, exchange: Exchange, _request: Request) -> None:
        page = "".join(self._metrics())
        await exchange.respond(200, page.encode(), {"Content-Type": METRICS_TYPE})

    def _metrics(self) -> Iterator[str]:
        text = "Frames that were published to the hub."
        yield metric("frames_published_total", "counter", text, self._hub.sequence)
        counts = self.modes.counts()
        for what, (name, kind, text) in _BY_MODE.items():
            by_mode = {mode: got[what] for mode, got in counts.items()}
            yield metric(name, kind, text, by_mode, "mode")
        if self.connections is not None:
            text = "Connections that are open."
            yield metric("web_connections", "gauge", text, self.connections())
        text = "Requests refused for their token, host name or origin."
        yield metric("web_refused_total", "counter", text, self._guard.refusals.count)
        text, by_code = "Answers by their status.", dict(sorted(self._answers.items()))
        yield metric("web_responses_total", "counter", text, by_code, "code")
