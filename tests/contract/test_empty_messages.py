"""An empty message has no bytes, but takes its turn like any other."""

import anyio
import pytest
from links import BIG, Link, attempt, begun, collected, reading, stuck, submitted
from oracle import assert_same, message

pytestmark = pytest.mark.anyio


async def test_nothing_is_sent(link: Link) -> None:
    async with collected(link, start=True) as (stream, _, received):
        await stream.send()
        await stream.send(b"")
        await stream.send(b"", bytearray(), memoryview(b""))
        await (await stream.put(b""))
        await (await stream.put(b"", b""))
        await stream.send_many([b"", b""])
        await stream.send(b"x", b"")
    assert received == b"x"


async def test_at_the_end_of_a_batch(some: Link) -> None:
    data = bytes(message(1, 0, BIG))
    async with (
        collected(some) as (stream, reader, received),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(stream.send_many, [data, b""])
        await begun(stream)
        reader.start()
    assert_same(received, data)


async def test_waits_for_those_before_it(some: Link) -> None:
    async with reading(some, len, start=False) as reader:
        async with some.sender() as stream:
            async with stuck(stream, message(1, 0, BIG)) as tasks:
                empty = attempt(tasks, stream.send, b"")
                await submitted(stream, 2)
                assert not empty.done
                reader.start()
            assert empty.done
