"""One message to many channels: what is borrowed, and from where sends go on."""

import errno
import gc
from collections.abc import AsyncIterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from answering import Answering, interrupt
from links import until
from oracle import assert_same, payload, poison

import aiozerocopy as azc
from aiozerocopy._core import to_all
from aiozerocopy._core.binding import lib
from aiozerocopy._core.borrows import Operation, Port
from aiozerocopy._core.channel import PUT, Channel
from aiozerocopy._core.pins import send_at_once
from aiozerocopy._core.to_all import Row, Seat, Shared, move_to_copy

pytestmark = pytest.mark.anyio

BIG = 1 << 20  # more than a socket pair takes by itself


class Pairs:
    """Socket pairs; our ends form a row, each with a prepared operation."""

    def __init__(self, count: int) -> None:
        pairs = [azc.socketpair() for _ in range(count)]
        self.near = [near for near, _ in pairs]
        self.far = [far for _, far in pairs]
        self.port: Port = self.near[0]._enter().port
        self.channels = [each._out for each in self.near]
        self.seats = [Seat() for _ in pairs]
        for each in self.near:
            each._enter()
            each._out.bind_port(self.port, 100)

    @property
    def ready(self) -> list[Any]:
        return [channel.ready for channel in self.channels]

    def row(self) -> Row:
        for seat, channel in zip(self.seats, self.channels, strict=True):
            assert seat.take(channel)
        return Row(self.seats)

    def send(self, message: Shared, row: Row | None = None) -> dict[int, Any]:
        row = row or self.row()
        return row.send(range(len(self.seats)), self.port, message, 0)

    def queued(self, message: Shared) -> list[Operation]:
        return [each for each in self.send(message).values() if each]

    def counted(self) -> list[tuple[int, int]]:
        return [(seat.tally.messages, seat.tally.bytes) for seat in self.seats]


@pytest.fixture
async def pairs() -> AsyncIterator[Pairs]:
    made = Pairs(3)
    yield made
    for stream in (*made.near, *made.far):
        await stream.aclose(linger=0)


