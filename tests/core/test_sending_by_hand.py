"""A sending stream, step by step: its loop, its fast paths, interruptions, its end."""

import asyncio
import gc
import os
import select
import sys
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import anyio
import pytest
from answering import InUse, TwiceInterrupted, interrupt
from links import until
from unread import SIZE, is_open

import aiozerocopy as azc
from aiozerocopy import SendStream, StreamBroken, StreamClosed
from aiozerocopy._core import lifetime, sending
from aiozerocopy._core.channel import Channel
from aiozerocopy._core.waiter import Waiter

pytestmark = pytest.mark.anyio

MUCH = 2 * SIZE  # more than the pipe holds


@pytest.fixture
def ends() -> Iterator[azc.opening.PipeEnds]:
    made = azc.pipe()
    yield made
    for stream in made:
        stream.abort()


@pytest.fixture
def stream(ends: azc.opening.PipeEnds) -> SendStream:
    return ends.writer


def read(receiver: azc.ReceiveStream, n: int) -> None:
    """Read n bytes, without the loop."""
    fd = receiver.fileno()
    os.set_blocking(fd, True)
    while n:
        piece = os.read(fd, n)
        assert piece
        n -= len(piece)


@pytest.fixture(params=[True, False])
def cheap(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use each way to find the running loop; which is faster depends on the Python."""
    if not request.param and sys.version_info >= (3, 14):
        pytest.skip("this Python does not list the running tasks")
    for module in (sending, lifetime):
        monkeypatch.setattr(module, "LOOP_IS_CHEAP", request.param)


def refuse(*_: object, **__: object) -> Any:
    raise AssertionError("the long way")


@pytest.mark.usefixtures("cheap")
class TestAnotherLoop:
    CALLS = ("send", "put", "send_many", "flush")

    @staticmethod
    async def is_refused(stream: SendStream, name: str) -> None:
        arguments: tuple[Any, ...] = () if name == "flush" else (b"x",)
        if name == "send_many":
            arguments = ([b"x"],)
        with pytest.raises(RuntimeError, match="another event loop"):
            await getattr(stream, name)(*arguments)

    @pytest.mark.parametrize("name", CALLS)
    async def test_in_another_thread_while_ours_is_running(
        self, stream: SendStream, name: str
    ) -> None:
        await stream.send(b"bound")
        done: list[None] = []
        other = threading.Thread(
            target=lambda: done.append(asyncio.run(self.is_refused(stream, name)))
        )
        other.start()
        other.join()  # (meanwhile our task counts as running)
        assert done == [None]
        assert stream.stats.messages_sent == 1

    @pytest.mark.parametrize("name", CALLS)
    def test_in_this_thread_after_the_first(self, name: str) -> None:
        receiver, sender = azc.pipe()

        async def bind() -> None:
            await sender.send(b"bound")

        asyncio.run(bind())
        asyncio.run(self.is_refused(sender, name))
        assert sender.stats.messages_sent == 1
        sender.abort()
        receiver.abort()


async def test_pieces_leave_nothing_with_the_loop(stream: SendStream) -> None:
    await stream.send(b"a", b"b")
    assert stream._waiter is not None
    before = list(stream._waiter.port.operations)
    await stream.send(b"a", b"b")
    assert list(stream._waiter.port.operations) == before


# ---- what was put ------------------------------------------------------------------


async def test_a_flush_at_once_tells_the_tickets(ends: azc.opening.PipeEnds) -> None:
    """Even for a message whose end the loop has not noticed."""
    stream = ends.writer
    ticket = await stream.put(bytes(MUCH))
    assert stream._waiter is not None
    read(ends.reader, MUCH)
    port = stream._waiter.port
    event = select.poll()
    event.register(port.fileno(), select.POLLIN)
    assert event.poll(10_000)
    assert not ticket.done()
    with pytest.raises(StopIteration):
        stream.flush().send(None)  # it returns without waiting
    assert ticket.done()


async def test_an_error_that_the_ticket_raised_is_not_raised_again(
    ends: azc.opening.PipeEnds,
) -> None:
    stream, sizes = ends.writer, (MUCH, MUCH + 1, MUCH + 2, MUCH + 3, MUCH + 4)
    told, *others, undone, early = [await stream.put(bytes(size)) for size in sizes]
    early._take_back()
    assert early.done()
    ends.reader.abort()
    with pytest.raises(StreamBroken):
        await told
    await until(undone.done)
    undone._take_back()
    assert len(stream._failures) == len(others) == 2
    with pytest.raises(StreamBroken) as caught:
        await stream.aclose()
    assert (caught.value.bytes_sent, caught.value.total) == (0, MUCH + 1)
    assert len(stream._failures) == 1


# ---- refused calls, and the reasons -------------------------------------------------


class TestExplained:
    async def test_a_failure_in_a_thread(
        self, ends: azc.opening.PipeEnds, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ends.reader.abort()
        explained: list[StreamBroken] = []

        def explain(error: StreamBroken) -> StreamBroken:
            explained.append(error)
            return error

        monkeypatch.setattr(ends.writer, "_explain_in_thread", explain)
        for data in (b"x", bytes(MUCH)):
            with pytest.raises(StreamBroken) as caught:
                await anyio.to_thread.run_sync(ends.writer.send_from_thread, data)
            assert explained.pop() is caught.value


class TestPutNow:
    async def test_beyond_the_limit(self, stream: SendStream) -> None:
        stream._out.set_limit(1)
        await stream.put(bytes(MUCH))
        ticket = stream._put_now(stream._enter(), b"ab")
        assert ticket is not None
        assert not ticket.done()
        assert stream._out.stats().waiting == 1
        stream.abort()
        with pytest.raises(StreamClosed):
            await ticket


class TestInterrupted:
    @pytest.mark.parametrize("bound", [False, True])
    @pytest.mark.parametrize("name", ["send", "put", "send_many", "send_from_thread"])
    async def test_twice(
        self,
        stream: SendStream,
        name: str,
        bound: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        if bound:
            await stream.send(b"bound")
        data = bytearray(SIZE)
        with monkeypatch.context() as patched:
            it = TwiceInterrupted("channel.Channel.note_result", patched)
            call = getattr(stream, name)
            if name == "send_from_thread":
                call = partial(anyio.to_thread.run_sync, call)
            with pytest.raises(KeyboardInterrupt, match="second"):
                await call([data] if name == "send_many" else data)
        assert it.tries == 2
        data.append(0)

    @pytest.mark.parametrize("name", ["send", "put", "send_many"])
    @pytest.mark.parametrize("error", [GeneratorExit, KeyboardInterrupt])
    async def test_while_the_kernel_uses_the_buffer(
        self,
        stream: SendStream,
        name: str,
        error: type[BaseException],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A coroutine that is being closed may not await, so its thread blocks."""
        stream._out.set_limit(1)
        ticket = await stream.put(bytes(MUCH))  # more than the pipe holds
        data = bytearray(SIZE)
        with monkeypatch.context() as patched:
            it = InUse(stream._waiter, patched)
            coroutine = getattr(stream, name)([data] if name == "send_many" else data)
            coroutine.send(None)
            with pytest.raises(error):
                coroutine.throw(error())
        assert it.waits == {"blocks" if error is GeneratorExit else "awaits"}
        data.append(0)
        assert not ticket.done()


# ---- its tie to a loop, and its end --------------------------------------------------


class TestBinding:
    def test_after_an_interruption_it_joins_whichever_loop(
        self, stream: SendStream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def enter() -> None:
            with monkeypatch.context() as patched:
                patched.setattr(Waiter, "join", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    stream._enter()

        async def enter_twice() -> None:
            await enter()
            assert stream._enter()._users == {stream._key}
            await stream.send(b"x")

        asyncio.run(enter())
        asyncio.run(enter_twice())
        assert stream.stats.messages_sent == 1

    async def test_its_budget_is_of_calls_and_pages(self, stream: SendStream) -> None:
        stream._enter()
        stream._budget = 4
        spent = [stream._budget_is_spent(0) for _ in range(8)]
        assert spent == [*(False, False, False, True)] * 2
        spent = [stream._budget_is_spent(n) for n in (4095, 4096, 4096)]
        assert spent == [False, False, True]
        assert stream._budget_is_spent(3 * 4096)


class TestTheEnd:
    async def test_from_another_loop(
        self, stream: SendStream, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In another loop, nothing waits for the end of a close."""
        await stream.send(b"x")
        fd = stream.fileno()
        with monkeypatch.context() as patched:
            patched.setattr(Channel, "close", None)
            await anyio.to_thread.run_sync(asyncio.run, stream._close())
        assert not is_open(fd)
        assert stream._has_ended

    @pytest.mark.parametrize("name", ["aclose", "abort"])
    async def test_who_else_uses_its_fd_lets_go_before(
        self, stream: SendStream, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stream._enter()
        fd, were_open = stream.fileno(), list[bool]()
        monkeypatch.setattr(stream, "_let_go", lambda: were_open.append(is_open(fd)))
        if (result := getattr(stream, name)()) is not None:
            await result
        assert were_open == [True]

    async def test_all_its_channels_are_closed_before_the_first_is_waited_for(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ours, peer = azc.socketpair()
        waiter = ours._enter()
        fds = {channel.fileno() for channel in ours._channels}
        waits: list[tuple[bool, float]] = []

        async def wait(_operation: object, seconds: float) -> None:
            waits.append((any(map(is_open, fds)), seconds))
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(waiter, "wait_shielded", wait)
            with pytest.raises(KeyboardInterrupt):
                await ours._close()
        assert waits == [(False, ours._channels[0].patience())]
        assert ours._has_ended
        peer.abort()

    async def test_one_whose_end_was_interrupted_ends_later_without_a_word(
        self, stream: SendStream
    ) -> None:
        stream._refuse_more()
        stream.__del__()
        assert stream._has_ended

    async def test_one_that_was_never_made_ends_without_a_word(self) -> None:
        lifetime.Bound.__new__(lifetime.Bound).__del__()
        gc.collect()
