"""A ticket tells when the caller owns the buffers of a put message again."""

import anyio
import pytest
from links import BIG, Link, attempt, begun, checked, others_wait, wait_for
from oracle import message

from aiozerocopy import StreamBroken

pytestmark = pytest.mark.anyio


@pytest.mark.every_loop
async def test_awaited_twice_and_by_many(some: Link) -> None:
    data = message(1, 0, BIG)
    async with checked(some) as (stream, reader):
        ticket = await stream.put(data)
        assert not ticket.done()
        async with anyio.create_task_group() as tasks:
            waiting = [attempt(tasks, wait_for, ticket) for _ in range(5)]
            await others_wait()
            assert not any(each.done for each in waiting)
            with pytest.raises(BufferError):
                data.clear()
            reader.start()
        assert ticket.done()
        data.clear()
        await ticket
        await ticket
        assert all(each.error is None for each in waiting)


async def test_done_at_once_where_there_is_room(pipe: Link) -> None:
    async with pipe.sender() as stream:
        data = bytearray(b"x" * 100)
        ticket = await stream.put(data)
        assert ticket.done()
        data.clear()
        await ticket
        assert pipe.unread() == 100


async def test_of_a_broken_stream_raise_every_time(some: Link) -> None:
    async with some.sender() as stream:
        tickets = [await stream.put(message(1, n, BIG)) for n in range(3)]
        await begun(stream)
        some.kill_reader()
        for _ in range(2):
            for number, ticket in enumerate(tickets):
                with pytest.raises(StreamBroken) as caught:
                    await ticket
                assert (caught.value.bytes_sent > 0) == (number == 0)
        assert all(ticket.done() for ticket in tickets)
        stream.abort()


@pytest.mark.every_loop
async def test_in_any_order(some: Link) -> None:
    async with checked(some, start=True) as (stream, _):
        tickets = [await stream.put(message(1, n, 200_000)) for n in range(6)]
        for ticket in reversed(tickets):
            await ticket
