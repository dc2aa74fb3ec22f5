"""aiozerocopy.shm: records through shared memory, with both ends on one loop."""

import asyncio
import gc
import importlib
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from links import (
    attempt,
    attempting,
    is_trio,
    linux_only,
    meanwhile,
    others_wait,
    until,
)
from rings import SMALL, filled, opened, ring_pair

from aiozerocopy import StreamBroken, StreamClosed
from aiozerocopy._core import change, memory
from aiozerocopy._core.binding import lib
from aiozerocopy._core.ring_end import Taken
from aiozerocopy.shm import FanOut

pytestmark = [linux_only, pytest.mark.anyio]

RECORD = b"r" * 1000


@pytest.fixture(autouse=True)
def wakes_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable the regular look at the other side's state."""
    monkeypatch.setattr(change, "LOOK_AGAIN", 1000.0)


# ---- records ------------------------------------------------------------------------


async def test_records_arrive_in_order_and_whole(tmp_path: Path) -> None:
    sizes = [0, 1, 47, 48, 49, 1000, 30_000, SMALL - 16]
    sent = [(bytes([n]) * size, n) for n, size in enumerate(sizes * 20)]

    async def send() -> None:
        async with producer:
            for data, number in sent:
                await producer.send(data, type_id=number)

    producer, consumer = await opened(tmp_path)
    received = []
    async with consumer, meanwhile(send):
        async for record in consumer:
            received.append((bytes(record), record.type_id))
            assert len(record) == len(received[-1][0])
            record.release()
    assert received == sent


async def test_array_and_dlpack(tmp_path: Path) -> None:
    array = np.arange(12, dtype="float32").reshape(3, 4)
    async with ring_pair(tmp_path) as (producer, consumer):
        await producer.send(array)
        record = await consumer.receive()
        assert (record.array("float32", (3, 4)) == array).all()
        assert record.view.readonly
        assert not record.array().flags.writeable
        bytes_of_it = np.from_dlpack(record)
        assert bytes_of_it.tobytes() == array.tobytes()
        await producer.send(record)  # a record can be sent on
        assert bytes(await consumer.receive()) == array.tobytes()
        with pytest.raises(ValueError, match="reshape"):
            record.array("float32", (5, 5))
        record.release()
        with pytest.raises(ValueError, match="the record was released"):
            record.view  # noqa: B018
        assert bytes_of_it.tobytes() == array.tobytes()


# ---- batches ------------------------------------------------------------------------


async def test_batch_is_one_array(tmp_path: Path) -> None:
    """Even when the batch continues at the start of the ring."""
    vectors = np.arange(100 * 256, dtype="float32").reshape(100, 256)
    async with ring_pair(tmp_path) as (producer, consumer):
        for start in range(0, 100, 10):
            for vector in vectors[start : start + 10]:
                await producer.send(vector, type_id=7)
            batch = await consumer.receive_batch(8)
            assert len(batch) == 8
            assert batch.type_ids == [7] * 8
            assert batch.nbytes == 8 * 1024
            array = batch.array("float32")
            assert not array.flags.owndata
            assert (array == vectors[start : start + 8]).all()
            del array
            batch.release()
            with await consumer.receive_batch() as batch:
                shaped = batch.array("float32", (16, 16))
                rest = vectors[start + 8 : start + 10]
                assert (shaped == rest.reshape(2, 16, 16)).all()
                del shaped


async def test_no_array_of_python_objects(tmp_path: Path) -> None:
    """Its items would be addresses that the producer chooses."""
    async with ring_pair(tmp_path) as (producer, consumer):
        async with producer.reserve(16) as slot:
            with pytest.raises(ValueError, match="cannot be an array of object"):
                slot.array("O", (2,))
            slot.view[:] = b"x" * 16
        with await consumer.receive_batch() as batch:
            with pytest.raises(ValueError, match="cannot be an array of object"):
                batch.array("O")
            with pytest.raises(ValueError, match="OBJECT"):
                batch[0].array("O")


