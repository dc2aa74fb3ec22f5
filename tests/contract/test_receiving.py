"""Everything that was sent arrives; a cancel loses nothing; the end is noticed."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from links import (
    KINDS,
    Link,
    attempt,
    attempting,
    cancelled_at,
    cut_short,
    open_unread,
    others_wait,
    until,
)
from oracle import CANARY, POISON, assert_same, payload, poison

from aiozerocopy import IncompleteReceive, ReceiveStream, StreamClosed

pytestmark = pytest.mark.anyio


SIZE = 400_000
CALLS = ("receive", "receive_into", "receive_exactly")


@pytest.fixture(params=KINDS)
def source(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[Link, bytes]]:
    data = bytes(payload(7, SIZE))
    with open_unread(request.param, tmp_path, data) as link:
        yield link, data


@pytest.mark.every_loop
@pytest.mark.parametrize("call", CALLS)
async def test_all_and_the_end(source: tuple[Link, bytes], call: str) -> None:
    link, data = source
    received = bytearray()
    async with link.receiver() as stream:
        with pytest.raises(anyio.EndOfStream):
            while True:
                received += await _receive(stream, call, 10_000)
        with pytest.raises(anyio.EndOfStream):
            await stream.receive()
        assert stream.stats.bytes_received == len(data)
    assert_same(received, data)


@pytest.mark.every_loop
@pytest.mark.parametrize("call", CALLS)
async def test_cancel_at_every_await_loses_nothing(
    source: tuple[Link, bytes], call: str
) -> None:
    link, data = source
    received = bytearray()
    async with link.receiver() as stream:
        for n in (1, 2, 3, 4, 5, 1, 1, 1):
            cancelled, piece = await cancelled_at(_receive(stream, call, 20_000), n)
            if not cancelled:
                received += piece
            received += await stream.receive(999)
        with contextlib.suppress(anyio.EndOfStream):
            while True:
                received += await stream.receive()
    assert_same(received, data)


async def test_incomplete(source: tuple[Link, bytes]) -> None:
    link, data = source
    memory = bytearray([CANARY]) * (len(data) + 1_000)
    async with link.receiver() as stream:
        with pytest.raises(IncompleteReceive) as caught:
            await stream.receive_exactly(memory)
    assert caught.value.received == len(data)
    assert caught.value.total == len(memory)
    assert_same(memory[: len(data)], data)
    assert memory[len(data) :] == bytes([CANARY]) * 1_000


async def test_one_task_at_a_time(some: Link) -> None:
    async with some.receiver() as stream:
        async with anyio.create_task_group() as tasks:
            waiting = attempt(tasks, stream.receive)
            await others_wait()
            for call in CALLS:
                with pytest.raises(anyio.BusyResourceError):
                    await _receive(stream, call, 10)
            assert not waiting.done
            tasks.cancel_scope.cancel()


async def test_pending_receive_locks_the_buffer(some: Link) -> None:
    memory = bytearray(100)
    async with some.receiver() as stream:
        async with cut_short(stream.receive_exactly, memory):
            await others_wait()
            with pytest.raises(BufferError):
                memory.clear()
        memory.clear()


@pytest.mark.every_loop
async def test_nothing_is_stored_after_a_cancel(some: Link) -> None:
    memory = bytearray(1_000)
    async with some.receiver() as stream, some.sender() as sender:
        async with cut_short(stream.receive_exactly, memory):
            await sender.send(b"a" * 400)
            await until(lambda: stream.stats.bytes_received == 400)
        poison(memory)
        await sender.send(b"b" * 600)
        again = bytearray(1_000)
        await stream.receive_exactly(again)
    assert memory == bytes([POISON]) * 1_000
    assert again == b"a" * 400 + b"b" * 600


@pytest.mark.every_loop
@pytest.mark.parametrize("end", ["aclose", "abort"])
async def test_its_end_ends_a_receive(some: Link, end: str) -> None:
    stream = some.receiver()
    async with attempting(stream.receive_exactly, bytearray(10)) as waiting:
        await others_wait()
        if end == "abort":
            stream.abort()
        else:
            await stream.aclose()
    assert isinstance(waiting.error, StreamClosed)
    for call in CALLS:
        with pytest.raises(StreamClosed):
            await _receive(stream, call, 10)


async def test_empty_and_wrong_arguments(some: Link) -> None:
    async with some.receiver() as stream:
        assert await stream.receive_into(bytearray()) == 0
        await stream.receive_exactly(bytearray())
        for n in (0, -1):
            with pytest.raises(ValueError, match="positive"):
                await stream.receive(n)
        with pytest.raises(BufferError):
            await stream.receive_into(b"read only")
        with pytest.raises(TypeError):
            await stream.receive_into("text")  # type: ignore[arg-type]


async def _receive(stream: ReceiveStream, call: str, n: int) -> bytes:
    if call == "receive":
        return await stream.receive(n)
    memory = bytearray(n)
    if call == "receive_exactly":
        await stream.receive_exactly(memory)
        return bytes(memory)
    return bytes(memory[: await stream.receive_into(memory)])
