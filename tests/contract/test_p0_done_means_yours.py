"""P0: when send returns, every byte is out and the buffers are the caller's.

For lent pages: ../core/test_lending.py.
"""

import pytest
from links import BIG, Link, checked, collected, reading, stuck
from oracle import CANARY, Checker, assert_same, message, poison

pytestmark = pytest.mark.anyio


@pytest.mark.every_loop
async def test_buffer_is_overwritten_the_instant_send_returns(
    link: Link, ours: bool
) -> None:
    sizes = (0, 1, 4064, 65_536, 300_001)
    async with checked(link, {1: len(sizes)}, start=True, ours=ours) as (stream, _):
        for sequence, size in enumerate(sizes):
            data = message(1, sequence, size)
            await stream.send(data)
            poison(data)
            data.clear()


async def test_pending_send_locks_the_buffer(clogged: Link) -> None:
    data = message(1, 0, BIG)
    async with checked(clogged, {1: 1}) as (stream, reader):
        async with stuck(stream, data):
            with pytest.raises(BufferError):
                data.append(0)
            with pytest.raises(BufferError):
                data.clear()
            reader.start()
        data.clear()


async def test_sent_without_a_copy(some: Link) -> None:
    data = message(1, 0, BIG)
    checker = Checker()
    async with reading(some, checker.feed, start=False) as reader:
        async with some.sender() as stream:
            async with stuck(stream, data):
                reader.start()
            assert stream.stats.bytes_rescued == 0
            assert stream.stats.bytes_sent == len(data)
            assert stream.stats.messages_sent == 1
            assert stream.stats.bytes_queued == stream.stats.messages_queued == 0


async def test_temporary_buffer_is_kept_alive(some: Link) -> None:
    async with collected(some) as (stream, reader, received):
        async with stuck(stream, bytes(message(1, 0, BIG))):
            canaries = [bytearray([CANARY]) * (BIG + 32) for _ in range(4)]
            reader.start()
        del canaries
    assert_same(received, message(1, 0, BIG))


@pytest.mark.every_loop
async def test_flush_means_all_before_it_is_out(clogged: Link) -> None:
    data = [message(1, sequence, BIG // 2) for sequence in range(3)]
    async with checked(clogged) as (stream, reader):
        tickets = [await stream.put(each) for each in data]
        reader.start()
        await stream.flush()
        assert all(ticket.done() for ticket in tickets)
        assert stream.stats.bytes_sent == sum(map(len, data))
        for each in data:
            poison(each)
            each.clear()
