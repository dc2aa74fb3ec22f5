"""A loop's waiter, step by step: it notices late ends, and then ends itself.

Operations that outlast a stream seldom last longer than microseconds.  Here a message
on the same port lasts until it is read.
"""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import anyio
import pytest
from interruption import Interruption
from links import cut_short, is_trio, meanwhile, others_wait, until
from unread import SIZE, Unread

import aiozerocopy as azc
from aiozerocopy._core import change
from aiozerocopy._core import waiter as waiter_module
from aiozerocopy._core.binding import PORTABLE, lib
from aiozerocopy._core.change import Change, RemoteChange
from aiozerocopy._core.waiter import (
    Loop,
    _waiters,
    announce_closing,
    call_soon,
    checkpoint,
    current_loop,
    current_waiter,
    enter,
    runs_here,
)

pytestmark = [pytest.mark.anyio, pytest.mark.every_loop]


class Busy:
    """The loop's waiter, and an unread message on its port."""

    def __init__(self) -> None:
        self.pipe = Unread()
        self.key = object()
        self.waiter = current_waiter()
        self.waiter.join(self.key)
        self.port = self.waiter.port
        self.operation = self.pipe.send(self.port, bytes(SIZE))

    async def read(self) -> None:
        """Read everything, which ends the message."""
        await anyio.to_thread.run_sync(self.pipe.read)
        with anyio.fail_after(10):
            await self.waiter.wait(self.operation)
        assert self.operation.sent == SIZE

    async def has_ended(self) -> None:
        with anyio.fail_after(10):
            await until(lambda: lib.azc_port_fd(self.port.id) < 0)
        assert self.waiter not in _waiters.values()


@pytest.fixture
def busy() -> Iterator[list[Busy]]:
    made: list[Busy] = []
    yield made
    for each in made:
        each.pipe.close()


async def test_it_stays_until_the_last_message_has_ended(busy: list[Busy]) -> None:
    busy.append(it := Busy())
    it.waiter.leave(it.key)
    assert it.port.fileno() >= 0
    await it.read()
    await it.has_ended()


@pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop"], indirect=True)
async def test_an_end_that_is_interrupted_comes_again(
    busy: list[Busy], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy.append(it := Busy())
    it.waiter.leave(it.key)
    raised: list[Any] = []

    def interrupt(_fd: int) -> None:
        monkeypatch.undo()
        raise Interruption

    monkeypatch.setattr(it.waiter.loop, "unwatch", interrupt)
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: raised.append(context["exception"])
    )
    await it.read()
    await it.has_ended()
    assert [type(error) for error in raised] == [Interruption]


async def test_a_stream_that_comes_meanwhile_uses_the_same(busy: list[Busy]) -> None:
    busy.append(it := Busy())
    it.waiter.leave(it.key)
    other = object()
    assert current_waiter() is it.waiter
    it.waiter.join(other)
    await it.read()
    await others_wait()
    assert it.port.fileno() >= 0
    it.waiter.leave(other)
    await it.has_ended()


