"""A message that was put, or sent by a thread, or is left at the end: how it fails."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import TYPE_CHECKING

import anyio
import pytest
from answering import Answering
from links import error_in_thread, until
from unread import SIZE

import aiozerocopy as azc
from aiozerocopy import StreamBroken
from aiozerocopy._core import channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

MUCH = 2 * SIZE  # more than the pipe holds


class Ends:
    def __init__(self) -> None:
        self.receiver, self.sender = azc.pipe()

    def read(self, n: int) -> None:
        """Take so many bytes, without the loop."""
        fd = self.receiver.fileno()
        os.set_blocking(fd, True)
        while n:
            piece = os.read(fd, n)
            assert piece
            n -= len(piece)


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    made = Ends()
    yield made
    await made.sender.aclose(linger=0)
    await made.receiver.aclose()


class TestTicket:
    async def test_of_what_fails(self, ends: Ends) -> None:
        """Who was told by the ticket is not told again."""
        sizes = (MUCH, MUCH + 1, MUCH + 2)
        told, *others = [await ends.sender.put(bytes(size)) for size in sizes]
        ends.receiver.abort()
        with pytest.raises(StreamBroken):
            await told
        await until(lambda: all(other.done() for other in others))
        assert len(ends.sender._failures.operations) == 2
        with pytest.raises(StreamBroken) as caught:
            await ends.sender.aclose()
        assert (caught.value.bytes_sent, caught.value.total) == (0, MUCH + 1)
        assert len(ends.sender._failures.operations) == 1


class TestFromAThread:
    @pytest.mark.parametrize("code", [errno.EPERM, errno.EIO])
    async def test_a_refusal(
        self, ends: Ends, code: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(channel, "lib", Answering("azc_sendv", -code))
            error = await anyio.to_thread.run_sync(
                error_in_thread, ends.sender.send_from_thread, b"ab"
            )
        assert isinstance(error, StreamBroken)
        assert (error.errno, error.total) == (code, 2)

    async def test_a_failure_is_explained(
        self, ends: Ends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ends.receiver.abort()
        explained: list[StreamBroken] = []

        def explain(error: StreamBroken) -> StreamBroken:
            explained.append(error)
            return error

        monkeypatch.setattr(ends.sender, "_explain_in_thread", explain)
        for data in (b"x", bytes(MUCH)):
            error = await anyio.to_thread.run_sync(
                error_in_thread, ends.sender.send_from_thread, data
            )
            assert isinstance(error, StreamBroken)
            assert explained.pop() is error


class TestFailure:
    @pytest.mark.parametrize("code", [errno.EPERM, errno.EIO])
    @pytest.mark.parametrize("name", ["send", "put", "send_many"])
    async def test_a_refusal_is_explained(
        self, ends: Ends, code: int, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        explained: list[StreamBroken] = []

        async def explain(error: StreamBroken) -> StreamBroken:
            explained.append(error)
            return error

        with monkeypatch.context() as patched:
            patched.setattr(ends.sender, "_explain", explain)
            patched.setattr(channel, "lib", Answering("azc_sendv", -code))
            with pytest.raises(StreamBroken) as caught:
                await getattr(ends.sender, name)(
                    [b"x"] if name == "send_many" else b"x"
                )
        assert explained == [caught.value]
        assert (caught.value.errno, caught.value.total) == (code, 1)


class TestTheEnd:
    async def test_of_a_block_that_is_cancelled(
        self, ends: Ends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The cancel does not reach what is waited for at its end."""
        drain, readings = ends.sender._drain, list[asyncio.Future[None]]()

        async def drain_while_it_is_read() -> None:
            reading = asyncio.to_thread(ends.read, MUCH)
            readings.append(asyncio.ensure_future(reading))
            await drain()

        with anyio.CancelScope() as scope, monkeypatch.context() as patched:
            patched.setattr("aiozerocopy._core.sending.LINGER", 60.0)
            patched.setattr(ends.sender, "_drain", drain_while_it_is_read)
            async with ends.sender:
                ticket = await ends.sender.put(bytes(MUCH))
                scope.cancel()
                await anyio.sleep_forever()
        await ticket  # it went out
        await readings[0]
