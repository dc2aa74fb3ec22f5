"""One operation, one port, one channel, by hand: what C has borrowed, and how it ends.

The tests of the contract check what streams do with them.  A stream meets the
situations in this file only once in a great while.
"""

import errno
import gc
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from answering import Answering, interrupt
from interruption import is_exported
from unread import SIZE, Unread, is_open

import aiozerocopy as azc
from aiozerocopy import StreamBroken, StreamClosed
from aiozerocopy._core import borrows
from aiozerocopy._core import channel as core
from aiozerocopy._core.binding import IN_PROGRESS, PORTABLE, constants, ffi, lib
from aiozerocopy._core.borrows import Operation, Port, borrowed
from aiozerocopy._core.channel import IN, OUT, OWN, Channel
from aiozerocopy._core.fds import duplicates
from aiozerocopy._core.pins import pin, pin_writable


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


# ---- operations and ports -----------------------------------------------------------


class TestOperation:
    @pytest.mark.parametrize("sent", [0, 1])
    @pytest.mark.parametrize("status", [0, -errno.ECANCELED, errno.ECANCELED])
    @pytest.mark.parametrize("outcome", [constants.AZC_DROPPED, constants.AZC_RESCUED])
    def test_how_it_was_cancelled(
        self, port: Port, sent: int, status: int, outcome: int
    ) -> None:
        operation = Operation(port, [])
        operation.end(sent, status, outcome)
        port.forget(operation)
        cancelled = status == -errno.ECANCELED
        dropped = cancelled and outcome == constants.AZC_DROPPED and sent == 0
        assert operation.was_dropped is dropped
        assert operation.was_rescued is (cancelled and outcome == constants.AZC_RESCUED)

    def test_listeners_are_told_once(self, port: Port) -> None:
        told: list[str] = []
        operation = Operation(port, [])
        operation.listen(partial(told.append, "of room"))
        operation.listen(gone := partial(told.append, "too late"))
        operation.forget(gone)
        for change in (operation.admit, operation.end, operation.end):
            change()
        port.forget(operation)
        assert told == ["of room"]

    def test_pages_that_somebody_may_see_stay_borrowed(self, port: Port) -> None:
        data = bytearray(10_000)
        operation = Operation(port, [pin(data)])
        operation.end(0, 0, constants.AZC_KEPT)
        port.forget(operation)
        assert is_exported(data)
        borrows.give_back(operation.token)
        assert not is_exported(data)


class TestEvents:
    """How `Port.drain` treats events, which may come twice, or too late."""

    @pytest.mark.parametrize("status", [constants.AZC_ROOM, constants.AZC_COPIED, 0])
    def test_of_an_operation_that_nobody_waits_for(self, status: int) -> None:
        data = bytearray(10_000)
        port = Port()
        operation = Operation(port, [pin(data)])
        event = SimpleNamespace(
            token=operation.token, status=status, bytes=0, outcome=constants.AZC_DROPPED
        )
        borrows._note(event, {})
        assert is_exported(data) is (status != 0)
        operation.end(0, 0, 0)

    @pytest.mark.parametrize("status", [constants.AZC_ROOM, constants.AZC_COPIED])
    def test_of_one_that_goes_on(self, port: Port, status: int) -> None:
        views = [pin(bytearray(10)) for _ in range(2)]
        copy, operation = views[-1:], Operation(port, views)
        event = SimpleNamespace(token=operation.token, status=status)
        borrows._note(event, port.operations)
        assert operation.has_room is (status == constants.AZC_ROOM)
        assert (views == copy) is (status == constants.AZC_COPIED)
        assert not operation.done
        operation.end()
        port.forget(operation)

    def test_that_another_thread_is_to_take(self, pipe: Unread, port: Port) -> None:
        """They stay in C, but do not hide those that come later."""
        early = [pipe.send(port, data) for data in (bytes(SIZE), *[b"x"] * 200)]
        last = pipe.send(port, bytes(SIZE))
        pipe.read(SIZE + 201)
        while not all(each.done for each in early):
            port.look()
        assert not last.done
        pipe.read(SIZE - 1)
        while pipe.channel.stats().queued:
            pass
        port.look()
        assert last.done


class TestWait:
    @pytest.mark.parametrize("seconds", [0, 0.2])
    def test_as_long_as_said(self, pipe: Unread, port: Port, seconds: float) -> None:
        operation = pipe.send(port, bytearray(SIZE))
        begin, worked = time.monotonic(), time.thread_time()
        assert port.wait(operation, seconds) is False
        assert time.monotonic() - begin >= seconds
        assert time.thread_time() - worked < 0.1  # it slept, instead of polling
        pipe.read()
        assert port.wait(operation)


