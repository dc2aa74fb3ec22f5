"""One receive, step by step: what is borrowed, when it yields, and what is refused."""

from __future__ import annotations

import errno
import socket
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from answering import Answering, InUse, TwiceInterrupted
from links import attempt, others_wait

import aiozerocopy as azc
from aiozerocopy import StreamBroken, StreamClosed
from aiozerocopy._core import channel
from aiozerocopy._core.borrows import borrowed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


pytestmark = pytest.mark.anyio


class Ends:
    def __init__(self) -> None:
        self.receiver, self.sender = azc.pipe()
        self.memory = bytearray(10)

    async def waiting(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Begin to receive, and return the coroutine."""
        coroutine = work(*arguments)
        coroutine.send(None)
        return coroutine


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    made = Ends()
    yield made
    await made.sender.aclose(linger=0)
    await made.receiver.aclose()


class TestBorrowed:
    async def test_what_was_left_over_needs_no_call(self, ends: Ends) -> None:
        ends.receiver._unread = b"abcdef"
        await ends.receiver.receive(1)
        before, calls = set(borrowed), ends.receiver.stats.receive_calls
        await ends.receiver.receive_exactly(memory := bytearray(4))
        assert memory == b"bcde"
        assert set(borrowed) == before
        assert ends.receiver.stats.receive_calls == calls
        assert ends.receiver._waiter is not None
        assert not ends.receiver._waiter.port.operations
        assert await ends.receiver.receive() == b"f"


class TestYields:
    async def test_at_once_it_yields_when_the_budget_is_spent(
        self, ends: Ends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await ends.sender.send(bytes(9))
        await ends.receiver.receive(1)
        assert ends.receiver._waiter is not None
        begun, yields = list[None](), list[int]()

        async def note() -> None:
            yields.append(len(begun))

        monkeypatch.setattr(ends.receiver._waiter, "checkpoint", note)
        monkeypatch.setattr(ends.receiver, "_budget", 3)
        for _ in range(8):
            begun.append(None)
            await ends.receiver.receive_into(bytearray(1))
        assert yields == [2, 5, 8]

    async def test_what_asks_for_nothing_does(
        self, ends: Ends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its stream may be closed meanwhile."""
        await ends.sender.send(b"x")
        await ends.receiver.receive()
        assert await ends.receiver.receive_into(bytearray()) == 0
        waiter = ends.receiver._waiter
        assert waiter is not None

        async def close() -> None:
            ends.receiver.abort()

        monkeypatch.setattr(waiter, "checkpoint", close)
        with pytest.raises(StreamClosed):
            await ends.receiver.receive_into(bytearray())


class TestLending:
    """Somebody else receives from the fd, and then we do again."""

    async def test_what_c_has_left_over_is_unread(
        self, ends: Ends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        leftover = SimpleNamespace(leftover=1)
        with monkeypatch.context() as patched:
            patched.setattr(ends.receiver._in, "stats", lambda: leftover)
            assert ends.receiver._has_unread() is True
        assert ends.receiver._has_unread() is False


class TestErrors:
    @pytest.mark.parametrize("code", [errno.EPERM, errno.EIO])
    async def test_of_the_call_itself(
        self, ends: Ends, code: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(channel, "lib", Answering("azc_recv", -code))
        with pytest.raises(StreamBroken) as caught:
            await ends.receiver.receive_into(ends.memory)
        assert (caught.value.errno, caught.value.total) == (code, 10)
        ends.memory.append(0)

    @pytest.mark.parametrize("waits", [False, True])
    async def test_what_had_come_is_counted(self, waits: bool) -> None:
        """The next receive begins with it."""
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
        self, ends: Ends, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A coroutine that is being closed may not await: its thread blocks."""
        await ends.sender.send(b"x")
        await ends.receiver.receive()
        with monkeypatch.context() as patched:
            it = InUse(ends.receiver._waiter, patched)
            coroutine = await ends.waiting(ends.receiver.receive_into, ends.memory)
            with pytest.raises(error):
                coroutine.throw(error())
        assert it.waits == {"blocks" if error is GeneratorExit else "awaits"}
        ends.memory.append(0)

    async def test_twice(self, ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
        """What had come is kept, and the memory given back."""
        ends.receiver._unread = b"abc"  # (else it comes at once, and C borrows nothing)
        with monkeypatch.context() as patched:
            it = TwiceInterrupted("receiving._number", patched)
            with pytest.raises(KeyboardInterrupt, match="second"):
                await ends.receiver.receive_into(ends.memory)
        assert it.tries == 2
        ends.memory.append(0)
        assert await ends.receiver.receive() == b"abc"
