"""One channel, by hand: its fd, its port, and what a call that sends has returned."""

from __future__ import annotations

import errno
import gc
import os
import select
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from answering import Answering
from interruption import keeps_a_view
from unread import SIZE, Unread, is_open

from aiozerocopy import StreamBroken, StreamClosed
from aiozerocopy._core import channel as core
from aiozerocopy._core import fork_and_exit
from aiozerocopy._core.binding import BUSY, IN_PROGRESS, PORTABLE, check, lib
from aiozerocopy._core.borrows import Operation, Port, borrowed
from aiozerocopy._core.channel import CHANGED, IN, OUT, OWN, Channel, lane_of, own_end
from aiozerocopy._core.fds import close_fds, duplicates, room_for
from aiozerocopy._core.pins import pin_writable

if TYPE_CHECKING:
    from collections.abc import Iterator


at_once = pytest.mark.skipif(PORTABLE, reason="there the pump writes to every pipe")


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


@pytest.fixture
def bound(pipe: Unread, port: Port) -> Iterator[Unread]:
    pipe.channel.bind_port(port, 1000)
    yield pipe
    pipe.channel.abort()
    pipe.channel.unbind_port()


def interrupt(*_: object) -> Any:
    raise KeyboardInterrupt


def outcome(operation: Operation) -> tuple[bool, int, int, int, int]:
    it = operation
    return it.done, it.sent, it.total, it.status, it.outcome