class TestClose:
    def test_what_has_ended_is_noted(self, pipe: Unread) -> None:
        port = Port()
        data = bytearray(SIZE)
        operation = pipe.send(port, data)
        pipe.read()
        assert select.select([port.fileno()], [], [], 10)[0]
        assert port.close() is True
        assert operation.done
        assert not is_exported(data)

    def test_a_port_that_was_never_opened(self) -> None:
        lost = list(borrows._lost)
        Port.__new__(Port).__del__()
        unopened = Port.__new__(Port)
        unopened._number, unopened.operations = ffi.new("azc_id *"), {}
        unopened.__del__()
        assert borrows._lost == lost


class TestLost:
    """Ports that Python dropped while C still used memory of their operations."""

    def lose(self, pipe: Unread, data: bytearray) -> int:
        """Return the number of a port to which nothing refers any more."""
        port = Port()
        pipe.send(port, data)
        return port.id

    def test_an_idle_port_is_closed_at_once(self) -> None:
        number = Port().id
        gc.collect()
        assert number not in borrows._lost
        assert lib.azc_port_fd(number) < 0

    @pytest.mark.parametrize("by", [borrows.sweep, Port, lambda: Unread().close()])
    def test_memory_comes_back(self, pipe: Unread, by: Callable[[], object]) -> None:
        data = bytearray(SIZE)
        number = self.lose(pipe, data)
        gc.collect()
        assert number in borrows._lost
        borrows.sweep()
        assert number in borrows._lost  # its message is still in progress
        assert is_exported(data)
        pipe.read()
        ready = select.poll()
        ready.register(lib.azc_port_fd(number), select.POLLIN)
        assert ready.poll(10_000)
        by()
        assert not is_exported(data)
        assert number not in borrows._lost
        assert lib.azc_port_fd(number) < 0


# ---- channels ------------------------------------------------------------------------


@pytest.fixture
def bound(pipe: Unread, port: Port) -> Iterator[Unread]:
    pipe.channel.bind_port(port, 1000)
    yield pipe
    pipe.channel.abort()
    pipe.channel.unbind_port()


def outcome(operation: Operation) -> tuple[bool, int, int, int, int]:
    it = operation
    return it.done, it.sent, it.total, it.status, it.outcome


