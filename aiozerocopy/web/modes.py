"""The modes: which of them are offered, who watches, and what each viewer was sent.

A viewer that stops reading is disconnected after a while.  Until then a bounded number
of frames is kept for it, by the hub or by an encoder.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import anyio

from aiozerocopy._net.admission import Crowd
from aiozerocopy._net.connecting import is_async
from aiozerocopy._net.foreign_streams import drop_stream
from aiozerocopy.web import jpeg
from aiozerocopy.web.codecs import CODECS
from aiozerocopy.web.encoders import find_encoders
from aiozerocopy.web.exchange import CANNOT, GOING_AWAY, as_it_is, first_to_end
from aiozerocopy.web.fit import ENOUGH, Fit
from aiozerocopy.web.pixels import raw
from aiozerocopy.web.planes import Planes
from aiozerocopy.web.renditions import PacketQueue, make_renditions
from aiozerocopy.web.request import Refused
from aiozerocopy.web.settings import check

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from aiozerocopy._net.admission import Guest
    from aiozerocopy.broadcast import Broadcast, Client, Encode, Event, Published
    from aiozerocopy.web.exchange import Exchange, Viewer, Wrap
    from aiozerocopy.web.renditions import Rendition
    from aiozerocopy.web.request import Request

    Route = Callable[[Exchange, Request], Awaitable[None]]

PATHS = {"h264": "/h264", "av1": "/av1", "mjpeg": "/stream.mjpg", "raw": "/raw"}

SPARE = 64  # connections of our server beyond twice its limit of viewers

_VIEWER_LEFT = 2  # `Modes._show` returns this when the viewer has left


class Modes:
    """The modes, and their viewers, at most ``max_viewers`` at a time."""

    def __init__(
        self,
        hub: Broadcast,
        modes: Sequence[str],
        quality: int,
        patience: float,
        max_viewers: int,
        max_per_address: int | None,
        *,
        hardware: bool = False,
    ) -> None:
        """Raises: ValueError, for an unknown mode, or if none can be offered here."""
        check(hub=hub, modes=modes, quality=quality, patience=patience)
        check(max_viewers=max_viewers, max_per_address=max_per_address)
        check(hardware=hardware)
        self._hub = hub
        self._patience = patience
        # Our server enters each connection here, other servers only each viewer.
        self.crowd: Crowd = Crowd(max_viewers, max_per_address, 2 * max_viewers + SPARE)
        self._feeds: WeakKeyDictionary[HubFeed | PacketFeed, str] = WeakKeyDictionary()
        self._closing = anyio.Event()
        planes = Planes()
        compress = jpeg.find_compressor() if "mjpeg" in modes else None
        offered: dict[str, Route] = {}
        for mode, codec in CODECS.items():
            if mode not in modes:
                continue
            encoders = find_encoders(codec, hardware=hardware)
            if encoders is not None:
                of = make_renditions(hub, planes, encoders, codec)
                offered[mode] = partial(self._show_coded, mode, of)
        if compress:
            each = (quality, jpeg.lower(quality))
            both = [jpeg.JpegEncoder(compress, quality) for quality in each]
            offered["mjpeg"] = partial(self._show_mjpeg, both)
        if "raw" in modes:
            offered["raw"] = self._show_raw
        self.modes: tuple[str, ...] = tuple(offered)
        self.routes: dict[str, Route] = {
            PATHS[mode]: partial(self._admit, show) for mode, show in offered.items()
        }
        if not self.modes:
            raise ValueError(f"none of {list(modes)} can be offered here")
        self._past = {mode: Counter[str]() for mode in self.modes}
        self._encoders: dict[tuple[Encode, Wrap], Encode] = {}

    def check_hub(self) -> None:
        """Raises: RuntimeError: an encoder is offered, and the hub was not entered."""
        if self._hub._tasks is None and self.modes != ("raw",):
            raise RuntimeError("enter the hub first: `async with hub:`")

    def close(self) -> None:
        """End every viewer's stream."""
        self._closing.set()

    @property
    def viewers(self) -> int:
        return len(self._feeds)

    async def _admit(self, show: Route, exchange: Exchange, request: Request) -> None:
        if self._hub._closed:
            raise Refused(503, "the stream has ended")
        # (under another server a viewer is a guest here for as long as it watches)
        with seated(self.crowd, exchange.guest or self.crowd.enter(request.peer)):
            await show(exchange, request)

    # -- each way -----------------------------------------------------------------

    async def _show_raw(self, exchange: Exchange, request: Request) -> None:
        await self._show_frames(await exchange.accept(request), [raw], "raw")

    async def _show_frames(
        self, viewer: Viewer, of: Sequence[Encode], mode: str
    ) -> None:
        of = [self._for(viewer, encode) for encode in of]
        feed = HubFeed(self._hub, viewer, of, self._patience)
        if await self._show(viewer, feed, mode) != _VIEWER_LEFT:
            await viewer.close(GOING_AWAY, "the end")

    async def _show_coded(
        self,
        mode: str,
        of: Sequence[Rendition],
        exchange: Exchange,
        request: Request,
    ) -> None:
        viewer = await exchange.accept(request)
        feed = PacketFeed(of, viewer, self._patience)
        await self._show(viewer, feed, mode)
        if feed.is_over and not self._hub._closed:
            await viewer.close(CANNOT, f"{CODECS[mode].title} cannot be encoded here")
        await viewer.close(GOING_AWAY, "the end")

    async def _show_mjpeg(
        self, of: Sequence[jpeg.JpegEncoder], exchange: Exchange, request: Request
    ) -> None:
        """Send JPEG over a WebSocket if one is asked for, else as multipart."""
        headers = {"Content-Type": jpeg.CONTENT_TYPE}
        if request.method == "HEAD":
            await exchange.respond(200, b"", headers)
        elif request.wants_websocket:
            viewer = await exchange.accept(request)
            messages = [encoder.message for encoder in of]
            await self._show_frames(viewer, messages, "mjpeg")
        else:
            viewer = await exchange.start(headers)
            await self._show_frames(viewer, [of[0].part], "mjpeg")

    def _for(self, viewer: Viewer, encode: Encode) -> Encode:
        """Return the encoder that all viewers with this ``wrap`` share.

        The hub calls it once for all of them.
        """
        key = (encode, viewer.wrap)
        if key not in self._encoders:
            self._encoders[key] = wrapped(*key)
        return self._encoders[key]

    async def _show(self, viewer: Viewer, feed: HubFeed | PacketFeed, mode: str) -> int:
        """Wait until one of these ends: the feed, the server, or the viewer's stay."""
        stay = viewer.wait_left, viewer.link.tick
        try:
            self._feeds[feed] = mode
            return await first_to_end(feed.run, self._closing.wait, *stay)
        finally:
            feed.close()
            self._feeds.pop(feed, None)
            self._past[mode] = self._past[mode] + feed.counts

    # -- statistics ---------------------------------------------------------------

    def counts(self) -> dict[str, Counter[str]]:
        """Return, by mode, the number of viewers now, and what all viewers so far got.

        ``sent`` and ``dropped`` count frames, ``bytes_sent`` bytes.
        """
        counts = dict(self._past)
        for feed, mode in self._feeds.items():
            counts[mode] = counts[mode] + feed.counts + Counter(viewers=1)
        return counts


