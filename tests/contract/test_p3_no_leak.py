"""P3: no reader sees memory that was not sent, even after cancel, close or abort.

After an exit: ../core/test_lifetime.py; after a garbage collection:
../core/test_finalizers.py.
"""

import contextlib

import anyio
import pytest
from endings import ENDS
from links import Link, begun, begun_or_sent, reading
from oracle import CANARY, assert_prefix, message

from aiozerocopy import SendStream, StreamClosed

pytestmark = [pytest.mark.anyio, pytest.mark.every_loop]


SIZE = 100_000  # malloc gives a freed block of this size to the next request


@pytest.mark.parametrize("end", ["cancel", *ENDS])
async def test_freed_memory_is_not_sent(clogged: Link, end: str) -> None:
    received = bytearray()
    count = 14
    sent = b"".join(message(1, n, SIZE) for n in range(count))
    async with reading(clogged, received.extend, start=False) as reader:
        stream = clogged.sender()
        async with anyio.create_task_group() as tasks:
            for n in range(count):
                tasks.start_soon(_send_and_forget, stream, n)
                await begun_or_sent(stream, n + 1)
            await begun(stream)
            if end == "cancel":
                tasks.cancel_scope.cancel()
            else:
                await ENDS[end](stream)
        canaries = [bytearray([CANARY]) * (SIZE + 32) for _ in range(count)]
        reader.start()
        await stream.aclose()
    del canaries
    if end == "cancel":
        _assert_whole_messages(received, count)
    else:
        assert_prefix(received, sent)
    assert received


def _assert_whole_messages(received: bytearray, count: int) -> None:
    """Check for whole messages, in order; those that were dropped are missing."""
    size, following = SIZE + 32, 0
    assert len(received) % size == 0
    for at in range(0, len(received), size):
        piece = received[at : at + size]
        known = [message(1, n, SIZE) for n in range(following, count)]
        assert piece in known
        following += known.index(piece) + 1


async def _send_and_forget(stream: SendStream, sequence: int) -> None:
    with contextlib.suppress(StreamClosed):
        await stream.send(message(1, sequence, SIZE))