class TestFd:
    def test_our_own_end_does_not_block(self) -> None:
        for fd, flags in zip(os.pipe(), (IN, OUT), strict=True):
            channel = own_end(fd, flags)
            assert channel.fileno() == fd
            assert not os.get_blocking(fd)
            channel.abort()
            assert not is_open(fd)
            assert channel.fileno() == -1

    def test_it_is_closed_if_it_cannot_be_ours(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read_fd, write_fd = os.pipe()
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            Channel(read_fd, OWN)  # in no direction
        assert not is_open(read_fd)
        monkeypatch.setattr(os, "set_blocking", interrupt)
        with pytest.raises(KeyboardInterrupt):
            own_end(write_fd, OUT)
        assert not is_open(write_fd)

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
            assert not closed  # by us: it is C's
            assert not is_open(fds[1])
            patched.setattr(core, "sweep", interrupt)
            with pytest.raises(KeyboardInterrupt):
                Channel(fds[0], IN | OWN)
            assert closed == [fds[0]]
        os.close(fds[0])

    def test_the_other_direction_has_the_same(self) -> None:
        left, right = os.pipe()
        one = Channel(left, IN | OWN)
        other = one.opposite()
        assert other.fileno() == left
        assert other.id != one.id
        one.abort()
        other.abort()
        os.close(right)


class TestAFork:
    def test_the_childs_is_inherited(
        self, pipe: Unread, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert pipe.channel.inherited is False
        following = fork_and_exit.generation + 1
        monkeypatch.setattr(fork_and_exit, "generation", following)
        assert pipe.channel.inherited is True


class TestPort:
    def test_it_is_made_ready(self, pipe: Unread, port: Port) -> None:
        pipe.channel.bind_port(port, 10)
        ready = pipe.channel.ready
        assert ready is not None
        assert port.operations == {ready.token: ready}
        assert borrowed[ready.token] == [None]
        pipe.channel.unbind_port()
        assert pipe.channel.ready is None
        assert not port.operations
        assert ready.token not in borrowed

    def test_a_channel_that_is_gone_has_none(self, pipe: Unread, port: Port) -> None:
        pipe.channel.bind_port(port, 10)
        ready = pipe.channel.ready
        assert ready is not None
        lib.azc_free(pipe.channel.id)
        pipe.channel.bind_port(port, 10)
        assert pipe.channel.ready is None
        for each in list(port.operations.values()):
            each.end(0, 0, 0)
            port.forget(each)

    def test_what_a_send_is_using_stays_borrowed(
        self, bound: Unread, port: Port
    ) -> None:
        ready = bound.channel.ready
        assert ready is not None
        ready.views[0] = b"in use"
        bound.channel.unbind_port()
        assert ready.token in borrowed
        assert ready.token in port.operations
        ready.end(0, 0, 0)
        port.forget(ready)

    @at_once
    def test_the_budget_of_calls_is_kept(self, pipe: Unread, port: Port) -> None:
        """Also by an operation that becomes ready after another one."""
        pipe.channel.bind_port(port, 3)
        results = [self.send(pipe, port) for _ in range(9)]
        assert results == [0, 0, 1] * 3
        pipe.channel.unbind_port()

    @staticmethod
    def send(pipe: Unread, port: Port) -> int:
        ready = pipe.channel.ready
        assert ready is not None
        result = pipe.channel.put_bound(port, ready, b"x")
        assert ready.views == ([None] if result == 0 else [])
        assert ready.done is (result != 0)
        assert (ready is pipe.channel.ready) is (result == 0)
        assert pipe.read(1) == b"x"
        return result


class TestSubmit:
    def test_pieces(self, pipe: Unread, port: Port) -> None:
        operation = Operation(port, [])
        result = pipe.channel.submit(port, operation, (b"ab", b"", b"cd"))
        assert result == 1  # (without a budget the caller yields each time)
        assert outcome(operation) == (True, 4, 4, 0, 0)
        assert not port.operations
        assert pipe.read(4) == b"abcd"

    @at_once
    def test_beside_one_that_is_ready(self, bound: Unread, port: Port) -> None:
        ready, operation = bound.channel.ready, Operation(port, [])
        assert bound.channel.submit(port, operation, (b"abcd",)) == 0
        assert outcome(operation) == (True, 4, 4, 0, 0)
        assert bound.channel.ready is ready
        assert bound.channel.send_now(port, (b"ef",)).done
        assert bound.read(6) == b"abcdef"

    def test_messages(self, pipe: Unread, port: Port) -> None:
        operation = Operation(port, [])
        assert pipe.channel.submit(port, operation, (b"ab", b"cd"), (1, 2, 1)) == 1
        assert pipe.channel.stats().messages == 3
        assert pipe.read(4) == b"abcd"

    def test_sizes_that_are_not_those_of_the_buffers(
        self, pipe: Unread, port: Port
    ) -> None:
        operation = Operation(port, [])
        with pytest.raises(ValueError, match=CHANGED):
            pipe.channel.submit(port, operation, (b"ab", b"cd"), (1, 2))
        assert pipe.channel.take_back(port, operation, 0)
        assert not port.operations
        assert pipe.channel.stats().messages == 0

    def test_one_that_asks_for_room(self, pipe: Unread, port: Port) -> None:
        pipe.channel.set_limit(1)
        first = pipe.send(port, bytes(SIZE))
        second = Operation(port, [])
        submit = pipe.channel.submit
        assert submit(port, second, (b"x",), ask_room=True) == BUSY
        assert not second.done
        pipe.read(SIZE + 1)
        assert port.wait(second, 60)
        assert first.done
        assert not port.operations

    def test_a_refusal(self, pipe: Unread, port: Port) -> None:
        pipe.channel.abort()
        operation = Operation(port, [])
        result = pipe.channel.submit(port, operation, (b"ab",))
        assert result == -errno.ESHUTDOWN
        assert outcome(operation) == (True, 0, 2, result, 0)
        assert not port.operations

    def test_a_batch_whose_sizes_are_needed(self, bound: Unread, port: Port) -> None:
        """It does not go out whole, so a cancel has to know where a message ends."""
        messages = [bytes([n]) * 999 for n in range(200)]
        block = b"".join(messages)
        ready = bound.channel.ready
        assert ready is not None
        assert bound.channel.send_batch(port, ready, block, messages) == IN_PROGRESS
        assert ready.total == len(block)
        assert borrowed[ready.token][0] is block
        begun = bound.read(1)
        bound.channel.take_back_blocking(port, ready, SIZE)
        assert port.wait(ready, 60)
        last = Operation(port, [])
        bound.channel.submit(port, last, (b"end",))
        arrived = begun + bound.read_to(b"end")
        assert len(arrived) % 999 == 0
        assert arrived == block[: len(arrived)] != block
        assert port.wait(last, 60)


class TestCheck:
    @pytest.mark.parametrize("code", [errno.EPERM, errno.EIO])
    def test_an_error_is_raised(self, code: int) -> None:
        with pytest.raises(OSError, match=os.strerror(code)) as caught:
            check(-code)
        assert caught.value.errno == code

    def test_a_result_is_returned(self) -> None:
        assert [check(result) for result in (0, 1, 7)] == [0, 1, 7]


class TestPutBound:
    def test_an_interrupted_one_holds_no_view(
        self, bound: Unread, port: Port, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ready = bound.channel.ready
        assert ready is not None
        view, raised = memoryview(bytes(10_000)), list[BaseException]()
        with monkeypatch.context() as patched:
            patched.setattr(Channel, "note_result", interrupt)
            try:
                bound.channel.put_bound(port, ready, view)
            except KeyboardInterrupt as error:
                raised.append(error)
        bound.channel.take_back_blocking(port, ready, SIZE)
        assert raised
        assert not keeps_a_view(raised, [view])

    def test_nobody_may_resize_what_is_sent(self, bound: Unread, port: Port) -> None:
        ready, data = bound.channel.ready, bytearray(SIZE)
        assert ready is not None
        assert bound.channel.put_bound(port, ready, data) == IN_PROGRESS
        with pytest.raises(BufferError):
            data.append(0)
        bound.read()
        assert port.wait(ready, 60)
        data.append(0)


class TestSendNow:
    def test_at_once(self, pipe: Unread, port: Port) -> None:
        assert pipe.channel.send_now(port, (b"ab",)).done
        assert pipe.read(2) == b"ab"

    def test_later(self, pipe: Unread, port: Port) -> None:
        operation = pipe.channel.send_now(port, (bytes(SIZE),))
        assert not operation.done
        pipe.read()
        assert port.wait(operation, 60)

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
        """Once it has begun, which a socket's does at once."""
        ours, peer = socket.socketpair()
        ours.setblocking(False)
        channel = Channel(ours.detach(), OUT | OWN)
        monkeypatch.setattr(Channel, "note_result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            channel.send_now(port, (b"x" * SIZE,))
        with peer:
            assert peer.recv(SIZE, socket.MSG_WAITALL) == b"x" * SIZE
        channel.abort()

    def test_what_is_not_allowed_has_not_moved(
        self, pipe: Unread, port: Port, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        operation = Operation(port, [])
        monkeypatch.setattr(core, "lib", Answering("azc_sendv", -errno.EPERM))
        assert pipe.channel.submit(port, operation, (b"ab",)) == -errno.EPERM
        assert outcome(operation) == (True, 0, 2, -errno.EPERM, 0)

    def test_of_which_nothing_is_allowed(
        self, pipe: Unread, port: Port, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As by a firewall: the smallest error that there is."""
        monkeypatch.setattr(core, "lib", Answering("azc_sendv", -errno.EPERM))
        with pytest.raises(StreamBroken):
            pipe.channel.send_now(port, (b"ab",))
        assert not port.operations


class Filled:
    """A pipe in which something is, and a channel of ours that receives from it."""

    def __init__(self, data: bytes) -> None:
        read_fd, self.fd = os.pipe()
        os.write(self.fd, data)
        self.channel = own_end(read_fd, IN)
        self.memory = bytearray(10)
        self.view = pin_writable(self.memory)

    def close(self) -> None:
        os.close(self.fd)
        self.channel.abort()


@pytest.fixture
def filled() -> Iterator[Filled]:
    made = Filled(b"abc")
    yield made
    made.close()


class TestReceive:
    def receive(self, it: Filled, port: Port, start: int, need: int) -> Operation:
        operation = Operation(port, [it.view])
        result = it.channel.receive(port, operation, it.view, start, need)
        assert result == (IN_PROGRESS if not operation.done else operation.status)
        return operation

    @at_once
    def test_at_once(self, filled: Filled, port: Port) -> None:
        operation = self.receive(filled, port, 2, 1)
        assert outcome(operation) == (True, 3, 8, 0, 0)
        assert filled.memory == b"\0\0abc" + bytes(5)
        assert not port.operations

    def test_later(self, filled: Filled, port: Port) -> None:
        operation = self.receive(filled, port, 0, 4)
        assert not operation.done
        os.write(filled.fd, b"d")
        assert port.wait(operation, 60)
        assert outcome(operation)[:4] == (True, 4, 10, 0)
        assert filled.memory == b"abcd" + bytes(6)

    def test_never(self, filled: Filled, port: Port) -> None:
        filled.channel.abort()
        operation = self.receive(filled, port, 0, 1)
        assert outcome(operation) == (True, 0, 10, -errno.ESHUTDOWN, 0)
        assert not port.operations

    @at_once
    def test_one_that_was_interrupted(self, filled: Filled, port: Port) -> None:
        """After C's call and before Python has noted what it said."""
        operation = Operation(port, [filled.view])
        arguments = (port.id, operation.token, filled.view, 10, 1)
        assert lib.azc_recv(filled.channel.id, *arguments) == 3
        assert filled.channel.take_back(port, operation, 0)
        assert outcome(operation)[:2] == (True, 3)
        other = Operation(port, [])
        assert filled.channel.take_back(port, other, 0)
        assert outcome(other) == (True, 0, 0, 0, 0)
        assert not port.operations

    def test_files_are_borrowed_with_their_message(
        self, pipe: Unread, port: Port, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fds, operation = duplicates([0]), Operation(port, [])
        monkeypatch.setattr(core, "lib", Answering("azc_send_fds", IN_PROGRESS))
        assert pipe.channel.send_fds(port, operation, b"x", fds) == IN_PROGRESS
        assert borrowed[operation.token][0] is fds
        operation.end(0, 0, 0)
        port.forget(operation)

    def test_files_with_bytes(self, port: Port) -> None:
        left, right = socket.socketpair()
        for each in (left, right):
            each.setblocking(False)
        sender = Channel(left.detach(), OUT | OWN)
        receiver = Channel(right.detach(), IN | OWN)
        sent = Operation(port, [])
        with pytest.raises(ValueError, match="empty"):
            sender.send_fds(port, sent, b"", duplicates([0]))
        assert sender.take_back(port, sent, 0)
        sent = Operation(port, [])
        assert sender.send_fds(port, sent, b"x", duplicates([0])) == 1
        assert outcome(sent) == (True, 1, 1, 0, 0)
        fds, memory = room_for(1), bytearray(10)
        received = Operation(port, [])
        view = pin_writable(memory)
        result = receiver.receive(port, received, view, 0, 10, fds)
        assert port.wait(received, 60)
        assert (result, received.sent) == (0, 1)
        assert fds.count == 1
        close_fds(fds)
        sender.abort()
        receiver.abort()


class TestTakeBack:
    def test_what_was_never_submitted(self, pipe: Unread, port: Port) -> None:
        operation = Operation(port, [b"x"])
        for _ in range(2):
            assert pipe.channel.take_back(port, operation, 0)
        assert (operation.done, operation.sent, operation.status) == (True, 0, 0)
        assert not port.operations

    def test_what_is_ready(self, bound: Unread, port: Port) -> None:
        ready = bound.channel.ready
        assert ready is not None
        assert bound.channel.take_back(port, ready, 0)
        assert bound.channel.ready is None
        assert ready.done

    def test_what_has_not_begun(self, pipe: Unread, port: Port) -> None:
        first = pipe.send(port, bytes(SIZE))
        second = pipe.send(port, b"x" * SIZE)
        assert pipe.channel.take_back(port, second, 0)
        cancelled = (-errno.ECANCELED, lib.AZC_DROPPED)
        assert outcome(second) == (True, 0, SIZE, *cancelled)
        pipe.read()
        assert port.wait(first, 60)
        assert pipe.channel.stats().messages == 1

    def test_what_has_begun(self, pipe: Unread, port: Port) -> None:
        data = bytearray(b"x" * SIZE)
        operation = pipe.send(port, data)
        pipe.read(1)  # (so that it has)
        pipe.channel.take_back_blocking(port, operation, SIZE)
        assert port.wait(operation, 60)
        assert operation.was_rescued
        assert 0 < operation.sent < SIZE
        data[:] = b"y" * SIZE
        assert pipe.read(SIZE - 1) == b"x" * (SIZE - 1)

    @pytest.mark.parametrize("came", [False, True])
    def test_what_a_call_is_using(
        self,
        pipe: Unread,
        port: Port,
        came: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Its end may come just then."""
        operation, waited = Operation(port, [b"x"]), list[float]()

        def drain() -> None:
            if came:
                operation.end(1, 0, 0)

        monkeypatch.setattr(core, "lib", Answering("azc_cancel", lib.AZC_LATER))
        monkeypatch.setattr(port, "drain", drain)
        monkeypatch.setattr(port, "wait", lambda _, seconds: waited.append(seconds))
        assert pipe.channel.take_back(port, operation, 0) is came
        pipe.channel.take_back_blocking(port, operation, 0)
        assert waited == ([] if came else [core._HELD_UP])
        assert operation.done is came
        operation.end(1, 0, 0)
        port.forget(operation)

    @pytest.mark.parametrize("noted", [False, True])
    def test_what_is_over(self, pipe: Unread, port: Port, noted: bool) -> None:
        operation = pipe.send(port, bytes(SIZE))
        pipe.read()
        ready = select.poll()
        ready.register(port.fileno(), select.POLLIN)
        assert ready.poll(10_000)
        if noted:
            port.drain()
        assert pipe.channel.take_back(port, operation, 0)
        assert (operation.sent, operation.status) == (SIZE, 0)


@pytest.mark.parametrize(
    ("lent", "lends", "lane"),
    [(0, 0, "copy"), (0, 1, "copy"), (5, 0, "copy"), (5, 1, "vmsplice")],
)
def test_lane(lent: int, lends: int, lane: str) -> None:
    stats: Any = SimpleNamespace(lent=lent, lends=lends)
    assert lane_of(stats) == lane


class TestErrors:
    def test_a_call_that_failed(self, pipe: Unread) -> None:
        assert type(pipe.channel.refused(-errno.ENOMEM, 5)) is MemoryError

    def test_a_channel_that_broke(self, pipe: Unread, port: Port) -> None:
        os.close(pipe.fd)
        operation = Operation(port, [])
        pipe.channel.submit(port, operation, (b"x",))
        error = pipe.channel.refused(-errno.ENOMEM, 5)
        assert type(error) is StreamBroken
        assert (error.bytes_sent, error.total) == (0, 5)
        pipe.fd = os.open(os.devnull, os.O_RDONLY)

    def test_a_shutdown_that_cannot_be(self, pipe: Unread) -> None:
        with pytest.raises(StreamBroken) as caught:
            pipe.channel.shutdown()  # a pipe has none
        assert caught.value.total == 0


class TestClosing:
    def test_it_is_closed(self, pipe: Unread, port: Port) -> None:
        fd = pipe.channel.fileno()
        closing = [pipe.channel.close(port) for _ in range(2)]
        assert closing[0] is closing[1]
        assert port.wait(closing[0], 60)
        assert outcome(closing[0]) == (True, 0, 0, 0, 0)
        assert not is_open(fd)
        assert not port.operations

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
            patched.setattr(Channel, "fileno", lambda _: 0)  # any fd may have it
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

    def test_one_that_never_began(self) -> None:
        Channel.__new__(Channel).__del__()

    def test_at_the_interpreters_end_it_stays(self, pipe: Unread) -> None:
        pipe.channel.__del__(lambda: True)
        assert pipe.channel.fileno() >= 0

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
