"""One channel, by hand: its fd, its port, and what a call that sends has returned."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import select
import socket
import sys
import termios
from typing import TYPE_CHECKING, Any

import pytest
from answering import Answering
from unread import SIZE, Unread

from aiozerocopy import StreamBroken, StreamClosed
from aiozerocopy._core import channel as core
from aiozerocopy._core.binding import IN_PROGRESS, PORTABLE, lib
from aiozerocopy._core.borrows import Operation, Port
from aiozerocopy._core.channel import IN, OUT, OWN, Channel
from aiozerocopy._core.pins import pin
from aiozerocopy._core.pipe_size import capacity_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
    return it.done, it.moved, it.total, it.status, it.outcome


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


class TestFd:
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


class TestPort:
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


class TestSubmit:
    @at_once
    def test_beside_one_that_is_ready(self, bound: Unread, port: Port) -> None:
        ready, operation = bound.channel.ready, Operation(port, [])
        assert bound.channel.submit(port, operation, (b"abcd",)) == 0
        assert outcome(operation) == (True, 4, 4, 0, 0)
        assert bound.channel.ready is ready
        assert bound.channel.send_now(port, (b"ef",)).done
        with pin(b"gh") as data:
            assert bound.channel.send_copied(port, data, bytearray(2)).done
        assert bound.read(8) == b"abcdefgh"


class TestSendNow:
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

    @pytest.mark.parametrize("way", ["azc_sendv", "azc_send_copied"])
    def test_of_which_nothing_is_allowed(
        self, pipe: Unread, port: Port, way: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As by a firewall: the smallest error that there is."""
        monkeypatch.setattr(core, "lib", Answering(way, -errno.EPERM))
        with pytest.raises(StreamBroken), pin(b"ab") as data:
            if way == "azc_sendv":
                pipe.channel.send_now(port, (b"ab",))
            else:
                pipe.channel.send_copied(port, data, bytearray(2))
        assert not port.operations


class TestSendCopied:
    """From memory that is another's as soon as the call returns: OpenGL's, say.

    Some of it goes at once, the rest from a copy.  (The portable build sends nothing at
    once: its threads may not write to a pipe that could block them.)
    """

    @staticmethod
    def send(channel: Channel, port: Port, data: bytes) -> Operation:
        memory, copy = bytearray(data), mmap.mmap(-1, max(1, len(data)))
        with pin(memory) as view:
            operation = channel.send_copied(port, view, copy)
        memory[:] = bytes(len(memory))
        memory.append(0)
        return operation

    @pytest.mark.parametrize("n", [0, 1, 5000, 60_000])
    def test_what_fits_is_out_at_once(self, pipe: Unread, port: Port, n: int) -> None:
        data = os.urandom(n)
        operation = self.send(pipe.channel, port, data)
        assert operation.done or PORTABLE
        assert pipe.read(n) == data
        assert port.wait(operation, 60)
        assert pipe.channel.stats().messages == 1

    def test_the_rest_follows_in_the_order_of_the_calls(
        self, pipe: Unread, port: Port
    ) -> None:
        pipe.channel.set_limit(1 << 40)
        sent = [os.urandom(n) for n in (SIZE, 10, 200_000, 0, SIZE)]
        operations = [self.send(pipe.channel, port, data) for data in sent]
        assert not operations[0].done
        assert PORTABLE or 0 < pipe.channel.stats().bytes < SIZE  # it has begun
        assert pipe.read(2 * SIZE + 200_010) == b"".join(sent)
        for operation in operations:
            assert port.wait(operation, 60)
            operation.raise_if_failed()

    def test_its_copy_is_borrowed_until_it_is_out(
        self, pipe: Unread, port: Port
    ) -> None:
        copy = bytearray(SIZE)
        with pin(b"x" * SIZE) as data:
            operation = pipe.channel.send_copied(port, data, copy)
        assert operation.total == SIZE
        with pytest.raises(BufferError):
            copy.append(0)
        assert pipe.read() == b"x" * SIZE
        assert port.wait(operation, 60)
        copy.append(0)

    def test_its_reader_leaves(self, pipe: Unread, port: Port) -> None:
        operation = self.send(pipe.channel, port, bytes(SIZE))
        size = capacity_of(pipe.fd)
        while unread(pipe.fd) != size:
            pass
        os.close(pipe.fd)
        pipe.fd = os.open(os.devnull, os.O_RDONLY)
        assert port.wait(operation, 60)
        with pytest.raises(StreamBroken) as caught:
            operation.raise_if_failed()
        assert (caught.value.bytes_sent, caught.value.total) == (size, SIZE)
        with pytest.raises(StreamBroken) as caught:
            self.send(pipe.channel, port, b"more")
        assert (caught.value.bytes_sent, caught.value.total) == (0, 4)

    def test_a_channel_that_is_closed(self, pipe: Unread, port: Port) -> None:
        waiting = self.send(pipe.channel, port, bytes(SIZE))
        pipe.channel.abort()
        assert port.wait(waiting, 60)
        with pytest.raises(StreamClosed):
            waiting.raise_if_failed()
        copy = bytearray(2)
        with pin(b"ab") as data:
            with pytest.raises(StreamClosed):
                pipe.channel.send_copied(port, data, copy)
            with pytest.raises(BufferError):
                pipe.channel.send_copied(port, data, b"ab")  # it cannot be a copy
        copy.append(0)
        assert not port.operations

    def test_a_file(self, port: Port, tmp_path: Path) -> None:
        """No pipe: all of it is copied first."""
        fd = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
        channel, data = Channel(fd, OUT), os.urandom(3 * SIZE)
        assert port.wait(self.send(channel, port, data), 60)
        channel.abort()
        assert (tmp_path / "file").read_bytes() == data


def unread(fd: int) -> int:
    answer = fcntl.ioctl(fd, termios.FIONREAD, bytes(4))
    return int.from_bytes(answer, sys.byteorder)


class TestTakeBack:
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
        assert (operation.moved, operation.status) == (SIZE, 0)


class TestErrors:
    def test_a_shutdown_that_cannot_be(self, pipe: Unread) -> None:
        with pytest.raises(StreamBroken) as caught:
            pipe.channel.shutdown()  # a pipe has none
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