async def test_batch_that_is_no_array(tmp_path: Path) -> None:
    """A batch with several sizes, or of another shape."""
    async with ring_pair(tmp_path) as (producer, consumer):
        for size in (3, 100, 5):
            await producer.send(b"x" * size, type_id=size)
        batch = await consumer.receive_batch()
        assert [len(record) for record in batch] == [3, 100, 5]
        assert not any(record.array().ctypes.data % 64 for record in batch)
        assert [record.type_id for record in batch[1:]] == [100, 5]
        assert bytes(batch[-1]) == b"x" * 5
        with pytest.raises(ValueError, match="sizes from 3 to 100 bytes"):
            batch.array()
        await producer.send(b"123456789")
        batch = await consumer.receive_batch()
        with pytest.raises(ValueError, match="9 bytes is not an array of float32"):
            batch.array("float32")
        assert batch.array("uint8", (3, 3)).shape == (1, 3, 3)


async def test_batch_of_more_than_can_be_there(tmp_path: Path) -> None:
    async with ring_pair(tmp_path) as (producer, consumer):
        for most in (1 << 31, 10**20):
            await filled(producer, b"")
            with await consumer.receive_batch(most) as batch:
                assert len(batch) == SMALL // 64


async def test_batch_that_is_lost_to_an_exception_comes_again(tmp_path: Path) -> None:
    """A signal handler may raise when the batch has been made, but not returned."""

    def interrupted(taken: Taken) -> None:
        del taken
        raise KeyboardInterrupt

    async with ring_pair(tmp_path) as (producer, consumer):
        await producer.send(b"one")
        await producer.send(b"two")
        with pytest.raises(KeyboardInterrupt):
            await consumer._receiver().receive(2, interrupted)
        with await consumer.receive_batch() as batch:
            assert [bytes(record) for record in batch] == [b"one", b"two"]
        assert (consumer.stats.records, consumer.stats.nbytes) == (2, 6)


# ---- in place -----------------------------------------------------------------------


async def test_reserve_and_commit(tmp_path: Path) -> None:
    """A commit at the end of the block or by hand, with fewer bytes if wanted."""
    async with ring_pair(tmp_path) as (producer, consumer):
        async with producer.reserve(8, type_id=3) as slot:
            view = slot.view
            slot.array("uint16")[:] = 5
            assert producer.stats.records == 0
        with pytest.raises(ValueError, match="released"):
            view[0] = 1
        record = await consumer.receive()
        assert record.type_id == 3
        assert record.array("uint16").tolist() == [5] * 4
        slot = await producer.reserve(1000)
        slot.view[:3] = b"abc"
        slot.commit(3)
        slot.rollback()
        with pytest.raises(ValueError, match="nothing is reserved"):
            slot.commit()
        assert bytes(await consumer.receive()) == b"abc"


async def test_exception_rolls_back(tmp_path: Path) -> None:
    async with ring_pair(tmp_path) as (producer, consumer):
        with pytest.raises(ZeroDivisionError):
            async with producer.reserve(1000) as slot:
                slot.view[:] = RECORD
                raise ZeroDivisionError
        slot = await producer.reserve(1000)
        del slot
        await producer.send(b"next")
        assert bytes(await consumer.receive()) == b"next"


async def test_dropped_slot_ends_with_its_last_view(tmp_path: Path) -> None:
    """A view may be written to until it is gone, so its room stays reserved."""
    async with ring_pair(tmp_path) as (producer, consumer):
        slot = await producer.reserve(1000)
        array = slot.array("uint8")
        del slot
        assert not producer._try_send([b"early"], 0)
        async with meanwhile(producer.send, b"first"):
            await others_wait()
            with anyio.move_on_after(0) as scope:  # a cancel takes no room
                await producer.reserve(8)
            assert scope.cancelled_caught
            array[:] = 255
            assert consumer.stats.records == 0
            del array
        assert bytes(await consumer.receive()) == b"first"
        async with producer.reserve(4) as slot:
            slot.view[:] = b"last"
        assert bytes(await consumer.receive()) == b"last"