# ---- feeds: they send frames to one viewer, from the hub or an encoder --------------


class HubFeed:
    """Frames from the hub for one viewer: always the newest, and always whole.

    The next frame waits until the viewer's `Link` takes it.  If there are several
    encodings, the first of them is the best, and the viewer gets the one that fits its
    link.
    """

    def __init__(
        self, hub: Broadcast, viewer: Viewer, of: Sequence[Encode], patience: float
    ) -> None:
        self._link = viewer.link
        self._encodings = of
        self._fit = Fit(self._link, last=len(of) - 1)
        self._attach = partial(
            hub.attach, viewer.stream, deadline=patience, on_event=self._note
        )
        self._past = Counter[str]()  # of former clients
        self._join()
        self._link.on_change = self._look

    def _join(self) -> None:
        """Raises: StreamClosed."""
        self._number = self._fit.number
        self._sent_bytes = self._nbytes = 0  # in all, and of the last frame
        self._was_dropped = False
        self._client = self._attach(encode=self._encodings[self._number])

    def _note(self, client: Client, event: Event, sequence: int) -> None:
        if client.closed:  # also a former client, whose last frame was on its way
            return
        if event == "sent":
            total, self._sent_bytes = self._sent_bytes, client.stats.bytes_sent
            self._nbytes = self._sent_bytes - total
            self._link.send(sequence, self._nbytes)
            client._hold(not self._link.takes(self._nbytes))
        elif self._link.takes(self._nbytes):
            return  # (the encoder has taken a newer frame)
        elif not self._was_dropped:
            self._fit.fall()
            if self._fit.carried < ENOUGH:
                self._fit.move_down()
        self._was_dropped = event == "dropped"
        self._fit.see(self._nbytes)

    def _look(self) -> None:
        if self._fit.number != self._number:
            self._client.detach()  # `run` then attaches a new client
        else:
            self._client._hold(not self._link.takes(self._nbytes))

    async def run(self) -> None:
        """Send frames until the viewer has left, or was too slow."""
        while True:
            await self._client.wait_closed()
            if self._client.error or self._fit.number == self._number:
                return
            self._past = self.counts
            self._join()

    def close(self) -> None:
        self._client.detach()

    @property
    def counts(self) -> Counter[str]:
        stats = self._client.stats
        return self._past + Counter(
            sent=stats.sent, dropped=stats.dropped, bytes_sent=stats.bytes_sent
        )


class PacketFeed:
    """H.264 or AV1 for one viewer, in the rendition that fits its link."""

    def __init__(
        self, of: Sequence[Rendition], viewer: Viewer, patience: float
    ) -> None:
        self._viewer = viewer
        self._patience = patience
        self._counts = Counter[str]()
        self._queue = PacketQueue(viewer.link, of)
        self.is_over: bool = False  # nothing is encoded any more

    async def run(self) -> None:
        stream = self._viewer.stream
        while (packet := await self._queue.next()) is not None:
            buffers = self._viewer.wrap(packet.buffers)
            try:
                with anyio.fail_after(self._patience):
                    await stream.send(*buffers)
            except TimeoutError:
                await drop_stream(stream)
                raise
            self._counts.update(sent=int(packet.is_picture), bytes_sent=packet.nbytes)
        self.is_over = True

    def close(self) -> None:
        self._queue.leave()

    @property
    def counts(self) -> Counter[str]:
        return self._counts + Counter(dropped=self._queue.dropped)


@contextlib.contextmanager
def seated(crowd: Crowd, guest: Guest) -> Iterator[None]:
    """A block in which a client watches or downloads.

    Raises: Refused, if too many do.
    """
    if not crowd.seat(guest):
        raise Refused(503, "too many are watching", {"Retry-After": "10"})
    try:
        yield
    finally:
        crowd.stand(guest)


def wrapped(encode: Encode, wrap: Wrap) -> Encode:
    """Return an encoder whose messages are ready to be sent."""
    make: Any = encode
    if wrap is as_it_is:
        return encode

    def at_once(frame: Published) -> Any:
        return wrap(make(frame))

    async def slowly(frame: Published) -> Any:
        return wrap(await make(frame))

    return slowly if is_async(encode) else at_once
