"""send_from_thread: one order with all others; the thread is what waits."""

import threading

import pytest
from links import BIG, Link, begun, checked, error_in_thread, stuck, until
from oracle import message

from aiozerocopy import StreamClosed

pytestmark = [pytest.mark.anyio, pytest.mark.every_loop]


async def test_locks_the_buffer_and_sends_it(some: Link) -> None:
    data = message(1, 1, BIG)
    async with checked(some, {1: 3}) as (stream, reader):
        async with stuck(stream, message(1, 0, BIG)):
            thread = threading.Thread(
                target=stream.send_from_thread, args=(data[:32], data[32:])
            )
            thread.start()
            await begun(stream, 2)
            assert thread.is_alive()
            reader.start()
        await until(lambda: not thread.is_alive())
        await stream.send(message(1, 2, 10))


async def test_refused_where_a_loop_runs(some: Link) -> None:
    async with some.sender() as stream:
        with pytest.raises(RuntimeError, match="event loop"):
            stream.send_from_thread(message(1, 0, BIG))
        assert stream.stats.messages_queued == 0


async def test_close_ends_it(some: Link) -> None:
    stream = some.sender()
    data = message(1, 0, BIG)
    ends: list[object] = []
    thread = threading.Thread(
        target=lambda: ends.append(error_in_thread(stream.send_from_thread, data))
    )
    thread.start()
    await begun(stream)
    stream.abort()
    await until(lambda: not thread.is_alive())
    assert isinstance(ends[0], StreamClosed)
    data.clear()
