"""What a viewer is sent follows from what it acknowledges, and from when."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from unittest.mock import Mock

import anyio
import pytest
from links import cut_short, until

from aiozerocopy.web import link as link_module
from aiozerocopy.web.encoding import Packet
from aiozerocopy.web.fit import (
    ENOUGH,
    MAX_PATIENCE,
    NEARLY,
    PATIENCE,
    SHARES,
    TRIAL,
    Fit,
    Rate,
)
from aiozerocopy.web.link import KEPT, LATE, MAX_PROBE, PROBE, Link
from aiozerocopy.web.modes import HubFeed
from aiozerocopy.web.pixels import CODED, CONFIGURATION, raw
from aiozerocopy.web.renditions import PacketQueue

pytestmark = pytest.mark.anyio

FRAME = 1 / 30
NBYTES = 20_000
RATE = 30 * NBYTES  # bytes a second that the stream needs


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Wire:
    """A simulated link with a delay and a rate, which keeps the clock."""

    def __init__(self, delay: float, rate: float) -> None:
        self.clock = Clock()
        self.link = Link(self.clock)
        self.delay, self.rate = delay, rate
        self.ages: list[float] = []  # of the pictures, when they arrive
        self._free_at = 0.0
        self._arrivals: list[tuple[float, int]] = []

    def send(self, sequence: int, nbytes: int) -> None:
        now = self.clock.now
        self._free_at = max(self._free_at, now) + nbytes / self.rate
        self._arrivals.append((self._free_at + self.delay, sequence))
        self.link.send(sequence, nbytes)
        self.ages.append(self._free_at + self.delay - now)

    def wait(self, seconds: float) -> None:
        """Let time pass: each picture is acknowledged as it arrives."""
        end = self.clock.now + seconds
        while self._arrivals and self._arrivals[0][0] <= end:
            self.clock.now, sequence = self._arrivals.pop(0)
            self.link.hear(str(sequence))
        self.clock.now = end

    def frames(self, seconds: float) -> Iterator[int]:
        for number in range(round(seconds / FRAME)):
            yield number
            self.wait(FRAME)


@pytest.mark.parametrize("delay", [0.001, 0.05, 0.4])
def test_a_link_with_room_carries_every_frame(delay: float) -> None:
    wire = Wire(delay, 4 * RATE)
    for number in wire.frames(20):
        nbytes = 3 * NBYTES if number % 10 == 0 else NBYTES
        assert wire.link.takes(nbytes)
        wire.send(number, nbytes)


def test_what_is_sent_into_a_link_that_is_too_slow_stays_new() -> None:
    wire = Wire(0.02, 4 * RATE)
    for number in wire.frames(20):
        if number == 150:
            wire.rate = 0.4 * RATE
            wire.ages.clear()
        if wire.link.takes(NBYTES):
            wire.send(number, NBYTES)
    settled = wire.ages[10:]
    assert len(settled) > 0.8 * 0.4 * 30 * 14  # and the link is used
    assert max(settled) < 0.02 + 2 * LATE


def test_nothing_but_probes_is_sent_into_silence_and_all_after_it() -> None:
    wire = Wire(0.02, 4 * RATE)
    for number in wire.frames(5):
        wire.send(number, NBYTES)
    changes: list[float] = []
    wire.link.on_change = lambda: changes.append(wire.clock.now)
    wire.wait(1)
    link, clock = wire.link, wire.clock
    link.send(1000, NBYTES)
    clock.now += LATE / 2
    assert link.takes(1)
    wait = PROBE
    for number in range(1001, 1010):
        clock.now += wait / 2
        assert link.takes(1, 0.5)
        assert not link.takes(1)
        clock.now += wait / 2
        assert link.takes(100 * NBYTES)
        link.send(number, NBYTES)
        wait = min(2 * wait, MAX_PROBE)
    assert not changes
    link.hear("1008")  # acknowledges all before it, too
    assert changes == [clock.now]
    assert link.takes(NBYTES)


def test_a_picture_that_is_acknowledged_before_it_is_noted_is_not_on_its_way() -> None:
    link = Link(clock := Clock())

    def takes_after(*sequences: int) -> bool:
        for sequence in sequences:
            link.send(sequence, NBYTES)
        clock.now += PROBE / 2
        return link.takes(NBYTES)

    link.send(0, NBYTES)
    link.hear("0")
    link.hear("1")
    assert takes_after(1)
    assert not takes_after(2)
    link.hear("3")  # acknowledges the one before it, too
    assert takes_after(3)
    assert not takes_after(3)  # a still picture again
    link.hear("3")
    assert not takes_after(3)


async def test_ticks_while_something_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "TICK", 0.001)
    _silent, idle, busy = links = [Link() for _ in range(3)]
    for link in links:
        link.send(0, 1)
    for link in (idle, busy):
        link.hear("0")
    busy.send(1, 1)
    ticked: list[Link] = []
    async with anyio.create_task_group() as tasks:
        for link in links:
            link.on_change = partial(ticked.append, link)
            tasks.start_soon(link.tick)
        await until(lambda: len(ticked) >= 3)
        tasks.cancel_scope.cancel()
    assert set(ticked) == {busy}


def test_who_acknowledges_nothing_is_sent_everything() -> None:
    link = Link(clock := Clock())
    for number in range(2 * KEPT):
        assert link.takes(NBYTES)
        link.send(number, NBYTES)
        clock.now += 1
    assert len(link._sent) == KEPT


@pytest.mark.parametrize("words", ["", "hello", "-1", "1.5", "9" * 21, b"\xff", "²"])
def test_other_words_are_ignored(words: str | bytes) -> None:
    link = Link()
    link.send(0, 1)
    link.hear(words)
    assert not link.acknowledges


# ---- which rendition fits ------------------------------------------------------------


class Fitted(Wire):
    """A viewer behind a wire, and when it moved from one rendition to another.

    Others watch the same renditions without trouble, unless it is ``alone``.
    """

    def __init__(self, rate: float, *, alone: bool = False) -> None:
        super().__init__(0.02, rate)
        self.fit = Fit(self.link)
        self.rates = [Rate(n, self.clock) for n in range(len(SHARES))] if alone else []
        self.moves: list[list[float]] = [[], []]  # up, down
        self._needs_key = True

    @property
    def share(self) -> float:
        number = self.fit.number
        return self.rates[number].share if self.rates else SHARES[number]

    def watch(self, seconds: float, pause: float = 0.0) -> None:
        """Get what the link takes, with a pause in each second."""
        for number in self.frames(seconds):
            before = self.fit.number
            nbytes = round(NBYTES * self.share)
            if number % 30 == 29:
                self.clock.now += pause
            if self._needs_key and self.link.takes(3 * nbytes):
                nbytes, self._needs_key = 3 * nbytes, False
            self.fit.see(nbytes)
            if self.rates:
                self.rates[before].rise()
            if not self._needs_key and self.link.takes(nbytes):
                self.send(number, nbytes)
            elif not self._needs_key:
                self._needs_key = True
                self.fall()
            if self.fit.number != before:
                self._needs_key = True
                self.moves[self.fit.number > before].append(self.clock.now)

    def fall(self) -> None:
        self.fit.fall()
        if self.rates:
            rate = self.rates[self.fit.number]
            if self.fit.carried < NEARLY and rate.lower(self.fit.carried):
                self.fit.settle()
        if self.fit.carried < ENOUGH:
            self.fit.move_down()


@pytest.mark.parametrize("pause", [0.0, 0.3])
def test_a_link_with_room_keeps_the_first_after_an_outage_too(pause: float) -> None:
    """This holds even if this program pauses, so that pictures are dropped."""
    it = Fitted(4 * RATE)
    it.watch(60, pause)
    it.rate = 1.0
    it.watch(20)
    assert it.moves == [[], []]


@pytest.mark.parametrize(("slow", "fast"), [(0.4, 4), (0.7, 1.5)])
def test_a_slow_link_gets_the_second_and_is_tried_more_and_more_rarely(
    slow: float, fast: float
) -> None:
    """If it recovers, and is slow again after that, it is soon tried again."""
    it = Fitted(slow * RATE)
    it.watch(3)
    assert it.fit.number == 1
    it.ages.clear()
    it.watch(6)
    assert len(it.ages) == 6 * 30
    assert max(it.ages) < 0.15
    it.watch(1000)
    ups, downs = it.moves
    waits = [up - down for down, up in zip(downs, ups, strict=False)]
    bounds = [min(PATIENCE * 2**n, MAX_PATIENCE) for n in range(len(waits))]
    assert len(waits) > 6
    assert waits == pytest.approx(bounds, abs=1)
    assert max(down - up for up, down in zip(ups, downs[1:], strict=False)) < 2
    it.rate = fast * RATE
    it.watch(MAX_PATIENCE + TRIAL)
    assert it.fit.number == 0
    it.rate = slow * RATE
    tried = len(ups)
    it.watch(PATIENCE + 5)
    assert len(ups) == tried + 1


@pytest.mark.parametrize("slow", [0.95, 0.8, 0.5, 0.35])
def test_a_rendition_that_only_slow_viewers_watch_takes_what_their_links_carry(
    slow: float,
) -> None:
    """When the links carry more, it takes more again, in steps."""
    it = Fitted(slow * RATE, alone=True)
    it.watch(10)
    it.ages.clear()
    it.watch(60)
    assert it.moves == [[], []]
    assert 0.5 * slow < it.share <= 1.1 * slow
    assert len(it.ages) > 0.95 * 60 * 30
    assert sorted(it.ages)[len(it.ages) // 2] < 0.06
    it.watch(600)  # in which the trials get rare
    it.rate = 4 * RATE
    it.watch(2 * MAX_PATIENCE)
    assert it.share == 1


def test_a_link_for_the_third_alone_gets_that() -> None:
    it = Fitted(0.2 * RATE)
    it.watch(6)
    assert it.fit.number == 2
    it.ages.clear()
    it.watch(4)
    assert len(it.ages) == 4 * 30


# ---- the queue --------------------------------------------------------------------


def packet(sequence: int, *, key: bool = False, kind: int = CODED) -> Packet:
    return Packet([bytes(NBYTES)], kind, key, sequence)


class Watched:
    """A queue with a clock, and how often it asks for a key frame."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.link = Link(self.clock)
        self.asked = 0
        self.both = [Mock(has_failed=False, ask=self._ask) for _ in SHARES]
        self.queue = PacketQueue(self.link, self.both)

    def _ask(self) -> None:
        self.asked += 1

    async def sent(self) -> list[int]:
        """Let the viewer take what there is."""
        sequences: list[int] = []

        async def take() -> None:
            while True:
                packet = await self.queue.next()
                assert packet is not None
                sequences.append(packet.sequence)

        async with cut_short(take):
            await anyio.wait_all_tasks_blocked()
        return sequences


