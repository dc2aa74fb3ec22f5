"""Over a server, with FFmpeg: a viewer whose link is too slow gets fewer bits."""

from __future__ import annotations

import gc
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import anyio
import anyio.lowlevel
import browser as chromium
import numpy as np
import pytest
from links import cut_short, until
from numpy.typing import NDArray
from web_client import needs_jpeg, watching, with_each_encoder
from wsproto import events

import aiozerocopy as azc
from aiozerocopy import web
from aiozerocopy.broadcast import Broadcast
from aiozerocopy.web import fit, modes, pixels, renditions
from aiozerocopy.web.child import by_ffmpeg
from aiozerocopy.web.codecs import H264, Made, Task
from aiozerocopy.web.exchange import CANNOT
from aiozerocopy.web.link import Link
from aiozerocopy.web.planes import Planes

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def guest(to: Any, rate: float) -> AsyncIterator[Any]:
    """A viewer that acknowledges as if its link carried ``rate`` bytes a second."""
    it = SimpleNamespace(rate=rate, configurations=0, newest=-1, pictures={})

    async def watch() -> None:
        while True:
            header, payload = await viewer.message()
            it.configurations += header[1] == pixels.CONFIGURATION
            if header[1] == pixels.CODED:
                assert header[7] >= it.newest
                it.newest = header[7]
                if it.configurations == 1:  # the first rendition's
                    it.pictures[header[7], header[3]] = payload
                await anyio.sleep(len(payload) / it.rate)
                await viewer.send(events.TextMessage(str(header[7])))

    async with watching(to, "/h264") as viewer, cut_short(watch):
        yield it


def noise(number: int) -> NDArray[np.uint8]:
    """A picture that takes all the bits there are."""
    random = np.random.default_rng(number)
    return random.integers(0, 255, (240, 320, 3), np.uint8)


publishing = partial(chromium.publishing, picture=noise)
SECOND = round(fit.SHARES[1], 3)
SLOW, FAST = 120_000, 1e9  # bytes a second; the first rendition has some 250,000


