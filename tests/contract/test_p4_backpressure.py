"""P4: the memory held for an fd is bounded, and senders wait."""

import os
from typing import Any

import anyio
import pytest
from links import (
    BIG,
    Link,
    attempting,
    begun,
    checked,
    cut_short,
    in_line,
    is_trio,
    meanwhile,
    reading,
    stuck,
    submitted,
    until,
)
from oracle import message

from aiozerocopy import SendStream, Ticket

pytestmark = pytest.mark.anyio


@pytest.mark.every_loop
async def test_put_waits_for_room(clogged: Link) -> None:
    limit = BIG + 200_000
    data = [message(1, sequence, BIG // 8) for sequence in range(40)]
    most = put = 0

    async def put_all(stream: SendStream) -> None:
        nonlocal most, put
        for each in data:
            await stream.put(each)
            put += 1
            most = max(most, stream.stats.bytes_queued)

    async with checked(clogged, {1: len(data)}, queue_limit=limit) as (stream, reader):
        async with meanwhile(put_all, stream):
            await until(lambda: in_line(stream) or put == len(data))
            assert 7 <= put < len(data)
            assert stream.stats.bytes_queued <= limit
            reader.start()
    assert 0 < most <= limit


@pytest.mark.every_loop
async def test_put_returns_once_there_is_room(clogged: Link) -> None:
    """It returns before its message is out."""
    first, second = message(1, 0, BIG), message(1, 1, BIG)
    received = bytearray(len(second))
    async with clogged.receiver() as reader:
        async with clogged.sender(queue_limit=BIG + 50_000) as stream:
            await stream.put(first)
            async with attempting(stream.put, second) as putting:
                await until(lambda: in_line(stream))
                await reader.receive_exactly(bytearray(len(first)))
                await until(lambda: putting.done)
                assert isinstance(putting.result, Ticket)
                assert not putting.result.done()
                await reader.receive_exactly(received)
                await putting.result
    assert received == second


@pytest.mark.parametrize("data", [b"", b"x"])
async def test_small_messages_wait_for_room(some: Link, data: bytes) -> None:
    """One fits for each KiB of the limit, since each takes memory of its own."""
    most = 2 * BIG >> 10
    put = 0

    async def put_many(stream: SendStream) -> None:
        nonlocal put
        for _ in range(most):
            await stream.put(data)
            put += 1

    async with some.sender(queue_limit=2 * BIG) as stream:
        async with stuck(stream, bytes(BIG)) as tasks:
            tasks.start_soon(put_many, stream)
            await until(lambda: in_line(stream) or put == most)
            assert stream.stats.messages_queued == most == put + 1
            tasks.cancel_scope.cancel()
        stream.abort()


async def test_message_above_the_limit_fits_alone(some: Link) -> None:
    async with checked(some, {1: 2}, queue_limit=1000) as (stream, reader):
        first = await stream.put(message(1, 0, BIG))
        assert not first.done()
        async with meanwhile(stream.put, message(1, 1, 10)):
            await submitted(stream, 2)
            assert stream.stats.messages_queued == 1
            reader.start()


async def test_line_is_first_in_first_out(clogged: Link) -> None:
    calls: list[tuple[str, int]] = [
        ("put", BIG),  # does not fit, and no later message overtakes it
        ("send", 10),
        ("put", 0),
        ("send_many", 5),
        ("put", 70_000),
        ("flush", 0),
        ("send", 0),
    ]
    async with checked(clogged, {1: 7}, queue_limit=BIG + 50_000) as (stream, reader):
        await stream.put(message(1, 0, BIG))
        async with anyio.create_task_group() as tasks:
            sequence = 1
            for count, (call, size) in enumerate(calls, start=2):
                if call == "flush":
                    tasks.start_soon(stream.flush)
                else:
                    data: Any = message(1, sequence, size)
                    sequence += 1
                    argument = [data] if call == "send_many" else data
                    tasks.start_soon(getattr(stream, call), argument)
                await submitted(stream, count)
            assert stream.stats.messages_queued == 1
            reader.start()


@pytest.mark.every_loop
async def test_cancelled_put_in_line_leaves_no_trace(some: Link) -> None:
    dropped = message(9, 0, BIG)
    async with checked(some, {1: 2}, queue_limit=BIG + 50_000) as (stream, reader):
        await stream.put(message(1, 0, BIG))
        async with anyio.create_task_group() as others:
            async with cut_short(stream.put, dropped):
                await submitted(stream, 2)
                others.start_soon(stream.send, message(1, 1, 100))
                await submitted(stream, 3)
            dropped.clear()
            await begun(stream, 2)  # the next message's turn came at once
            reader.start()


@pytest.mark.every_loop
async def test_cancelled_while_others_run_gives_the_buffer_back(some: Link) -> None:
    """A put lets other tasks run, too; a cancel meanwhile leaves no ticket."""
    data = [message(1, n, 1_000) for n in range(1, 600)]
    counts = {1: 0}
    async with checked(some, counts, queue_limit=8 * BIG) as (stream, reader):
        async with stuck(stream, message(1, 0, BIG)):
            count = 0
            with anyio.CancelScope() as scope:
                scope.cancel()
                for each in data:
                    await stream.put(each)
                    count += 1
            assert count == (0 if is_trio() else 511)
            assert stream.stats.messages_queued == 1 + count
            counts[1] = 1 + count
            data[count].clear()
            reader.start()


async def test_frames_take_no_memory(pipe: Link) -> None:
    frame = bytearray(16 << 20)
    size = 0

    def count(piece: memoryview) -> None:
        nonlocal size
        size += len(piece)

    async with reading(pipe, count), pipe.sender() as stream:
        await stream.send(frame)
        before = _resident()
        for _ in range(10):
            await stream.send(frame)
        grown = _resident() - before
        assert stream.stats.bytes_rescued == 0
    assert size == 11 * len(frame)
    assert grown < 2 << 20


def _resident() -> int:
    """Return how many bytes of this process are in RAM."""
    try:
        with open("/proc/self/statm") as statm:
            pages = int(statm.read().split()[1])
    except OSError:
        pytest.skip("this system does not tell how much memory is used")
    return pages * os.sysconf("SC_PAGE_SIZE")