async def test_what_waits_too_long_is_dropped_and_a_key_frame_asked_for() -> None:
    it = Watched()
    assert (await it.sent(), it.asked) == ([], 1)  # a newcomer
    it.queue.push(packet(0, kind=CONFIGURATION))
    it.queue.push(packet(1, key=True))
    it.queue.push(packet(2))
    assert (await it.sent(), it.asked) == ([0, 1, 2], 1)
    it.queue.push(packet(3))
    it.clock.now += LATE / 2
    it.queue.push(packet(4))
    assert it.queue.dropped == 0
    it.clock.now += LATE
    it.queue.push(packet(5))
    assert (it.queue.dropped, it.asked) == (3, 1)  # the viewer is still busy
    assert (await it.sent(), it.asked) == ([], 2)
    it.queue.push(packet(6, key=True))
    assert await it.sent() == [6]


async def test_pictures_do_not_gather_for_who_takes_every_second_one() -> None:
    """This may be a program that acknowledges nothing, on a slow connection."""
    it = Watched()
    newest = 0
    for number in range(300):
        it.queue.push(packet(number, key=it.queue._pictures.needs_key))
        if number % 2 and it.queue._pictures:
            taken = await it.queue.next()
            assert taken is not None
            newest = taken.sequence
        it.clock.now += FRAME
        assert number - newest <= LATE / FRAME + 3
    assert 100 < it.queue.dropped < 200


