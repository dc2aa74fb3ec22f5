"""One receive, by hand: when it yields, whose its fd is, and how it is interrupted."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import anyio
import pytest
from answering import InUse

import aiozerocopy as azc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


pytestmark = pytest.mark.anyio


class Ends:
    def __init__(self) -> None:
        self.receiver, self.sender = azc.pipe()
        self.memory = bytearray(10)


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    made = Ends()
    yield made
    await made.sender.aclose(linger=0)
    await made.receiver.aclose()


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


class TestLending:
    """Somebody else receives from a duplicate of the fd, and then we do again."""

    async def test_until_it_is_returned(self, ends: Ends) -> None:
        receiver, borrower = ends.receiver, object()
        fd = receiver._lend_fd(borrower)
        assert not os.get_inheritable(fd)
        assert fd not in (receiver.fileno(), *range(3))
        with pytest.raises(anyio.BusyResourceError):
            receiver._lend_fd(object())
        with pytest.raises(anyio.BusyResourceError):
            await receiver.receive()
        await ends.sender.send(b"abcd")
        assert os.read(fd, 2) == b"ab"
        receiver._return_fd(object(), b"of another")
        assert not receiver._has_unread()
        receiver._unread = b"left"
        receiver._return_fd(borrower, b"ab")
        receiver._return_fd(borrower, b"ab")
        assert receiver._has_unread()
        received = bytearray(8)
        await receiver.receive_exactly(received)
        assert received == b"ableftcd"
        assert not receiver._has_unread()
        os.close(fd)


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
            coroutine = ends.receiver.receive_into(ends.memory)
            coroutine.send(None)
            with pytest.raises(error):
                coroutine.throw(error())
        assert it.waits == {"blocks" if error is GeneratorExit else "awaits"}
        ends.memory.append(0)