async def test_room_that_is_lost_late_is_nobody_elses(tmp_path: Path) -> None:
    """A late rollback by another thread's finalizer must not end the next slot."""
    async with ring_pair(tmp_path) as (producer, consumer):
        end = producer._end
        await producer.reserve(1000)  # and drop it
        key = next(memory._numbers) - 1
        async with producer.reserve(4) as slot:
            slot.view[:] = b"next"
            lib.azc_shm_rollback(end.id, key)
        assert bytes(await consumer.receive()) == b"next"


async def test_slot_dropped_in_a_cycle_is_nobody_elses(tmp_path: Path) -> None:
    """Finalizers of the cycle may still write to the slot."""

    class Writer:
        def __init__(self, view: memoryview) -> None:
            self.view = view

        def __del__(self) -> None:
            sent.append(producer._try_send([b"y" * 100], 0))
            self.view[:] = b"z" * 100

    sent: list[bool] = []
    async with ring_pair(tmp_path) as (producer, consumer):
        slot = await producer.reserve(100)
        cycle: list[Any] = [slot, Writer(slot.view[:]), Writer(slot.view[:])]
        cycle.append(cycle)
        del slot, cycle
        gc.collect()
        assert sent == [False, False]
        await producer.send(b"y" * 100)
        assert bytes(await consumer.receive()) == b"y" * 100


async def test_close_does_not_wait_for_a_dropped_slot(tmp_path: Path) -> None:
    async with ring_pair(tmp_path) as (producer, _):
        slot = await producer.reserve(100)
        view = slot.view[:]
        del slot
        async with attempting(producer.send, b"never") as sending:
            await others_wait()
            await producer.aclose()
        assert isinstance(sending.error, StreamClosed)
        view[:] = bytes(100)


async def test_who_reserves_has_the_ring_alone(tmp_path: Path) -> None:
    async with ring_pair(tmp_path) as (producer, consumer):
        async with anyio.create_task_group() as tasks:
            async with producer.reserve(5) as slot:
                second = attempt(tasks, producer.send, b"second")
                await others_wait()
                third = attempt(tasks, producer.send, b"third")
                await others_wait()
                assert not second.done
                slot.view[:] = b"first"
        assert third.done
        received = [bytes(await consumer.receive()) for _ in range(3)]
        assert received == [b"first", b"second", b"third"]


# ---- full, empty, held --------------------------------------------------------------


async def test_cancelled_where_it_lets_others_run(tmp_path: Path) -> None:
    """Calls that never wait yield now and then; a cancel there leaves no trace."""
    async with ring_pair(tmp_path) as (producer, consumer):
        yielded = 0
        for number in range(2000):
            call = producer.send(b"%d" % number)
            try:
                call.send(None)
            except StopIteration:
                assert bytes(await consumer.receive()) == b"%d" % number
                continue
            yielded += 1
            with pytest.raises(asyncio.CancelledError):
                call.throw(asyncio.CancelledError())
            await producer.send(b"next")
            assert bytes(await consumer.receive()) == b"next"
        assert yielded


async def test_held_view_keeps_its_slot(tmp_path: Path) -> None:
    """Even if all later records were released, the tail stays behind it."""
    async with ring_pair(tmp_path) as (producer, consumer):
        await producer.send(b"k" * 1000)
        record = await consumer.receive()
        kept = record.view[10:20]
        record.release()
        count = await filled(producer, RECORD)
        for _ in range(count):
            (await consumer.receive()).release()
        assert consumer.stats.held == 1 + count
        async with attempting(producer.send, b"!" * (SMALL - 16)) as last:
            await others_wait()
            assert not last.done
            assert bytes(kept) == b"k" * 10
            del kept
            assert bytes(await consumer.receive()) == b"!" * (SMALL - 16)
        assert consumer.stats.held == 0


async def test_room_for_one_is_enough(tmp_path: Path) -> None:
    """Even if all other room is held, so that there will never be more."""
    async with ring_pair(tmp_path) as (producer, consumer):
        count = await filled(producer, RECORD)
        records = [await consumer.receive() for _ in range(count)]
        async with anyio.create_task_group() as tasks:
            sent = attempt(tasks, producer.send, RECORD)
            await others_wait()
            reserved = attempt(tasks, producer.reserve(1000)._reserved)
            await others_wait()
            records.pop(0).release()
            await until(lambda: sent.done)
            records.pop(0).release()
        assert reserved.result.nbytes == 1000


