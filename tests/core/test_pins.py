"""Callers' buffers as memory for C, and lent memory as buffers, step by step.

core/test_buffers.py checks which buffers streams accept.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest

from aiozerocopy._core.binding import ffi
from aiozerocopy._core.channel import SEND
from aiozerocopy._core.leases import Lent
from aiozerocopy._core.pins import (
    Pins,
    nbytes,
    overlap,
    pin,
    receive_at_once,
    send_at_once,
    steady_total,
    unpin,
)

MEMORY = memoryview(bytearray(100))
COUNT = ffi.new("uint64_t *")


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        (slice(0, 50), slice(49, 100), True),
        (slice(0, 50), slice(50, 100), False),  # side by side
        (slice(0, 10), slice(60, 100), False),
        (slice(0, 100), slice(40, 60), True),
        (slice(0, 100), slice(0, 100), True),
        (slice(0, 0), slice(0, 100), False),  # an empty buffer shares no byte
    ],
)
def test_overlap(one: slice, other: slice, share: bool) -> None:
    assert overlap(MEMORY[one], MEMORY[other]) is share
    assert overlap(MEMORY[other], MEMORY[one]) is share


def test_what_is_copied_and_asked_has_as_many_references_as_before() -> None:
    data = memoryview(bytearray(4096))
    views: list[Any] = [None]
    large, come = memoryview(bytearray(4097)), int(ffi.cast("uintptr_t", COUNT))
    things = (data, data.obj, large, None, memoryview, bytearray, b"")
    before = [sys.getrefcount(each) for each in things]
    for _ in range(1000):
        assert send_at_once(0, 1, views, data, SEND, 1)[1] == len(views[0]) == 4096
        assert send_at_once(0, 1, views, 5, SEND, 1) is None
        views[0] = None
        assert send_at_once(0, 1, views, large, SEND, 1)[1] == nbytes(views[0]) == 4097
        assert send_at_once(0, 1, views, b"", SEND, 1) is None  # it is in use
        assert receive_at_once(0, large, 0, come) is None
        views[0] = None
        assert steady_total([data, data]) == 8192
    for each, count in zip(things, before, strict=True):
        assert abs(sys.getrefcount(each) - count) < 100


def test_looking_at_messages_calls_nothing_of_the_programs() -> None:
    """The check holds references that such a call could drop."""

    class Asked(type):
        def __hash__(cls) -> int:
            raise AssertionError

        def __eq__(cls, other: object) -> bool:
            raise AssertionError

    class Message(bytearray, metaclass=Asked):
        def __len__(self) -> int:
            raise AssertionError

    messages = [b"one", Message(b"two"), memoryview(Message(b"three"))]
    for each in messages[1:]:
        assert steady_total([messages[0], each]) == -1
        send_at_once(0, 1, [None], each, SEND, 1)


def test_unpin_releases_what_somebody_still_refers_to() -> None:
    data = bytearray(10)
    view, shown = pin(data), memoryview(b"exported")
    _held = pin(shown)
    with pytest.raises(BufferError):
        data.append(0)
    for _ in range(2):  # an interrupted call is repeated
        unpin([None, b"a copy", view, shown])
        data.append(0)


class TestPins:
    """Several pins that are released together."""

    def setup_method(self) -> None:
        self.data = [bytearray(10), bytearray(10)]
        self.pins = Pins(map(pin, self.data))

    def test_released(self) -> None:
        for _ in range(2):  # an interrupted call is repeated
            self.pins.release()
            for each in self.data:
                each.append(0)

    def test_not_by_whoever_ends_one_operation(self) -> None:
        unpin([self.pins])
        for each in self.data:
            with pytest.raises(BufferError):
                each.append(0)
        self.pins.release()

    def test_let_go_although_somebody_refers_to_one(self) -> None:
        one = self.pins[0]
        del self.pins
        for each in self.data:
            each.append(0)
        del one


class TestLent:
    @pytest.mark.skipif(
        sys.version_info < (3, 12), reason="before 3.12 no Python class is a buffer"
    )
    def test_it_is_a_buffer(self) -> None:
        assert bytes(memoryview(Lent(memoryview(b"abc")))) == b"abc"

    def test_what_was_released_has_no_bytes(self) -> None:
        lent = Lent(MEMORY)
        assert lent.view is MEMORY
        for _ in range(2):
            lent.release()
            with pytest.raises(ValueError, match="the memory was released"):
                lent.view  # noqa: B018
