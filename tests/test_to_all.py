"""One message to many channels: what is borrowed, and from where it goes on."""

from __future__ import annotations

import errno
import gc
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from answering import Answering
from links import until
from oracle import assert_same, payload, poison

import aiozerocopy as azc
from aiozerocopy._core import to_all
from aiozerocopy._core.binding import lib
from aiozerocopy._core.channel import Channel
from aiozerocopy._core.to_all import Shared, move_to_copy, send_to_all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiozerocopy._core.borrows import Operation, Port

pytestmark = pytest.mark.anyio

BIG = 1 << 20  # more than a socket pair takes by itself


async def test_memory_is_given_back_and_that_of_the_copy_is_kept() -> None:
    """The first has begun and goes on from a copy; the second becomes another."""
    near, far = azc.socketpair()
    async with near, far:
        port = near._enter().port
        wanted = payload(1, BIG).tobytes() + payload(3, BIG).tobytes()
        old = [bytearray(payload(number, BIG)) for number in (1, 2)]
        channels = [near._out]

        def queue(data: bytearray) -> tuple[Shared, Operation]:
            near._out.bind_port(port, near._budget)
            message = Shared([data])
            (operation,) = send_to_all(channels, port, message)
            assert operation is not None
            return message, operation

        first, begun = queue(old[0])
        second, waits = queue(old[1])
        copy = Shared([first.copied()])
        move_to_copy(channels, port, [begun], copy, None)
        newer = Shared([bytearray(payload(3, BIG))])
        move_to_copy(channels, port, [waits], None, newer)
        assert (begun.is_newer, waits.is_newer) == (False, True)
        await until(lambda: len(begun.views) == 1)
        del first, second, copy, newer
        gc.collect()
        for data in old:
            poison(data)
            data.append(0)  # it is exported no more
        others = [bytearray(BIG) for _ in range(8)]  # take what was freed
        received = bytearray(2 * BIG)
        await far.receive_exactly(received)
        assert_same(received, wanted)
        await until(lambda: begun.done and waits.done)
        assert (begun.status, waits.status) == (0, 0)
        del others


class Pairs:
    """Socket pairs, of which our ends have an operation ready."""

    def __init__(self, count: int) -> None:
        pairs = [azc.socketpair() for _ in range(count)]
        self.near = [near for near, _ in pairs]
        self.far = [far for _, far in pairs]
        self.port: Port = self.near[0]._enter().port
        self.channels = [each._out for each in self.near]
        for each in self.near:
            each._enter()
            each._out.bind_port(self.port, 100)

    def send(self, message: Shared) -> list[Operation | None]:
        return send_to_all(self.channels, self.port, message)

    def queued(self, message: Shared) -> list[Operation]:
        return [each for each in self.send(message) if each]


@pytest.fixture
async def pairs() -> AsyncIterator[Pairs]:
    made = Pairs(3)
    yield made
    for stream in (*made.near, *made.far):
        await stream.aclose(linger=0)


def interrupt(*_: object) -> Any:
    raise KeyboardInterrupt


class TestSend:
    async def test_at_once(self, pairs: Pairs) -> None:
        ready = [channel.ready for channel in pairs.channels]
        for _ in range(2):
            assert pairs.send(Shared([b"ab", b"cd"])) == [None] * 3
            assert [channel.ready for channel in pairs.channels] == ready
            assert [each and each.views for each in ready] == [[None]] * 3
            for far in pairs.far:
                assert await far.receive() == b"abcd"

    async def test_one_that_is_closed(self, pairs: Pairs) -> None:
        pairs.channels[1].abort()
        one, closed, other = pairs.send(Shared([b"ab"]))
        assert one is other is None
        assert closed is not None
        assert (closed.done, closed.status) == (True, -errno.ESHUTDOWN)
        assert (closed.moved, closed.total) == (0, 2)

    async def test_later(self, pairs: Pairs) -> None:
        data = bytearray(4 * BIG)
        message = Shared([data])
        operations = pairs.queued(message)
        assert [each.views for each in operations] == [[message.pins]] * 3
        assert [each.total for each in operations] == [len(data)] * 3
        assert not any(each.done for each in operations)
        del message
        gc.collect()
        with pytest.raises(BufferError):
            data.append(0)

    async def test_it_is_borrowed_before_c_has_it(
        self, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        message, had = Shared([b"ab"]), list[Any]()

        def send(*arguments: Any) -> int:
            had.extend(each.ready and each.ready.views[0] for each in pairs.channels)
            return int(lib.azc_send_to_all(*arguments))

        with monkeypatch.context() as patched:
            patched.setattr(to_all, "lib", Answering("azc_send_to_all", send))
            pairs.send(message)
        assert had == [message.pins] * 3

    async def test_interrupted_it_is_taken_back_everywhere(
        self, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        data = bytearray(4 * BIG)
        ready = [channel.ready for channel in pairs.channels]
        with monkeypatch.context() as patched:
            patched.setattr(Channel, "note_result", interrupt)
            with pytest.raises(KeyboardInterrupt):
                pairs.send(Shared([data]))
        assert [each and each.done for each in ready] == [True] * 3
        gc.collect()
        data.append(0)

    async def test_each_must_have_an_operation_ready(self, pairs: Pairs) -> None:
        pairs.channels[1].unbind_port()
        with pytest.raises(AssertionError):
            pairs.send(Shared([b"ab"]))


class TestMove:
    async def test_what_has_not_begun_goes_on_from_a_copy_too(
        self, pairs: Pairs
    ) -> None:
        """It was another message once."""
        pairs.queued(first := Shared([bytes(4 * BIG)]))
        waiting = pairs.queued(message := Shared([bytearray(b"old")]))
        newer = Shared([b"newer"])
        move_to_copy(pairs.channels, pairs.port, waiting, None, newer)
        assert [each.is_newer for each in waiting] == [True] * 3
        assert [each.total for each in waiting] == [5] * 3
        assert [each.views for each in waiting] == [[newer.pins]] * 3
        copy = Shared([newer.copied()])
        move_to_copy(pairs.channels, pairs.port, waiting, copy, None)
        await until(lambda: all(each.views == [copy.pins] for each in waiting))
        assert [each.is_newer for each in waiting] == [False] * 3
        received = bytearray(first.nbytes + 5)
        for far in pairs.far:
            await far.receive_exactly(received)
            assert received[-5:] == b"newer"
        del message

    async def test_interrupted_what_each_carries_is_noted(
        self, pairs: Pairs, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Then it is taken back, but who sends must know what may have begun."""
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


class Moved:
    """An operation, as much of it as is noted."""

    def __init__(self) -> None:
        self.done = False
        self.views = ["own", "more"]
        self.total = 5
        self.is_newer = False

    def moved_to_copy(self) -> None:
        self.views = ["copied"]


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
        operations: Any = [Moved(), Moved()]
        operations[0].done = True
        to_all._note_moves(operations, [result] * 2, copy, newer)
        over, other = [(it.views, it.total, it.is_newer) for it in operations]
        assert over == (["own", "more"], 5, False)
        assert other == noted