async def test_wakes_only_who_sleeps(tmp_path: Path) -> None:
    async with ring_pair(tmp_path) as (producer, consumer):
        for _ in range(10):
            await producer.send(RECORD)
        assert producer.stats.rings == 0
        for _ in range(10):
            (await consumer.receive()).release()
        async with attempting(consumer.receive) as waiting:
            await others_wait()
            await producer.send(RECORD)
            await producer.send(RECORD)
        assert waiting.done
        assert producer.stats.rings == 1
        assert consumer.stats.rings == 0


async def test_spin_finds_what_comes(tmp_path: Path) -> None:
    async with ring_pair(tmp_path, spin=50) as (producer, consumer):
        async with attempting(consumer.receive) as waiting:
            await others_wait()
            await producer.send(RECORD)
        assert bytes(waiting.result) == RECORD


# ---- by type, and without boundaries ------------------------------------------------


async def test_routes(tmp_path: Path) -> None:
    received: dict[str, list[int]] = {"one": [], "two": [], "others": []}

    async def take(name: str, records: Any) -> None:
        async for record in records:
            received[name].append(int(bytes(record)))

    async with ring_pair(tmp_path) as (producer, consumer):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take, "one", consumer.route(1))
            tasks.start_soon(take, "two", consumer.route(2))
            tasks.start_soon(take, "others", consumer)
            for n in range(60):
                await producer.send(b"%d" % n, type_id=n % 4)
            await producer.aclose()
        with pytest.raises(TypeError, match="gives no batches"):
            await consumer.receive_batch()
    assert received["one"] == list(range(1, 60, 4))
    assert received["two"] == list(range(2, 60, 4))
    assert received["others"] == [n for n in range(60) if n % 4 in (0, 3)]


async def test_route_whose_task_is_cancelled(tmp_path: Path) -> None:
    """Another waiting route replaces it at the ring."""
    async with ring_pair(tmp_path) as (producer, consumer):
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as first:
                    attempt(first, consumer.route(1).receive)
                    await others_wait()
                    second = attempt(tasks, consumer.route(2).receive)
                    await others_wait()
                    scope.cancel()
            await producer.send(b"b", type_id=2)
        assert bytes(second.result) == b"b"


async def test_byte_stream_with_routes_keeps_all(tmp_path: Path) -> None:
    """Two tasks may wait for its records, so that there may be several rests."""
    async with ring_pair(tmp_path) as (producer, consumer):
        consumer.route(9)
        stream = consumer.receive_stream()
        async with anyio.create_task_group() as tasks:
            both = [attempt(tasks, stream.receive, 2) for _ in range(2)]
            await others_wait()
            await producer.send(b"abcdef")
            await producer.send(b"ABCDEF")
        rest = [await stream.receive(), await stream.receive()]
    assert sorted(each.result for each in both) == [b"ab", b"cd"]
    assert rest == [b"ef", b"ABCDEF"]


async def test_long_sends_of_a_byte_stream_are_not_mixed(tmp_path: Path) -> None:
    size = 3 * SMALL
    async with ring_pair(tmp_path) as (producer, consumer):
        to, back = producer.send_stream(), consumer.receive_stream()
        received = b""
        async with anyio.create_task_group() as tasks:
            for letter in (b"a", b"b"):
                attempt(tasks, to.send, letter * size)
            while len(received) < 2 * size:
                received += await back.receive()
    assert received == b"a" * size + b"b" * size


@pytest.mark.every_loop
@pytest.mark.parametrize("how", ["bytes", "route", "fan-out"])
async def test_calls_that_never_wait_let_others_run(how: str, tmp_path: Path) -> None:
    """On trio each call, on asyncio one of many."""
    async with ring_pair(tmp_path) as (producer, consumer):
        ran = anyio.Event()

        async def other() -> None:
            ran.set()

        call: Callable[[], Awaitable[object]]
        if how == "bytes":
            await producer.send(RECORD)
            call = partial(consumer.receive_stream().receive, 1)
        elif how == "route":
            call = consumer.route(1).receive
            for _ in range(600):
                await producer.send(b"", type_id=1)
            await producer.send(b"", type_id=2)
            await consumer.route(2).receive()  # (it puts the others into their queue)
        else:
            fan = FanOut()
            fan.attach(producer, "drop")
            call = partial(fan.send, b"")
        await call()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)
            for _ in range(2 if is_trio() else 513):
                await call()
            assert ran.is_set()


