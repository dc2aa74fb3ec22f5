"""Feeds: what sends frames to one viewer, from the hub or from the H.264 encoder.

A viewer that stops reading is disconnected after a while.  Until then the hub or the
encoder keeps a bounded number of frames for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from aiozerocopy.broadcast.encoding import is_slow
from aiozerocopy.web.exchange import as_it_is

if TYPE_CHECKING:
    from aiozerocopy.broadcast import Broadcast, Encode, Published
    from aiozerocopy.web.exchange import Viewer, Wrap
    from aiozerocopy.web.h264 import H264Encoder


@dataclass(frozen=True)
class Counts:
    """What viewers got."""

    sent: int = 0
    dropped: int = 0
    bytes: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.sent + other.sent,
            self.dropped + other.dropped,
            self.bytes + other.bytes,
        )


class Feed(Protocol):
    """Sends frames to one viewer."""

    async def run(self) -> None:
        """Until the viewer left, or was too slow."""

    def close(self) -> None:
        """Send no more."""

    @property
    def counts(self) -> Counts: ...


class HubFeed:
    """Frames from the hub: always the newest, whole ones."""

    def __init__(
        self, hub: Broadcast, viewer: Viewer, encode: Encode, patience: float
    ) -> None:
        self._client = hub.attach(
            viewer.stream,
            policy="latest",
            encode=encode,
            deadline=patience,
        )

    async def run(self) -> None:
        await self._client.wait_closed()

    def close(self) -> None:
        self._client.detach()

    @property
    def counts(self) -> Counts:
        stats = self._client.stats
        return Counts(stats.sent, stats.dropped, stats.bytes)


class PacketFeed:
    """H.264 from the encoder, which all its viewers share."""

    def __init__(self, encoder: H264Encoder, viewer: Viewer, patience: float) -> None:
        self._encoder = encoder
        self._viewer = viewer
        self._patience = patience
        self._counts = Counts()
        self._queue = encoder.subscribe()

    async def run(self) -> None:
        while (packet := await self._queue.next()) is not None:
            buffers = self._viewer.wrap(packet.buffers)
            with anyio.fail_after(self._patience):
                await self._viewer.stream.send(*buffers)
            self._counts += Counts(packet.is_picture, 0, packet.nbytes)

    def close(self) -> None:
        self._encoder.unsubscribe(self._queue)

    @property
    def counts(self) -> Counts:
        return self._counts + Counts(dropped=self._queue.dropped)


def wrapped(encode: Encode, wrap: Wrap) -> Encode:
    """What makes messages that are ready to be sent."""
    make: Any = encode
    if wrap is as_it_is:
        return encode

    def at_once(frame: Published) -> Any:
        return wrap(make(frame))

    async def slowly(frame: Published) -> Any:
        return wrap(await make(frame))

    return slowly if is_slow(encode) else at_once
