"""send_from_thread: refused in an event loop's thread, and ended by `abort`.

test_p1_integrity.py checks that its messages and all others are in one order.
"""

import threading

import pytest
from links import BIG, Link, begun, error_in_thread, until
from oracle import message

from aiozerocopy import StreamClosed

pytestmark = [pytest.mark.anyio, pytest.mark.every_loop]


async def test_refused_where_a_loop_runs(some: Link) -> None:
    async with some.sender() as stream:
        with pytest.raises(RuntimeError, match="event loop"):
            stream.send_from_thread(message(1, 0, BIG))
        assert stream.stats.messages_queued == 0


async def test_abort_ends_it(some: Link) -> None:
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