# ---- the end ------------------------------------------------------------------------


async def test_byte_stream_of_a_closed_ring(tmp_path: Path) -> None:
    """Even with bytes that were not received, and none to be sent."""
    producer, consumer = await opened(tmp_path)
    to, back = producer.send_stream(), consumer.receive_stream()
    await to.send(b"abcd")
    assert await back.receive(2) == b"ab"
    await to.aclose()
    await back.aclose()
    with pytest.raises(StreamClosed):
        await to.send(b"")
    with pytest.raises(StreamClosed):
        await back.receive(2)


@pytest.mark.parametrize(
    ("who", "error", "says"),
    [
        ("producer", StreamClosed, "the ring is closed"),
        ("consumer", StreamBroken, "the consumer has closed the ring"),
    ],
)
async def test_close_wakes_who_waits_for_room(
    who: str, error: type[Exception], says: str, tmp_path: Path
) -> None:
    producer, consumer = await opened(tmp_path)
    async with producer, consumer:
        async with anyio.create_task_group() as tasks:
            await filled(producer, RECORD)
            waiting = [attempt(tasks, producer.send, RECORD) for _ in range(2)]
            await others_wait()
            for _ in range(2):
                await (producer if who == "producer" else consumer).aclose()
    for each in waiting:
        assert type(each.error) is error
        assert says in str(each.error)


# ---- invalid arguments --------------------------------------------------------------


async def test_record_that_never_fits(tmp_path: Path) -> None:
    async with ring_pair(tmp_path, 100_000) as (producer, _):
        assert producer.capacity == 131_072
        message = r"a record of 131,057 bytes does not fit.* at most 131,056"
        with pytest.raises(ValueError, match=message):
            await producer.send(b"x" * 131_057)
        with pytest.raises(ValueError, match=message):
            producer.reserve(131_057)
        await producer.send(b"x" * producer.largest)


async def test_two_receive(tmp_path: Path) -> None:
    async with ring_pair(tmp_path) as (producer, consumer):
        async with anyio.create_task_group() as tasks:
            attempt(tasks, consumer.receive)
            await others_wait()
            with pytest.raises(anyio.BusyResourceError):
                await consumer.receive_batch()
            await producer.send(RECORD)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda ours, _: ours.send("text"), TypeError, "encode it first"),
        (
            lambda ours, _: ours.send(memoryview(b"abcd")[::2]),
            BufferError,
            "contiguous",
        ),
        (lambda ours, _: ours.send(b"", type_id=1 << 32), ValueError, "32 bits"),
        (lambda ours, _: ours.send(b"", type_id="3"), TypeError, "type_id must be a w"),
        (lambda _, other: other.receive_batch("3"), TypeError, "most must be a whole"),
        (lambda _, other: other.receive_batch(None), TypeError, "most must be a whole"),
        (lambda ours, _: ours.reserve(-1), ValueError, "does not fit"),
        (lambda ours, _: ours.receive(), TypeError, "sends, it does not receive"),
        (lambda _, other: other.send(b""), TypeError, "receives, it does not send"),
        (lambda _, other: other.reserve(1), TypeError, "receives, it does not send"),
    ],
)
async def test_call_that_is_refused(
    tmp_path: Path, call: Any, error: type[Exception], says: str
) -> None:
    async with ring_pair(tmp_path) as (producer, consumer):
        with pytest.raises(error, match=says):
            await call(producer, consumer)
        await producer.send(b"next")
        assert bytes(await consumer.receive()) == b"next"


async def test_portable_build_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiozerocopy._core.binding.PORTABLE", True)
    monkeypatch.delitem(sys.modules, "aiozerocopy.shm", raising=False)
    with pytest.raises(ImportError, match="needs Linux: rings are made of memfd"):
        importlib.import_module("aiozerocopy.shm")
