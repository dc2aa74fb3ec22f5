"""Each message is contiguous; a cancel cuts only between messages."""

import socket
from collections.abc import Iterator

import pytest
from links import BIG, Link, begun, checked, cut_short, meanwhile, reading, stuck
from oracle import Checker, message, poison

import aiozerocopy as azc
from aiozerocopy._core import sending

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("size", [10, 3_000, 40_000])
async def test_arrives_as_if_sent_one_by_one(link: Link, size: int) -> None:
    count = 1_500 if size == 10 else 60
    async with checked(link, {1: 2 * count + 1}, start=True) as (stream, _):
        for start in (0, count):
            batch = [message(1, start + n, size) for n in range(count)]
            await stream.send_many(batch)
            for each in batch:
                poison(each)
                each.clear()
        await stream.send_many([])
        await stream.send_many(iter([message(1, 2 * count, 0)]))
        assert stream.stats.messages_sent == 2 * count + 1


@pytest.mark.parametrize("size", [100, 60_000])
async def test_size_that_changes_meanwhile_is_refused(some: Link, size: int) -> None:

    def changing() -> Iterator[bytearray]:
        batch = [bytearray(size) for _ in range(4)]
        yield from batch
        batch[1].clear()

    async with checked(some, {1: 1}, start=True) as (stream, _):
        with pytest.raises(ValueError, match="changed its size"):
            await stream.send_many(changing())
        await stream.send(message(1, 0, 10))


@pytest.mark.every_loop
@pytest.mark.parametrize(
    ("size", "count"), [(1_000, 500), (1_000, 4_000), (60_000, 70)]
)
async def test_cancel_cuts_between_messages(
    clogged: Link, size: int, count: int
) -> None:
    batch = [message(1, n, size) for n in range(count)]
    checker = Checker()
    async with reading(clogged, checker.feed, start=False) as reader:
        async with clogged.sender() as stream:
            await stream.flush()  # (from here on, some small messages become one block)
            async with cut_short(stream.send_many, batch):
                await begun(stream)
            for each in batch:
                poison(each)
                each.clear()
            reader.start()
            await stream.send(message(2, 0, 10))
            # (a waiting lane also has a piece of 4 KiB in flight)
            assert stream.stats.bytes_rescued <= 4096 + size + 32
    checker.finish()
    assert checker.counts[2] == 1
    assert 0 < checker.counts[1] < count


async def test_size_changes_once_it_is_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may change sizes: a cancel still cuts at message boundaries."""
    monkeypatch.setattr(sending, "nbytes", lambda message: len(message) + 5_001)
    batch = [bytes([n % 256]) * 1_000 for n in range(500)]
    near, far = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 10_000)
    async with azc.wrap_socket(near) as stream, azc.wrap_socket(far) as reader:
        await stream.send(b"1st")  # (this binds it to its loop)
        async with cut_short(stream.send_many, batch):
            await begun(stream)
        async with meanwhile(stream.aclose):
            received = b"".join([chunk async for chunk in reader])
    assert (b"1st" + b"".join(batch)).startswith(received)
    assert len(received) % 1_000 == len(b"1st")


async def test_takes_half_a_megabyte_at_a_time(clogged: Link) -> None:
    """P4: the copy of small messages has a limit, however long the list is."""
    batch = [bytes(8 << 10)] * 512
    async with clogged.sender() as stream:
        async with stuck(stream, bytes(BIG)) as tasks:
            tasks.start_soon(stream.send_many, batch)
            await begun(stream, 2)
            assert stream.stats.bytes_queued <= BIG + (512 << 10)
            tasks.cancel_scope.cancel()
        stream.abort()
