"""One channel, by hand: its fd, its port, and what a call that sends has returned."""

from __future__ import annotations

import errno
import gc
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest
from answering import Answering
from unread import SIZE, Unread, is_open

from aiozerocopy import StreamBroken, StreamClosed
from aiozerocopy._core import channel as core
from aiozerocopy._core.binding import IN_PROGRESS, lib
from aiozerocopy._core.borrows import Operation, Port, borrowed
from aiozerocopy._core.channel import IN, OUT, OWN, Channel, own_end

if TYPE_CHECKING:
    from collections.abc import Iterator


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


class TestPort:
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


class TestSendNow:
    def test_at_once(self, pipe: Unread, port: Port) -> None:
        assert pipe.channel.send_now(port, (b"ab",)).done
        assert pipe.read(2) == b"ab"

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

    def test_of_which_nothing_is_allowed(
        self, pipe: Unread, port: Port, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As by a firewall: the smallest error that there is."""
        monkeypatch.setattr(core, "lib", Answering("azc_sendv", -errno.EPERM))
        with pytest.raises(StreamBroken):
            pipe.channel.send_now(port, (b"ab",))
        assert not port.operations


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