async def test_a_start_that_is_interrupted_leaves_nothing_watched(
    busy: list[Busy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a leftover watch, the next owner of the fd's number would not be woken."""
    waiter, key = current_waiter(), object()
    watch, fd = waiter.loop.watch, waiter.port.fileno()

    def watch_and_be_hit(*arguments: Any) -> None:
        watch(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(waiter.loop, "watch", watch_and_be_hit)
    with pytest.raises(KeyboardInterrupt):
        waiter.join(key)
    waiter.leave(key)
    current_waiter().join(key)
    assert current_waiter().port.fileno() == fd
    busy.append(it := Busy())
    await it.read()
    it.waiter.leave(key)
    it.waiter.leave(it.key)
    await it.has_ended()


async def test_who_gave_up_is_not_woken(busy: list[Busy]) -> None:
    busy.append(it := Busy())
    async with cut_short(it.waiter.wait, it.operation):
        await others_wait()
        assert it.operation._listeners
    assert not it.operation._listeners
    await it.read()
    it.waiter.leave(it.key)


async def test_a_shielded_wait_is_cancelled_afterwards(busy: list[Busy]) -> None:
    busy.append(it := Busy())
    ends: list[str] = []

    async def wait() -> None:
        try:
            await it.waiter.wait_shielded(it.operation, 60)
            await anyio.lowlevel.checkpoint()
        except BaseException:
            ends.append("cancelled, done" if it.operation.done else "cancelled early")
            raise

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await others_wait()
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await others_wait()
            assert not ends
            await it.read()
    assert ends == ["cancelled, done"]
    it.waiter.leave(it.key)


async def test_a_shielded_wait_ends_in_time(busy: list[Busy]) -> None:
    busy.append(it := Busy())
    await it.waiter.wait_shielded(it.operation, 0.01)
    assert not it.operation.done
    await it.read()
    await it.waiter.wait_shielded(it.operation)
    it.waiter.leave(it.key)


async def test_an_asyncio_task_cancelled_in_a_shielded_wait(busy: list[Busy]) -> None:
    if is_trio():
        pytest.skip("asyncio's own cancel knows no scopes")
    busy.append(it := Busy())
    task = asyncio.ensure_future(it.waiter.wait_shielded(it.operation))
    for _ in range(2):
        await others_wait()
        task.cancel()
    await others_wait()
    assert not task.done()
    await it.read()
    with pytest.raises(asyncio.CancelledError):
        await task
    it.waiter.leave(it.key)


class TestLoop:
    async def test_what_is_called_soon_runs_in_its_thread(self) -> None:
        loop, threads = current_loop(), list[int]()

        def note() -> None:
            threads.append(threading.get_ident())

        call_soon(loop, note)
        assert threads == [threading.get_ident()]
        await anyio.to_thread.run_sync(call_soon, loop, note)
        await until(lambda: len(threads) == 2)
        assert threads == [threading.get_ident()] * 2

    @pytest.mark.parametrize("call", [enter, checkpoint])
    async def test_where_no_loop_runs_it_is_over_at_once(
        self, call: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        def step() -> None:
            with pytest.raises(StopIteration):
                call().send(None)

        await anyio.to_thread.run_sync(step)

    async def test_what_is_not_watched_is_not_heard(self) -> None:
        loop, heard = current_loop(), list[bytes]()
        read_fd, write_fd = os.pipe()
        loop.watch(read_fd, lambda: heard.append(os.read(read_fd, 1)))
        os.write(write_fd, b"1")
        await until(lambda: heard)
        loop.unwatch(read_fd)
        await others_wait()
        os.write(write_fd, b"2")
        await others_wait()
        assert heard == [b"1"]
        os.close(read_fd)
        os.close(write_fd)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_closed_loop_is_left_alone(backend: str) -> None:
    async def get() -> Loop:
        assert runs_here(current_loop())
        return current_loop()

    loop = anyio.run(get, backend=backend)
    assert loop.is_closed() is True
    loop.unwatch(0)
    called: list[int] = []
    call_soon(loop, lambda: called.append(1))  # in this thread: the loop has none
    assert called


# ---- changes wake their waiters ----------------------------------------------------


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only a change end the wait."""
    monkeypatch.setattr(change, "LOOK_AGAIN", 1000.0)


class TestChange:
    async def test_all_who_wait_are_woken_once(self) -> None:
        it, woken = Change(), list[int]()

        async def wait(number: int) -> None:
            for _ in range(2):
                await it.next()
                woken.append(number)

        it.happen()  # there are no waiters yet
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, 1)
            tasks.start_soon(wait, 2)
            for times in (1, 2):
                await others_wait()
                it.happen()
                it.happen()
                await others_wait()
                assert sorted(woken) == sorted([1, 2] * times)


@pytest.mark.usefixtures("patient")
class TestRemoteChange:
    def test_what_is_so_already_is_not_waited_for(self) -> None:
        """Such a call needs no loop."""
        coroutine = RemoteChange().wait(lambda: True)
        with pytest.raises(StopIteration):
            coroutine.send(None)

    async def test_another_thread_wakes_all(self) -> None:
        it, ready = RemoteChange(), list[None]()

        def happen() -> None:
            ready.append(None)
            it.happen()

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for _ in range(2):
                    tasks.start_soon(it.wait, lambda: bool(ready))
                await others_wait()
                assert len(it._wakes) == 2
                it.happen()  # too early: the waiters look, and wait again
                await others_wait()
                assert len(it._wakes) == 2
                threading.Thread(target=happen).start()
        assert not it._wakes

    async def test_one_just_before_the_wait_is_seen(self) -> None:
        answers = iter([False, True])
        it = RemoteChange()
        with anyio.fail_after(10):
            await it.wait(lambda: next(answers))
        assert not it._wakes

    async def test_it_looks_now_and_then(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(change, "LOOK_AGAIN", 0.001)
        answers = iter([False] * 5 + [True])
        with anyio.fail_after(10):
            await RemoteChange().wait(lambda: next(answers))

    def test_loops_that_have_ended_are_passed_over(self) -> None:
        it, woken = RemoteChange(), list[str]()
        for _ in range(3):
            loop = asyncio.new_event_loop()
            loop.close()
            it._wakes.add(partial(loop.call_soon_threadsafe, print))
        it._wakes.add(lambda: woken.append("woken"))
        it.happen()
        assert woken == ["woken"]


# ---- where no loop runs -------------------------------------------------------------


@pytest.mark.parametrize("ask", [current_loop, current_waiter])
def test_no_loop_to_be_found(ask: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match="asynchronous event loop"):
        ask()


def test_closing_is_announced_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """No loop runs, and trio was never imported, as in most finalizers."""
    monkeypatch.delitem(sys.modules, "trio.lowlevel", raising=False)
    announce_closing(0)


# ---- where data is received: see csrc/loop.h ---------------------------------------

MESSAGE = bytes(range(256)) * (2 << 10)  # more than a socket holds


class Wire:
    """A stream, and a thread that writes to the other end of its socket."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns = 0  # of the loop's own receiving
        self.peer, ours = socket.socketpair()
        self.stream = azc.wrap_socket(ours)
        self.has_written = threading.Event()
        self.received = bytearray(len(MESSAGE))
        monkeypatch.setattr(waiter_module, "move", self._move)

    def _move(self, port: int) -> int:
        self.turns += 1
        return lib.azc_port_move(port)

    def write(self) -> threading.Thread:
        def run() -> None:
            self.peer.sendall(MESSAGE)
            self.has_written.set()

        self.has_written.clear()
        thread = threading.Thread(target=run)
        thread.start()
        return thread

    async def receive(self) -> None:
        """Receive a message while the loop is awake."""
        thread = self.write()
        await self.stream.receive_exactly(self.received)
        await anyio.to_thread.run_sync(thread.join)
        assert self.received == MESSAGE

    async def receive_late(self) -> None:
        """Receive a message while the loop's thread waits for the peer."""
        async with meanwhile(self.stream.receive_exactly, self.received):
            await others_wait()
            thread = self.write()
            assert self.has_written.wait(20)
            thread.join()
        assert self.received == MESSAGE


@pytest.fixture
async def wire(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Wire]:
    it = Wire(monkeypatch)
    yield it
    it.peer.close()
    await it.stream.aclose()


watched = pytest.mark.skipif(
    PORTABLE, reason="the portable build's pump receives everything"
)


@watched
async def test_a_loop_that_is_awake_receives_what_has_come(wire: Wire) -> None:
    with anyio.fail_after(20):
        while not wire.turns:
            await wire.receive()


async def test_a_late_loop_holds_no_peer_up(wire: Wire) -> None:
    for _ in range(3):
        await wire.receive_late()


@watched
async def test_a_loop_that_is_awake_again_gets_its_work_back(wire: Wire) -> None:
    await wire.receive_late()
    wire.turns = 0
    with anyio.fail_after(20):
        while not wire.turns:
            await wire.receive()
