"""The ways to watch: which are offered, who uses them, and what those got."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio

from aiozerocopy.web import jpeg
from aiozerocopy.web.h264 import H264Encoder, ffmpeg_if_any
from aiozerocopy.web.metrics import Metric
from aiozerocopy.web.pictures import raw
from aiozerocopy.web.viewers import (
    Counts,
    Feed,
    HubFeed,
    PacketFeed,
)
from aiozerocopy.web.waiting import first_to_end, until_silent
from aiozerocopy.web.websocket import CLOSE_SECONDS, WebSocket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from anyio.abc import TaskGroup

    from aiozerocopy.broadcast import Broadcast
    from aiozerocopy.web.http import HttpConnection, Request

    Route = Callable[[HttpConnection, Request], Awaitable[None]]

# In the order in which a browser should try them, and where they are.
PATHS = {"h264": "/h264", "mjpeg": "/stream.mjpg", "raw": "/raw"}
PING_SECONDS = 20.0

_FEED_ENDED, _VIEWER_LEFT = 0, 2  # what `Modes._show` returns
GOING_AWAY, CANNOT = 1001, 4406  # why a WebSocket is closed


class Modes:
    """What can be watched here, and those who do."""

    def __init__(
        self, hub: Broadcast, modes: Sequence[str], quality: int, patience: float
    ) -> None:
        """Raises: ValueError, for an unknown mode, or if none can be offered here."""
        if not modes or set(modes) - set(PATHS):
            raise ValueError(f"modes are some of {', '.join(PATHS)}, not {list(modes)}")
        self._hub = hub
        self._patience = patience
        self._closing = anyio.Event()
        self._h264: H264Encoder | None = None
        self._ffmpeg = ffmpeg_if_any() if "h264" in modes else None
        compress = jpeg.find_compressor() if "mjpeg" in modes else None
        self._jpeg = jpeg.JpegEncoder(compress, quality) if compress else None
        handlers: dict[str, Route | None] = {
            "h264": self._show_h264 if self._ffmpeg else None,
            "mjpeg": self._show_mjpeg if self._jpeg else None,
            "raw": self._show_raw if "raw" in modes else None,
        }
        self.routes = {PATHS[mode]: show for mode, show in handlers.items() if show}
        self.modes = tuple(mode for mode in PATHS if PATHS[mode] in self.routes)
        if not self.modes:
            raise ValueError(f"none of {list(modes)} can be offered here")
        self._feeds: dict[Feed, str] = {}
        self._past = dict.fromkeys(self.modes, Counts())

    def open(self, tasks: TaskGroup) -> None:
        """Encoders run in this task group."""
        if self._ffmpeg is not None:
            self._h264 = H264Encoder(self._hub, self._ffmpeg, tasks)

    def close(self) -> None:
        """End what every viewer gets."""
        self._closing.set()

    @property
    def viewers(self) -> int:
        """How many watch now."""
        return len(self._feeds)

    # -- each way -----------------------------------------------------------------

    async def _show_raw(self, http: HttpConnection, request: Request) -> None:
        websocket = await WebSocket.accept(http, request)
        feed = HubFeed(self._hub, http.stream, raw, self._patience)
        await self._show_over(websocket, feed, "raw")
        await websocket.close(GOING_AWAY, "the end")

    async def _show_h264(self, http: HttpConnection, request: Request) -> None:
        assert self._h264 is not None
        websocket = await WebSocket.accept(http, request)
        feed = PacketFeed(self._h264, http.stream, self._patience)
        if await self._show_over(websocket, feed, "h264") == _FEED_ENDED:
            await websocket.close(CANNOT, "H.264 cannot be encoded here")
        await websocket.close(GOING_AWAY, "the end")

    async def _show_mjpeg(self, http: HttpConnection, request: Request) -> None:
        assert self._jpeg is not None
        headers = {"Content-Type": jpeg.CONTENT_TYPE}
        if request.method == "HEAD":
            await http.respond(200, b"", headers)
            return
        is_chunked = await http.start(headers)
        encode = self._jpeg.chunked if is_chunked else self._jpeg.plain
        feed = HubFeed(self._hub, http.stream, encode, self._patience)
        left = partial(until_silent, http.stream)
        has_left = await self._show(feed, "mjpeg", left) == _VIEWER_LEFT
        if is_chunked and not has_left:
            with anyio.move_on_after(CLOSE_SECONDS):
                await http.stream.send(jpeg.LAST_CHUNK)

    async def _show_over(self, websocket: WebSocket, feed: Feed, mode: str) -> int:
        return await self._show(
            feed, mode, websocket.listen, partial(_until_dead, websocket)
        )

    async def _show(
        self, feed: Feed, mode: str, *ends: Callable[[], Awaitable[object]]
    ) -> int:
        """Until one of these ends: the feed, the server, or one of the others."""
        self._feeds[feed] = mode
        try:
            return await first_to_end(feed.run, self._closing.wait, *ends)
        finally:
            feed.close()
            del self._feeds[feed]
            self._past[mode] += feed.counts

    # -- statistics ---------------------------------------------------------------

    def metrics(self) -> Iterator[Metric]:
        """Counters for each mode."""
        counts = dict(self._past)
        watching = dict.fromkeys(self.modes, 0)
        for feed, mode in self._feeds.items():
            counts[mode] += feed.counts
            watching[mode] += 1

        def each(value: Callable[[str], float]) -> list[tuple[dict[str, str], float]]:
            return [({"mode": mode}, value(mode)) for mode in self.modes]

        yield Metric(
            "web_viewers", "gauge", "Who watches.", each(lambda m: watching[m])
        )
        yield Metric(
            "web_frames_sent_total",
            "counter",
            "Frames that viewers were sent.",
            each(lambda mode: counts[mode].sent),
        )
        yield Metric(
            "web_frames_dropped_total",
            "counter",
            "Frames that were skipped for slow viewers.",
            each(lambda mode: counts[mode].dropped),
        )
        yield Metric(
            "web_sent_bytes_total",
            "counter",
            "Bytes of those frames.",
            each(lambda mode: counts[mode].bytes),
        )


async def _until_dead(websocket: WebSocket) -> None:
    """Until a viewer does not answer a ping: half of the connection is gone."""
    while websocket.is_alive:
        await websocket.ask_for_life()
        await anyio.sleep(PING_SECONDS)