class TestFd:
    def test_closed_if_it_cannot_be_ours(self) -> None:
        read_fd, write_fd = os.pipe()
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            Channel(read_fd, OWN)  # neither IN nor OUT
        assert not is_open(read_fd)
        os.close(write_fd)

    def test_it_is_closed_once_if_the_start_is_interrupted(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fds, closed = os.pipe(), list[int]()
        with monkeypatch.context() as patched:
            patched.setattr(core, "check", interrupt)
            patched.setattr(os, "close", closed.append)
            with pytest.raises(KeyboardInterrupt):
                Channel(fds[1], OUT | OWN)
            gc.collect()
            assert not closed  # our code has not closed it: C has
            assert not is_open(fds[1])
            patched.setattr(f"{core.__name__}.OfOneProcess.__init__", interrupt)
            with pytest.raises(KeyboardInterrupt):
                Channel(fds[0], IN | OWN)
            assert closed == [fds[0]]
        os.close(fds[0])


class TestPort:
    def test_a_channel_that_is_gone_has_none(self, bound: Unread, port: Port) -> None:
        ready, before = bound.channel.ready, set(borrowed)
        assert ready is not None
        lib.azc_free(bound.channel.id)
        bound.channel.bind_port(port, 10)
        assert bound.channel.ready is None
        assert port.operations == {ready.token: ready}
        assert borrowed.keys() <= before
        ready.end()
        port.forget(ready)

    def test_what_a_send_uses_stays_borrowed(self, bound: Unread, port: Port) -> None:
        ready = bound.channel.ready
        assert ready is not None
        ready.views[0] = b"in use"
        bound.channel.unbind_port()
        assert ready.token in borrowed
        assert ready.token in port.operations
        ready.end(0, 0, 0)
        port.forget(ready)


class TestSendNow:
    def test_all_of_it(self, port: Port) -> None:
        one, other = azc.socketpair()
        one._out.bind_port(port, 100)
        operation = one._out.send_now(port, (b"ab", b"c"))
        assert port.wait(operation)
        assert (operation.sent, operation.total) == (3, 3)
        one.abort()
        other.abort()

    @pytest.mark.parametrize(
        ("buffers", "kind"), [((b"ab",), StreamClosed), ((b"ab", 5), TypeError)]
    )
    def test_never(
        self, pipe: Unread, port: Port, buffers: Any, kind: type[Exception]
    ) -> None:
        if kind is StreamClosed:
            pipe.channel.abort()
        with pytest.raises(kind):
            pipe.channel.send_now(port, buffers)
        assert not port.operations

    def test_an_interrupted_one_goes_out_whole(
        self, port: Port, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A socket's message begins at once, and then goes on."""
        ours, peer = socket.socketpair()
        ours.setblocking(False)
        channel = Channel(ours.detach(), OUT | OWN)
        monkeypatch.setattr(Channel, "note_result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            channel.send_now(port, (b"x" * SIZE,))
        with peer:
            assert peer.recv(SIZE, socket.MSG_WAITALL) == b"x" * SIZE
        channel.abort()


def test_files_are_borrowed_with_their_message(
    pipe: Unread, port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    fds, operation = duplicates([0]), Operation(port, [])
    monkeypatch.setattr(core, "lib", Answering("azc_send_fds", IN_PROGRESS))
    assert pipe.channel.send_fds(port, operation, b"x", fds) == IN_PROGRESS
    assert borrowed[operation.token][0] is fds
    operation.end()
    port.forget(operation)


class TestTakeBack:
    @pytest.mark.parametrize("noted", [False, True])
    def test_what_is_over(self, pipe: Unread, port: Port, noted: bool) -> None:
        operation = pipe.send(port, bytes(SIZE))
        pipe.read()
        assert select.select([port.fileno()], [], [], 10)[0]
        if noted:
            port.drain()
        assert pipe.channel.take_back(port, operation, 0)
        assert (operation.sent, operation.status) == (SIZE, 0)

    def test_a_receive_that_was_interrupted(self, port: Port) -> None:
        """The signal comes after C's call, before Python has noted the result."""
        read_fd, write_fd = os.pipe()
        os.write(write_fd, b"abc")
        channel, view = Channel(read_fd, IN | OWN), pin_writable(bytearray(10))
        operation = Operation(port, [view])
        came = lib.azc_recv(channel.id, port.id, operation.token, view, 10, 1, ffi.NULL)
        assert channel.take_back(port, operation, 0)
        assert came == 3 or PORTABLE
        assert outcome(operation)[:2] == (True, max(came, 0))
        os.close(write_fd)
        channel.abort()

    @pytest.mark.parametrize("came", [False, True])
    def test_what_a_call_is_using(
        self, pipe: Unread, port: Port, came: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The operation may end at that very moment."""
        operation, waited = Operation(port, [b"x"]), list[float]()

        def drain() -> None:
            if came:
                operation.end(1, 0, 0)

        monkeypatch.setattr(core, "lib", Answering("azc_cancel", constants.AZC_LATER))
        monkeypatch.setattr(port, "drain", drain)
        monkeypatch.setattr(port, "wait", lambda _, seconds: waited.append(seconds))
        assert pipe.channel.take_back(port, operation, 0) is came
        pipe.channel.take_back_blocking(port, operation, 0)
        assert waited == ([] if came else [core._HELD_UP])
        assert operation.done is came
        operation.end(1, 0, 0)
        port.forget(operation)


class TestErrors:
    def test_a_shutdown_that_cannot_be(self, pipe: Unread) -> None:
        with pytest.raises(StreamBroken) as caught:
            pipe.channel.shutdown()  # a pipe has no shutdown
        assert caught.value.total == 0


class TestClosing:
    def test_it_is_closed_where_there_is_no_memory_to_tell(
        self, pipe: Unread, port: Port, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fd = pipe.channel.fileno()
        closed: list[tuple[int, ...]] = []

        def close(*arguments: int) -> int:
            closed.append(arguments)
            return lib.azc_close(*arguments) if arguments[1] == 0 else -errno.ENOMEM

        monkeypatch.setattr(core, "lib", Answering("azc_close", close))
        closing = pipe.channel.close(port)
        assert outcome(closing) == (True, 0, 0, 0, 0)
        assert closed[1:] == [(pipe.channel.id, 0, 0)]
        assert pipe.channel.fileno() == -1
        assert not is_open(fd)
        assert not port.operations

    def test_how_long_it_may_take(self, pipe: Unread, port: Port) -> None:
        assert pipe.channel.patience() == core._CLOSING
        operation = pipe.send(port, bytes(SIZE))
        assert pipe.channel.patience() == core._CLOSING_IN_USE
        pipe.read()
        assert port.wait(operation, 60)

    def test_another_thread_may_close_it(
        self, pipe: Unread, port: Port, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(core, "lib", Answering("azc_close", IN_PROGRESS))
            patched.setattr(Channel, "fileno", lambda _: 0)  # any open fd
            closing = pipe.channel.close(port)
        assert not closing.done
        assert pipe.channel.close(port) is closing
        assert port.wait(closing, 60)

    def test_what_ports_have_lost_is_swept_with_it(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        swept: list[str] = []
        monkeypatch.setattr(core, "sweep", lambda: swept.append("swept"))
        pipe = Unread()
        assert swept == ["swept"]
        os.close(pipe.fd)
        del pipe
        gc.collect()
        assert swept == ["swept"] * 2

    def test_one_that_is_lost_goes_with_its_port(self, port: Port) -> None:
        pipe = Unread()
        pipe.channel.bind_port(port, 10)
        fd, number = pipe.channel.fileno(), pipe.channel.id
        os.close(pipe.fd)
        del pipe
        gc.collect()
        assert not is_open(fd)
        assert lib.azc_fd(number) < 0
        assert not port.operations
