"""One operation and one port, by hand: what C has borrowed, and who is told of its end.

What streams do with them is tested with the contract.  These situations are those that
come to a stream only once in a great while.
"""

from __future__ import annotations

import errno
import gc
import select
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from unread import SIZE, Unread

from aiozerocopy import StreamBroken
from aiozerocopy._core import borrows
from aiozerocopy._core.binding import ffi, lib
from aiozerocopy._core.borrows import Operation, Port
from aiozerocopy._core.pins import pin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def pipe() -> Iterator[Unread]:
    made = Unread()
    yield made
    made.close()


@pytest.fixture
def port() -> Iterator[Port]:
    made = Port()
    yield made
    made.drain()
    assert made.close()


def is_borrowed(data: bytearray) -> bool:
    """Whether its memory is held, so that it cannot be resized."""
    try:
        data.append(0)
    except BufferError:
        return True
    del data[-1]
    return False


class TestOperation:
    @pytest.mark.parametrize("sent", [0, 1])
    @pytest.mark.parametrize("status", [0, -errno.ECANCELED, errno.ECANCELED])
    @pytest.mark.parametrize("outcome", [lib.AZC_DROPPED, lib.AZC_RESCUED])
    def test_how_it_was_cancelled(
        self, port: Port, sent: int, status: int, outcome: int
    ) -> None:
        operation = Operation(port, [])
        operation.end(sent, status, outcome)
        port.forget(operation)
        cancelled = status == -errno.ECANCELED
        dropped = cancelled and outcome == lib.AZC_DROPPED and sent == 0
        assert operation.was_dropped is dropped
        assert operation.was_rescued is (cancelled and outcome == lib.AZC_RESCUED)

    @pytest.mark.parametrize(
        ("outcome", "kind", "words"),
        [
            (lib.AZC_REFUSED, MemoryError, "no memory to queue"),
            (lib.AZC_DROPPED, StreamBroken, ": 3 of 5 bytes"),
            (lib.AZC_UNKNOWN, StreamBroken, "at least 3 of 5 bytes"),
        ],
    )
    def test_what_failed(
        self, port: Port, outcome: int, kind: type[Exception], words: str
    ) -> None:
        operation = Operation(port, [])
        operation.total = 5
        operation.end(3, -errno.ENOMEM, outcome)
        port.forget(operation)
        failure = operation.failure()
        assert type(failure) is kind
        assert words in str(failure)

    def test_pages_that_somebody_may_see_stay_borrowed(self, port: Port) -> None:
        data = bytearray(10_000)
        operation = Operation(port, [pin(data)])
        operation.end(0, 0, lib.AZC_KEPT)
        port.forget(operation)
        assert is_borrowed(data)
        borrows.give_back(operation.token)
        assert not is_borrowed(data)


class TestEvents:
    """What `Port.drain` makes of them.  Events may be told twice, or too late."""

    @pytest.mark.parametrize("status", [lib.AZC_ROOM, lib.AZC_COPIED, 0])
    def test_of_an_operation_that_nobody_waits_for(self, status: int) -> None:
        data = bytearray(10_000)
        port = Port()
        operation = Operation(port, [pin(data)])
        event = SimpleNamespace(
            token=operation.token, status=status, bytes=0, outcome=lib.AZC_DROPPED
        )
        borrows._note(event, {})
        assert is_borrowed(data) is (status != 0)
        operation.end(0, 0, 0)


class TestWait:
    def test_with_a_limit_that_is_not_reached(self, pipe: Unread, port: Port) -> None:
        operation = pipe.send(port, bytearray(SIZE))
        reader = threading.Thread(target=pipe.read)
        reader.start()
        assert port.wait(operation, 60) is True
        reader.join()

    @pytest.mark.parametrize("seconds", [0, 0.2])
    def test_as_long_as_was_said(
        self, pipe: Unread, port: Port, seconds: float
    ) -> None:
        operation = pipe.send(port, bytearray(SIZE))
        begin, worked = time.monotonic(), time.thread_time()
        assert port.wait(operation, seconds) is False
        assert time.monotonic() - begin >= seconds
        assert time.thread_time() - worked < 0.1  # it slept
        pipe.read()
        assert port.wait(operation)


class TestClose:
    def test_not_while_an_operation_is_on_its_way(self, pipe: Unread) -> None:
        port = Port()
        data = bytearray(SIZE)
        operation = pipe.send(port, data)
        assert port.is_busy() is True
        assert port.close() is False
        assert is_borrowed(data)
        pipe.read()
        assert port.wait(operation)
        assert port.is_busy() is False
        assert port.close() is True
        assert port.is_busy() is False

    def test_a_port_that_was_never_opened(self) -> None:
        lost = list(borrows._lost)
        Port.__new__(Port).__del__()
        unopened = Port.__new__(Port)
        unopened._number, unopened.operations = ffi.new("azc_id *"), {}
        unopened.__del__()
        assert borrows._lost == lost

    def test_nothing_is_closed_at_the_interpreters_end(self) -> None:
        port = Port()
        port.__del__(lambda: True)
        assert port.fileno() >= 0
        assert port.close()


def open_a_channel() -> None:
    Unread().close()


class TestLost:
    """Ports that Python dropped while C had something of theirs."""

    def lose(self, pipe: Unread, data: bytearray) -> int:
        """The number of a port that nothing refers to any more."""
        port = Port()
        pipe.send(port, data)
        return port.id

    def test_an_idle_port_is_closed_at_once(self) -> None:
        number = Port().id
        gc.collect()
        assert number not in borrows._lost
        assert lib.azc_port_fd(number) < 0

    @pytest.mark.parametrize("by", [borrows.sweep, Port, open_a_channel])
    def test_its_memory_comes_back(
        self, pipe: Unread, by: Callable[[], object]
    ) -> None:
        data = bytearray(SIZE)
        number = self.lose(pipe, data)
        gc.collect()
        assert number in borrows._lost
        borrows.sweep()
        assert number in borrows._lost  # still on its way
        assert is_borrowed(data)
        pipe.read()
        ready = select.poll()
        ready.register(lib.azc_port_fd(number), select.POLLIN)
        assert ready.poll(10_000)
        by()
        assert not is_borrowed(data)
        assert number not in borrows._lost
        assert lib.azc_port_fd(number) < 0