class TestSend:
    async def test_later(self, pairs: Pairs) -> None:
        data, ready = bytearray(4 * BIG), pairs.ready
        message = Shared([data])
        operations = pairs.queued(message)
        assert operations == ready
        assert not set(pairs.ready) & set(ready)
        assert [each.views for each in operations] == [[message.pins]] * 3
        assert [each.total for each in operations] == [len(data)] * 3
        assert not any(each.done for each in operations)
        assert not any(seat.is_taken for seat in pairs.seats)
        assert pairs.counted() == [(0, 0)] * 3
        del message
        gc.collect()
        with pytest.raises(BufferError):
            data.append(0)

    async def test_one_channel_twice(self, pairs: Pairs) -> None:
        """Two messages never share an operation, which holds one message's memory."""
        twin, message = Seat(), Shared([bytearray(4 * BIG)])
        assert twin.take(pairs.channels[0])
        pairs.row()
        row = Row([pairs.seats[0], twin])
        first = pairs.channels[0].ready
        missed = row.send(range(2), pairs.port, message, 0)
        assert missed == {0: first, 1: None}
        assert first is not None
        assert first.views == [message.pins]
        assert pairs.channels[0].stats().queued == 1

    @pytest.mark.parametrize("has_left", [False, True])
    async def test_who_has_left_or_whose_operation_was_taken_back_gets_nothing(
        self, pairs: Pairs, has_left: bool
    ) -> None:
        row, ready = pairs.row(), pairs.ready[1]
        if has_left:
            pairs.seats[1].leave()
        else:
            assert pairs.channels[1].take_back(pairs.port, ready)
        assert pairs.send(Shared([b"ab"]), row) == {1: None}
        assert ready.views == ([None] if has_left else [])
        assert pairs.counted() == [(1, 2), (0, 0), (1, 2)]

    async def test_it_is_borrowed_before_c_has_it(
        self, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        message, had = Shared([b"ab"]), list[Any]()

        def send(*arguments: Any) -> int:
            had.extend(each.views[0] for each in pairs.ready)
            return int(lib.azc_send_to_all(*arguments))

        with monkeypatch.context() as patched:
            patched.setattr(to_all, "lib", Answering("azc_send_to_all", send))
            pairs.send(message)
        assert had == [message.pins] * 3

    async def test_interrupted_it_is_taken_back_everywhere(
        self, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data, ready = bytearray(4 * BIG), pairs.ready
        with monkeypatch.context() as patched:
            patched.setattr(Channel, "note_result", interrupt)
            with pytest.raises(KeyboardInterrupt):
                pairs.send(Shared([data]))
        assert [each.done for each in ready] == [True] * 3
        gc.collect()
        data.append(0)

    async def test_interrupted_others_messages_are_left_alone(
        self, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row, begun = pairs.row(), pairs.ready[1]
        out, data = pairs.near[1]._out, bytes(4 * BIG)
        found = send_at_once(out.id, begun.token, begun.views, data, PUT, 1)
        out.note_result(pairs.port, begun, *found)
        with monkeypatch.context() as patched:
            patched.setattr(Row, "_note", interrupt)
            with pytest.raises(KeyboardInterrupt):
                pairs.send(Shared([b"ab"]), row)
        assert not begun.done
        received = bytearray(4 * BIG)
        await pairs.far[1].receive_exactly(received)
        await until(lambda: begun.done)
        assert begun.status == 0


def have(operations: list[Operation], views: list[Any]) -> bool:
    return all(each.views == views for each in operations)


class TestMove:
    async def test_all_goes_on_from_copies(self, pairs: Pairs) -> None:
        """Messages that have begun and others go on; the others were replaced once."""
        data = [bytearray(payload(1, 4 * BIG)), bytearray(b"old")]
        wanted = payload(1, 4 * BIG).tobytes() + b"newer"
        begun = pairs.queued(first := Shared([data[0]]))
        waiting = pairs.queued(Shared([data[1]]))
        copies = [Shared([first.copied()])]
        move_to_copy(pairs.channels, pairs.port, begun, copies[0], None)
        assert [each.is_newer for each in begun] == [False] * 3
        newer = Shared([b"", b"newer"])
        assert len(newer.vec) == 1
        move_to_copy(pairs.channels, pairs.port, waiting, None, newer)
        assert [each.is_newer for each in waiting] == [True] * 3
        assert [each.total for each in waiting] == [5] * 3
        assert [each.views for each in waiting] == [[newer.pins]] * 3
        copies.append(Shared([newer.copied()]))
        move_to_copy(pairs.channels, pairs.port, waiting, copies[1], None)
        for operations, copy in zip((begun, waiting), copies, strict=True):
            await until(partial(have, operations, [copy.pins]))
        assert [each.is_newer for each in waiting] == [False] * 3
        copies.clear()
        del first, newer, copy
        gc.collect()
        for each in data:
            poison(each)
            each.append(0)  # it is no longer exported
        _others = [bytearray(4 * BIG) for _ in range(4)]  # reuse freed memory
        received = bytearray(len(wanted))
        for far in pairs.far:
            await far.receive_exactly(received)
            assert_same(received, wanted)

    async def test_interrupted_what_each_carries_is_noted(
        self, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The move is undone, but the sender must know what may have begun."""
        pairs.queued(Shared([bytes(4 * BIG)]))
        waiting = pairs.queued(Shared([bytearray(b"old")]))
        note, newer = to_all._note_moves, Shared([b"newer"])

        def interrupted(*_: object) -> None:
            patched.setattr(to_all, "_note_moves", note)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(to_all, "_note_moves", interrupted)
            with pytest.raises(KeyboardInterrupt):
                move_to_copy(pairs.channels, pairs.port, waiting, None, newer)
        assert [each.is_newer for each in waiting] == [True] * 3
        assert [each.total for each in waiting] == [5] * 3
        assert [each.done for each in waiting] == [True] * 3

    async def test_interrupted_twice_it_is_taken_back_everywhere(
        self, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = bytearray(4 * BIG)
        begun = pairs.queued(message := Shared([data]))
        copy = Shared([message.copied()])
        with monkeypatch.context() as patched:
            patched.setattr(to_all, "_note_moves", interrupt)
            with pytest.raises(KeyboardInterrupt):
                move_to_copy(pairs.channels, pairs.port, begun, copy, None)
        del message
        gc.collect()
        assert [each.done for each in begun] == [True] * 3
        data.append(0)


NEWER: Any = SimpleNamespace(pins="newer's", nbytes=7)
COPY: Any = SimpleNamespace(pins="the copy's", nbytes=5)


class TestNote:
    @pytest.mark.parametrize(
        ("result", "copy", "newer", "noted"),
        [
            (1, COPY, NEWER, (["newer's"], 7, True)),
            (1, None, NEWER, (["newer's"], 7, True)),
            (1, COPY, None, (["own", "more"], 5, False)),
            (0, COPY, NEWER, (["copied"], 5, False)),
            (0, COPY, None, (["copied"], 5, False)),
            (0, None, NEWER, (["own"], 5, False)),
            (-errno.EINPROGRESS, COPY, NEWER, (["own", "more"], 5, False)),
            (to_all._NOT_ASKED, COPY, NEWER, (["own", "more"], 5, False)),
        ],
    )
    def test_what_each_carries_now(
        self, result: int, copy: Any, newer: Any, noted: tuple[Any, ...]
    ) -> None:
        operations: Any = [
            SimpleNamespace(done=done, views=["own", "more"], total=5, is_newer=False)
            for done in (True, False)
        ]
        for it in operations:
            it.moved_to_copy = partial(it.__setattr__, "views", ["copied"])
        to_all._note_moves(operations, [result] * 2, copy, newer)
        over, other = [(it.views, it.total, it.is_newer) for it in operations]
        assert over == (["own", "more"], 5, False)
        assert other == noted