async def test_a_key_frame_takes_the_place_of_what_waits_unless_it_is_older() -> None:
    it = Watched()
    for number in range(3):
        it.queue.push(packet(number, key=number in (0, 2)))
    assert await it.sent() == [2]
    assert it.queue.dropped == 2
    it.queue.push(packet(1, key=True))  # of the other rendition
    it.queue.push(packet(3))
    assert (await it.sent(), it.asked) == ([], 1)


async def test_no_key_frame_is_asked_for_before_it_can_arrive() -> None:
    it = Watched()
    it.queue.push(packet(0, key=True))
    assert await it.sent() == [0]
    it.link.hear("0")
    it.queue.push(packet(1))
    assert await it.sent() == [1]
    for number in range(2, 29):  # not yet so long that it is probed
        it.clock.now += FRAME
        it.queue.push(packet(number))
        assert (await it.sent() == []) == (number > 4)
        assert it.asked == 0
    it.link.hear("4")
    assert (await it.sent(), it.asked) == ([], 1)


async def test_what_waited_for_another_picture_is_dropped() -> None:
    it = Watched()
    it.queue.push(packet(0, key=True))
    it.queue.push(packet(1, kind=CONFIGURATION))
    it.queue.push(packet(2))
    it.queue.push(packet(3, key=True))
    assert await it.sent() == [1, 3]
    it.queue.end(it.both[1])  # not the rendition that it watches
    it.queue.push(packet(4))
    assert await it.sent() == [4]
    it.queue.end(it.both[0])
    assert await it.queue.next() is None


async def test_a_key_frame_that_is_there_anyway_is_the_probe() -> None:
    it = Watched()
    it.queue.push(packet(0, key=True))
    assert await it.sent() == [0]
    it.link.hear("0")
    it.queue.push(packet(1))
    assert await it.sent() == [1]
    it.clock.now += 0.6 * PROBE
    it.queue.push(packet(2))
    assert await it.sent() == []
    it.queue.push(packet(3, key=True))
    assert await it.sent() == [3]


def test_the_last_frame_of_a_former_encoding_says_nothing_of_the_next() -> None:
    hub, link = Mock(), Link(Clock())
    HubFeed(hub, Mock(link=link), [raw], 1.0)
    note = hub.attach.call_args.kwargs["on_event"]
    for closed, nbytes in ((False, 100), (True, 1_000_000), (False, 250)):
        client = Mock(closed=closed)
        client.stats.bytes_sent = nbytes
        note(client, "sent", nbytes)
    assert [sent.nbytes for sent in link._sent] == [100, 150]