@with_each_encoder
@pytest.mark.every_loop
async def test_who_cannot_take_the_first_gets_the_second_and_nobody_else_feels_it(
    hub: Broadcast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the first again when its link is faster, and the last picture, too."""
    monkeypatch.setattr(fit, "PATIENCE", 0.5)
    async with web.serve(hub) as to, guest(to, FAST) as good:
        async with guest(to, SLOW) as slow, guest(to, SLOW) as other:
            async with publishing(hub):
                await until(lambda: slow.configurations == 2)
                assert len(hub.clients) == 2
                slow.rate = FAST
                await until(lambda: slow.configurations == 3)
            await until(lambda: slow.newest == other.newest == hub.sequence - 1)
        await until(lambda: len(hub.clients) == 1)
    assert good.configurations == 1
    for picture, payload in slow.pictures.items():
        assert good.pictures.get(picture, payload) == payload


class Starts(list[float]):
    """The share of each encoder that was started; one with a `failing` share fails."""

    failing: tuple[float, ...] = ()

    def __init__(self, encoders: Any) -> None:
        self._encoders = encoders

    def __call__(self, task: Task, tell: Any) -> Any:
        share = task.bitrate / renditions.bitrate(
            task.picture.width, task.picture.height
        )
        self.append(round(share, 3))
        fails = any(abs(share - each) < 0.01 for each in self.failing)
        encoders = partial(by_ffmpeg, "/bin/false") if fails else self._encoders
        return encoders(task, tell)


@pytest.fixture
def starts(encoders: Any, monkeypatch: pytest.MonkeyPatch) -> Starts:
    starts = Starts(encoders)
    monkeypatch.setattr(modes, "find_encoders", lambda *_, **__: starts)
    return starts


@pytest.fixture
def nobody_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """(On a busy machine no viewer may seem fast, and all would get fewer bits.)"""
    monkeypatch.setattr(renditions.Rendition, "give_way", Mock(return_value=False))


@with_each_encoder
@pytest.mark.usefixtures("nobody_gives_way")
async def test_without_the_others_they_go_on_with_the_first(
    hub: Broadcast, starts: Starts, caplog: pytest.LogCaptureFixture
) -> None:
    starts.failing = fit.SHARES[1:]
    async with web.serve(hub) as to, guest(to, FAST) as good, guest(to, SLOW) as slow:
        async with publishing(hub):
            await until(lambda: slow.configurations == 2)
            await until(lambda: len(hub.clients) == 1)
            newest = hub.sequence
            await until(lambda: good.newest > newest + 30 and slow.newest > newest)
        assert to._site.modes.counts()["h264"]["dropped"] > 0
    assert good.configurations == 1
    assert caplog.text.count("H.264 (33 %) is not encoded") == 1


@with_each_encoder
async def test_without_the_first_they_go_back_to_the_second(
    hub: Broadcast, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "PATIENCE", 2.0)
    async with web.serve(hub) as to, guest(to, FAST) as it, publishing(hub):
        async with guest(to, FAST) as good:
            await until(lambda: good.newest >= 0)  # (alone, it would get fewer bits)
            it.rate = SLOW
            await until(lambda: it.configurations == 2)
        starts.failing, it.rate = (1.0,), FAST
        await until(lambda: it.configurations == 3)
        newest = hub.sequence
        await until(lambda: it.newest > newest)
    assert starts == [1, SECOND, 1, SECOND]


@with_each_encoder
@pytest.mark.usefixtures("nobody_gives_way")
async def test_without_the_second_they_go_to_the_third(
    hub: Broadcast, starts: Starts
) -> None:
    starts.failing = fit.SHARES[1:2]
    async with web.serve(hub) as to, guest(to, FAST), guest(to, SLOW) as slow:
        async with publishing(hub):
            await until(lambda: len(starts) == 3)
            configurations = slow.configurations
            await until(lambda: slow.configurations > configurations)
    assert starts == [1, SECOND, round(fit.SHARES[2], 3)]


@with_each_encoder
async def test_a_viewer_alone_gets_what_its_link_carries_of_the_first(
    hub: Broadcast, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When another viewer comes, the first has its full bitrate again at once."""
    rates: list[fit.Rate] = []
    lower = fit.Rate.lower

    def noted(rate: fit.Rate, carried: float) -> bool:
        rates.append(rate)
        return lower(rate, carried)

    monkeypatch.setattr(fit.Rate, "lower", noted)
    async with web.serve(hub) as to, publishing(hub), guest(to, SLOW) as slow:
        await until(lambda: bool(rates) and rates[0].share < 0.5)
        newest = hub.sequence
        await until(lambda: slow.newest > newest + 30)
        assert len(hub.clients) == 1
        async with guest(to, FAST) as good:
            await until(lambda: good.newest > newest)
            assert rates[0].share == 1
            await until(lambda: len(hub.clients) == 2)  # each viewer gets what fits


async def test_who_comes_while_an_encoder_begins_gets_all_bits(
    hub: Broadcast, encoders: Any
) -> None:
    """The encoder was started with fewer bits, for another viewer."""
    begun: list[Task] = []
    followed = Mock(return_value=True)
    go_on = anyio.Event()

    @asynccontextmanager
    async def slowly(task: Task, tell: Any) -> AsyncIterator[Any]:
        begun.append(task)
        await go_on.wait()
        async with encoders(task, tell) as encoder:
            encoder.follow = followed
            yield encoder

    each = renditions.make_renditions(hub, Planes(), slowly, H264)
    queues = [renditions.PacketQueue(Link(), each)]
    each[0]._rate.lower(0.5)
    await hub.publish(noise(0))
    await until(lambda: bool(begun))
    queues.append(renditions.PacketQueue(Link(), each))
    go_on.set()
    await until(lambda: followed.called)
    most = renditions.bitrate(320, 240)
    assert begun[0].bitrate < most
    followed.assert_called_once_with(most)
    for queue in queues:
        queue.leave()


class Noting:
    """Encoders that note who encodes which frame when, and may hang."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, int, int]] = []
        self.gate = anyio.Event()
        self.gate.set()

    @asynccontextmanager
    async def __call__(self, task: Task, tell: Any) -> AsyncIterator[Any]:
        rate = task.bitrate

        async def encode(planes: Any, number: int, *, is_key: bool) -> None:
            self.noted.append(("begins", rate, number))
            await anyio.lowlevel.checkpoint()
            if rate == renditions.bitrate(320, 240):
                await self.gate.wait()
            self.noted.append(("ends", rate, number))
            tell(Made(number, is_key, b""))

        yield Mock(last=math.inf, encode=encode, wait=anyio.sleep_forever)


@pytest.mark.every_loop
async def test_a_frame_is_encoded_for_the_first_before_the_others(
    hub: Broadcast,
) -> None:
    """If the first one's encoder hangs, the others go on."""
    encoders = Noting()
    noted, most = encoders.noted, renditions.bitrate(320, 240)
    each = renditions.make_renditions(hub, Planes(), encoders, H264)
    queues = [renditions.PacketQueue(Link(), each) for _ in each]
    for number, queue in enumerate(queues[1:], 1):
        queue.fit.number = number
        queue._move(each[number])
    for number in range(5):
        await hub.publish(noise(number))
        await until(partial(lambda count: len(noted) == count, 6 * (number + 1)))
    begun, ended = noted[::2], noted[1::2]
    assert [it[1:] for it in begun] == [it[1:] for it in ended]
    rates = [rate for _, rate, _ in begun]
    assert rates == 5 * sorted(set(rates), reverse=True)
    assert rates[0] == most
    encoders.gate = anyio.Event()
    await hub.publish(noise(5))
    await until(lambda: len(noted) == 35)
    assert noted[30] == ("begins", most, 5)
    for queue in queues:
        queue.leave()


@with_each_encoder
async def test_who_comes_and_goes_starts_few(
    hub: Broadcast, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renditions, "RESTART_SECONDS", 60.0)
    async with web.serve(hub) as to, guest(to, FAST), publishing(hub):
        async with guest(to, SLOW) as one:
            await until(lambda: one.configurations == 2)
        async with guest(to, SLOW) as other:
            begun = hub.sequence
            await until(lambda: hub.sequence > begun + 60)
        assert starts == [1, SECOND]
        assert other.configurations == 1


@with_each_encoder
@pytest.mark.every_loop
async def test_who_comes_after_a_failure_starts_none(
    hub: Broadcast, starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The viewer hears at once that it does not work, and later it may work again."""
    monkeypatch.setattr(renditions, "RESTART_SECONDS", 60.0)
    starts.failing = (1.0,)
    await hub.publish(noise(0))
    async with web.serve(hub) as to:
        for _ in range(3):
            async with watching(to, "/h264") as viewer:
                assert await viewer.code() == CANNOT
        assert starts == [1]
        monkeypatch.setattr(renditions, "RESTART_SECONDS", 0.0)
        starts.failing = ()
        async with guest(to, FAST) as good:
            await until(lambda: good.newest == 0)
    assert starts == [1, 1]


@needs_jpeg
@pytest.mark.every_loop
async def test_jpeg_is_coarser_for_a_slow_link_alone(
    hub: Broadcast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "PATIENCE", 0.5)

    async def watch(viewer: Any, sizes: list[int], rate: list[float]) -> None:
        while True:
            header, payload = await viewer.message()
            sizes.append(len(payload))
            await anyio.sleep(len(payload) / rate[0])
            await viewer.send(events.TextMessage(str(header[7])))

    fine: list[int] = []
    coarse: list[int] = []
    rate = [FAST]
    path = "/stream.mjpg"
    async with (
        web.serve(hub) as to,
        watching(to, path) as good,
        watching(to, path) as it,
    ):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, good, fine, [FAST])
            tasks.start_soon(watch, it, coarse, rate)
            async with publishing(hub):
                await until(lambda: len(coarse) > 10)
                assert min(coarse) > 0.9 * max(fine)
                rate[0] = 5 * fine[10]  # bytes a second
                await until(lambda: coarse[-1] < 0.7 * fine[-1])
                rate[0] = FAST
                await until(lambda: coarse[-1] > 0.9 * fine[-1])
            assert min(fine) > 0.9 * max(fine)
            counts = to._site.modes.counts()["mjpeg"]
            assert counts["sent"] >= len(fine) + len(coarse)
            tasks.cancel_scope.cancel()


@with_each_encoder
async def test_a_thousand_viewers_that_come_and_go_share_one_encoder(
    hub: Broadcast, starts: Starts
) -> None:
    each = renditions.make_renditions(hub, Planes(), starts, H264)
    stays = renditions.PacketQueue(Link(), each)
    async with publishing(hub):
        assert await stays.next() is not None
        for number in range(1000):
            queue = renditions.PacketQueue(Link(), each)
            if number % 50 == 0:
                assert await queue.next() is not None
            queue.leave()
            await anyio.lowlevel.checkpoint()
        assert len(each[0]._queues) == len(hub.clients) == 1
        stays.leave()
        await until(lambda: not hub.clients)
    assert starts == [1]


@with_each_encoder
async def test_the_slots_come_back_without_the_collector(hub: Broadcast) -> None:
    """This holds even for a frame encoded twice, whose encoder was then cancelled."""
    gc.disable()
    try:
        with azc.FramePool((240, 320, 3), slots=3) as pool:
            async with web.serve(hub) as to, guest(to, FAST) as one:
                with await pool.acquire() as frame:
                    await hub.publish(frame)
                await until(lambda: one.newest == 0)
                async with guest(to, FAST) as other:  # for which it is encoded again
                    await until(lambda: other.newest == 0)
            await until(lambda: not hub.clients)
            await hub.publish(noise(1))
            assert pool.stats.free == 3
    finally:
        gc.enable()


@pytest.mark.every_loop
async def test_the_slot_comes_back_of_a_frame_that_could_not_be_converted(
    hub: Broadcast, encoders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Planes, "_planes", lambda *_: bytes(1 << 62))
    gc.disable()
    try:
        with azc.FramePool((240, 320, 3), slots=3) as pool:
            queue = renditions.PacketQueue(
                Link(), renditions.make_renditions(hub, Planes(), encoders, H264)
            )
            with await pool.acquire() as frame:
                await hub.publish(frame)
            assert await queue.next() is None
            await hub.publish(b"another")
            await until(lambda: pool.stats.free == 3)
    finally:
        gc.enable()


@with_each_encoder
@pytest.mark.every_loop
async def test_the_hub_may_close_as_another_picture_comes(encoders: Any) -> None:
    async with Broadcast() as hub:
        queue = renditions.PacketQueue(
            Link(), renditions.make_renditions(hub, Planes(), encoders, H264)
        )
        await hub.publish(noise(1))
        assert [(await queue.next()) is None for _ in range(2)] == [False, False]
        await hub.publish(noise(1)[:120])
    assert await queue.next() is None
