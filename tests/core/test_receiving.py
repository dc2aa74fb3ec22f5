"""Receives, step by step: what they borrow, when they yield, and why they fail."""

import errno
import os
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from answering import Answering, InUse, TwiceInterrupted
from links import attempt, others_wait

import aiozerocopy as azc
from aiozerocopy import StreamBroken, StreamClosed
from aiozerocopy._core import channel
from aiozerocopy._core.borrows import borrowed

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ends() -> AsyncIterator[azc.opening.PipeEnds]:
    made = azc.pipe()
    yield made
    await made.writer.aclose(linger=0)
    await made.reader.aclose()


class TestYields:
    async def test_at_once_it_yields_when_the_budget_is_spent(
        self, ends: azc.opening.PipeEnds, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await ends.writer.send(bytes(9))
        await ends.reader.receive(1)
        assert ends.reader._waiter is not None
        begun, yields = list[None](), list[int]()

        async def note() -> None:
            yields.append(len(begun))

        monkeypatch.setattr(ends.reader._waiter, "checkpoint", note)
        monkeypatch.setattr(ends.reader, "_budget", 3)
        for _ in range(8):
            begun.append(None)
            await ends.reader.receive_into(bytearray(1))
        assert yields == [2, 5, 8]

    async def test_what_asks_for_nothing_does(
        self, ends: azc.opening.PipeEnds, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An empty receive is a checkpoint, in which the stream may be closed."""
        await ends.writer.send(b"x")
        await ends.reader.receive()
        waiter = ends.reader._waiter
        assert waiter is not None
        before = set(borrowed), set(waiter.port.operations)
        assert await ends.reader.receive_into(bytearray()) == 0
        assert (set(borrowed), set(waiter.port.operations)) == before

        async def close() -> None:
            ends.reader.abort()

        monkeypatch.setattr(waiter, "checkpoint", close)
        with pytest.raises(StreamClosed):
            await ends.reader.receive_into(bytearray())


class TestLending:
    """Receives by another user of the fd, and then by the stream again."""

    async def test_what_c_has_left_over_is_unread(
        self, ends: azc.opening.PipeEnds, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leftover = SimpleNamespace(leftover=1)
        with monkeypatch.context() as patched:
            patched.setattr(ends.reader._in, "stats", lambda: leftover)
            assert ends.reader._has_unread() is True
        assert ends.reader._has_unread() is False


class TestErrors:
    @pytest.mark.parametrize("code", [errno.EPERM, errno.EIO])
    async def test_of_the_call_itself(
        self, ends: azc.opening.PipeEnds, code: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(channel, "lib", Answering("azc_recv", -code))
        with pytest.raises(StreamBroken) as caught:
            await ends.reader.receive_into(memory := bytearray(10))
        assert (caught.value.errno, caught.value.total) == (code, 10)
        memory.append(0)

    @pytest.mark.parametrize("waits", [False, True])
    async def test_what_had_come_is_counted(self, waits: bool) -> None:
        """The error counts bytes that had come, and the next receive returns them."""
        peer, ours = socket.socketpair()
        async with azc.wrap_socket(ours) as stream:
            await stream.send(b"never read, so the peer's close resets the connection")
            peer.send(b"abc")
            async with anyio.create_task_group() as tasks:
                if waits:
                    receiving = attempt(tasks, stream.receive_exactly, bytearray(10))
                    await others_wait()
                    peer.close()
                else:
                    peer.close()
                    receiving = attempt(tasks, stream.receive_exactly, bytearray(10))
            error = receiving.error
            assert isinstance(error, StreamBroken)
            assert (error.bytes_sent, error.total) == (3, 10)
            assert str(error).endswith(": 3 of 10 bytes were received")
            assert await stream.receive() == b"abc"


class TestInterrupted:
    @pytest.mark.parametrize("error", [GeneratorExit, KeyboardInterrupt])
    async def test_while_the_kernel_uses_the_memory(
        self,
        ends: azc.opening.PipeEnds,
        error: type[BaseException],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """A coroutine that is being closed may not await, so its thread blocks."""
        await ends.writer.send(b"x")
        await ends.reader.receive()
        with monkeypatch.context() as patched:
            it = InUse(ends.reader._waiter, patched)
            coroutine: Any = ends.reader.receive_into(memory := bytearray(10))
            coroutine.send(None)
            with pytest.raises(error):
                coroutine.throw(error())
        assert it.waits == {"blocks" if error is GeneratorExit else "awaits"}
        memory.append(0)

    async def test_twice(
        self, ends: azc.opening.PipeEnds, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Bytes that had come are kept, and the memory is given back."""
        ends.reader._unread = b"abc"  # (else bytes come at once, and C borrows nothing)
        with monkeypatch.context() as patched:
            it = TwiceInterrupted("receiving._number", patched)
            with pytest.raises(KeyboardInterrupt, match="second"):
                await ends.reader.receive_into(memory := bytearray(10))
        assert it.tries == 2
        memory.append(0)
        assert await ends.reader.receive() == b"abc"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="needs two processors")
@pytest.mark.parametrize(("processors", "calls"), [(1, 2), (2, 14)])
async def test_asks_again_where_the_peer_may_send(processors: int, calls: int) -> None:
    available = os.sched_getaffinity(0)
    os.sched_setaffinity(0, [*available][:processors])
    try:
        one, other = azc.socketpair()
    finally:
        os.sched_setaffinity(0, available)
    async with one, other, anyio.create_task_group() as tasks:
        await one.send(bytes(100_000))
        tasks.start_soon(other.receive_exactly, bytearray(100_001))
        await others_wait()
        assert other.stats.receive_calls == calls
        await one.send(b"1")
