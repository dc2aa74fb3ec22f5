"""FanOut: the same records to many rings, and the cost of a slow one."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from links import attempt, linux_only, others_wait, until
from rings import SMALL, opened, ring_pair

import aiozerocopy as azc
from aiozerocopy.shm import FanOut, Ring

pytestmark = [linux_only, pytest.mark.anyio]

RECORD = bytes(10_000)  # six of these fill a ring


@asynccontextmanager
async def fan(folder: Path, *policies: str) -> AsyncIterator[tuple[FanOut, list[Ring]]]:
    """A FanOut to a ring for each policy, and the rings' other ends."""
    async with AsyncExitStack() as stack:
        fan = await stack.enter_async_context(azc.shm.FanOut())
        ends = []
        for number, policy in enumerate(policies):
            (folder / str(number)).mkdir()
            producer, consumer = await opened(folder / str(number))
            chosen: Any = policy
            fan.attach(producer, chosen)
            ends.append(await stack.enter_async_context(consumer))
        yield fan, ends


async def received(ring: Ring, count: int) -> list[bytes]:
    found = []
    for _ in range(count):
        with await ring.receive() as record:
            found.append(bytes(record))
    return found


async def test_all_get_every_record(tmp_path: Path) -> None:
    async with fan(tmp_path, "block", "drop", "disconnect") as (out, ends):
        await out.send(b"one", b" more")
        await out.send(b"two", type_id=2)
        for end in ends:
            assert await received(end, 2) == [b"one more", b"two"]
        assert [each.sent for each in out.consumers] == [2, 2, 2]


async def test_slow_one_is_waited_for_last(tmp_path: Path) -> None:
    async with fan(tmp_path, "block", "drop") as (out, (slow, quick)):
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                await out.send(RECORD)
                await received(quick, 1)
            sending = attempt(tasks, out.send, RECORD)
            await others_wait()
            assert not sending.done
            assert await received(quick, 1) == [RECORD]  # the quick ring already has it
            assert await received(slow, 7) == [RECORD] * 7
        assert sending.error is None


async def test_slow_one_misses_records(tmp_path: Path) -> None:
    async with fan(tmp_path, "drop") as (out, (slow,)):
        for _ in range(10):
            await out.send(RECORD)
        [consumer] = out.consumers
        assert (consumer.sent, consumer.dropped) == (6, 4)
        assert await received(slow, 6) == [RECORD] * 6
        await out.send(b"again")
        assert await received(slow, 1) == [b"again"]
        assert repr(consumer) == "<Consumer drop: 7 sent, 4 dropped>"


async def test_slow_one_is_disconnected(tmp_path: Path) -> None:
    async with fan(tmp_path, "disconnect", "drop") as (out, (slow, other)):
        consumer = out.consumers[0]
        for _ in range(7):
            await out.send(RECORD)
            await received(other, 1)
        assert isinstance(consumer.error, azc.StreamBroken)
        assert len(out.consumers) == 1
        assert await received(slow, 6) == [RECORD] * 6
        with pytest.raises(azc.StreamBroken):
            await slow.receive()


@pytest.mark.parametrize("how", ["aclose", "abort"])
async def test_one_that_leaves_is_left_out(how: str, tmp_path: Path) -> None:
    async with fan(tmp_path, "block", "drop") as (out, (leaves, stays)):
        consumer = out.consumers[0]
        if how == "abort":
            leaves.abort()
            await until(lambda: consumer.ring._end.stats().gone)
        else:
            await leaves.aclose()
        await out.send(RECORD)
        assert await received(stays, 1) == [RECORD]
        assert isinstance(consumer.error, azc.StreamBroken)
        assert len(out.consumers) == 1


async def test_end_is_told_to_all(tmp_path: Path) -> None:
    async with fan(tmp_path, "block", "drop") as (out, ends):
        await out.send(b"last")
        await out.aclose()
        for end in ends:
            assert await received(end, 1) == [b"last"]
            with pytest.raises(anyio.EndOfStream):
                await end.receive()


async def test_closed_fan_out(tmp_path: Path) -> None:
    async with fan(tmp_path, "block") as (out, _), ring_pair(tmp_path) as (ring, _):
        await out.aclose()
        with pytest.raises(azc.StreamClosed, match="the FanOut is closed"):
            await out.send(b"late")
        with pytest.raises(azc.StreamClosed, match="the FanOut is closed"):
            out.attach(ring)
        await ring.send(b"it is still ours")


async def test_record_that_is_too_big_goes_to_nobody(tmp_path: Path) -> None:
    async with fan(tmp_path, "block", "drop") as (out, _):
        with pytest.raises(ValueError, match="does not fit"):
            await out.send(bytes(SMALL))
        with pytest.raises(ValueError, match="32 bits"):
            await out.send(b"", type_id=1 << 32)
        assert [each.sent for each in out.consumers] == [0, 0]


async def test_what_cannot_be_attached(tmp_path: Path) -> None:
    async with fan(tmp_path, "block") as (out, (consumer,)):
        unknown: Any = "newest"
        with pytest.raises(ValueError, match="'block', 'drop', 'disconnect'"):
            out.attach(out.consumers[0].ring, unknown)
        with pytest.raises(TypeError, match="does not send"):
            out.attach(consumer)
