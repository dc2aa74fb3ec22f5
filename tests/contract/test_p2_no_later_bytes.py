"""P2: no reader sees bytes that were stored after send returned or raised.

For lent pages: ../core/test_lending.py.
"""

import anyio
import pytest
from endings import ENDS, send_and_poison
from links import BIG, Link, begun, begun_or_sent, collected, cut_short, reading
from oracle import assert_prefix, assert_same, message

from aiozerocopy import StreamClosed

pytestmark = [pytest.mark.anyio, pytest.mark.every_loop]


async def test_after_a_cancel_the_message_is_as_it_was(clogged: Link) -> None:
    data = message(1, 0, BIG)
    sent = bytes(data)
    async with collected(clogged) as (stream, reader, received):
        async with cut_short(send_and_poison, stream, data, StreamClosed):
            await begun(stream)
        assert data == b""
        assert stream.stats.bytes_rescued >= stream.stats.bytes_queued > 0
        reader.start()
    assert_same(received, sent)


@pytest.mark.parametrize("end", ENDS)
async def test_after_a_close_nothing_follows(clogged: Link, end: str) -> None:
    """Each message is cut off or not begun; the receiver sees a prefix of them."""
    received = bytearray()
    data = [message(1, sequence, BIG // 3) for sequence in range(6)]
    sent = b"".join(data)
    async with reading(clogged, received.extend, start=False):
        stream = clogged.sender()
        async with anyio.create_task_group() as tasks:
            for count, each in enumerate(data, start=1):
                tasks.start_soon(send_and_poison, stream, each, StreamClosed)
                await begun_or_sent(stream, count)
            await begun(stream)
            await ENDS[end](stream)
        assert not any(data)
        assert stream.fileno() == -1
    assert_prefix(received, sent)
    assert 0 < len(received) < len(sent)
