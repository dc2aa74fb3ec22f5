"""`batches` returns many records at once, as arrays of any kind."""

import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from links import attempting, cancelled_at, meanwhile, others_wait
from oracle import payload

import aiozerocopy as azc

np = pytest.importorskip("numpy")
pytestmark = pytest.mark.anyio

RECORD = np.dtype([("number", ">u4"), ("place", "<f8", (2,))])
# A buffer's format describes some of these in different ways, and others not at all.
DTYPES = ["?", ">i4", "<f2", "g", "c16", "M8[ns]", "U3", "V7", "(2,3)i4", RECORD]


@pytest.fixture
async def ends() -> AsyncIterator[tuple[azc.ReceiveStream, azc.SendStream]]:
    reader, writer = azc.pipe()
    async with reader, writer:
        yield reader, writer


def records(count: int, length: int = 16) -> Any:
    return np.frombuffer(payload(count, count * length), "u1").reshape(count, length)


@pytest.mark.parametrize("pool", [False, True])
async def test_full_batches_then_what_is_left(pool: bool, ends: Any) -> None:
    reader, writer = ends
    sent = records(10)
    await writer.send(sent)
    await writer.aclose()
    slots = azc.FramePool((4, 16), slots=2) if pool else None
    came = [batch.copy() async for batch in reader.batches((4, 16), pool=slots)]
    assert [len(batch) for batch in came] == [4, 4, 2]
    assert np.array_equal(np.concatenate(came), sent)
    if slots is not None:
        slots.close()
        assert slots.stats.free == 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
async def test_batch_has_the_records_type_and_shape(dtype: Any, ends: Any) -> None:
    reader, writer = ends
    wanted = np.empty((5, 2), dtype)
    data = bytes(payload(3, wanted.nbytes * 7 // 5))
    await writer.send(data)
    await writer.aclose()
    came = [batch async for batch in reader.batches((5, 2), dtype)]
    assert [batch.shape[0] for batch in came] == [5, 2]
    assert {batch.dtype for batch in came} == {wanted.dtype}
    assert came[1].shape[1:] == wanted.shape[1:]
    assert b"".join(batch.tobytes() for batch in came) == data


async def test_slot_comes_back_with_its_last_view(ends: Any) -> None:
    reader, writer = ends
    await writer.send(records(2))
    with azc.FramePool(100, slots=2) as pool:  # (a slot may be larger)
        batch = await anext(reader.batches((2, 8), pool=pool))
        part = batch[1:, :3]
        del batch
        assert pool.stats.free == 1
        del part
        assert pool.stats.free == 2


@pytest.mark.parametrize("whole", [0, 1, 5])
async def test_rest_of_a_record_is_told_at_the_end(whole: int, ends: Any) -> None:
    reader, writer = ends
    data = bytes(payload(1, whole * 8 + 3))
    await writer.send(data)
    await writer.aclose()
    batches = reader.batches((4, 2), ">u4")
    came = b""
    with pytest.raises(azc.IncompleteReceive, match="after 3 of 8 bytes") as caught:
        while True:
            came += (await anext(batches)).tobytes()
    assert (caught.value.received, caught.value.total) == (3, 8)
    assert came + caught.value.rest == data
    with pytest.raises(azc.IncompleteReceive):  # the error stays
        await anext(batches)


async def test_nothing_at_all_is_the_end(ends: Any) -> None:
    reader, writer = ends
    await writer.aclose()
    batches = reader.batches(4, "f4")
    assert [batch async for batch in batches] == []
    assert [batch async for batch in batches] == []


async def test_records_before_a_break_come_first() -> None:
    ours, theirs = socket.socketpair()
    data = bytes(payload(1, 2 * 16 + 5))
    async with azc.wrap_socket(ours) as stream:
        await stream.send(b"never read, which makes the end a reset")
        theirs.sendall(data)
        theirs.close()
        batches = stream.batches((4, 16))
        batch = await anext(batches)
        assert batch.tobytes() == data[:32]
        for _ in range(2):
            with pytest.raises(azc.StreamBroken):
                await anext(batches)
        assert await stream.receive() == data[32:]


@pytest.mark.every_loop
@pytest.mark.parametrize("pool", [False, True])
async def test_cancel_at_every_await_loses_nothing(pool: bool, ends: Any) -> None:
    reader, writer = ends
    sent = records(40)
    slots = azc.FramePool((4, 16), slots=3) if pool else None
    batches = reader.batches((4, 16), pool=slots)
    came: list[Any] = []

    async def send() -> None:
        for record in sent:  # one at a time, so that a batch is often half full
            await writer.send(record)
            await others_wait()
        await writer.aclose()

    async with meanwhile(send):
        n = 0
        while sum(len(batch) for batch in came) < len(sent):
            n += 1
            cancelled, batch = await cancelled_at(anext(batches), 1 + n % 3)
            if not cancelled:
                came.append(batch.copy())
                del batch
    assert np.array_equal(np.concatenate(came), sent)
    assert slots is None or slots.stats.free == 3


async def test_error_that_is_kept_keeps_no_slot(ends: Any) -> None:
    reader, _ = ends
    with azc.FramePool((4, 16), slots=2) as pool:
        batches = reader.batches((4, 16), pool=pool)
        async with attempting(anext, batches) as failed:
            await others_wait()
            reader.abort()
        assert isinstance(failed.error, azc.StreamClosed)
        assert pool.stats.free == 2


async def test_many_records_a_wake_up() -> None:
    here, there = azc.socketpair()
    async with here, there, meanwhile(here.send, records(4096)):
        batches = there.batches((256, 16))
        for _ in range(16):
            assert len(await anext(batches)) == 256
        assert there.stats.receive_calls < 100


@pytest.mark.parametrize(
    ("shape", "dtype", "error", "says"),
    [
        ((), "f4", ValueError, "no records"),
        (0, "f4", ValueError, "no records"),
        ((4, 0), "f4", ValueError, "no records"),
        ((-1, 4), "f4", ValueError, "no records"),
        (4, "V0", ValueError, "no records"),
        (4, "nonsense", TypeError, "nonsense"),
        (4, "O", TypeError, "Python objects"),
    ],
)
async def test_batches_that_cannot_be(
    shape: Any, dtype: Any, error: type[Exception], says: str, ends: Any
) -> None:
    with pytest.raises(error, match=says):
        ends[0].batches(shape, dtype)


async def test_pool_that_does_not_fit(ends: Any) -> None:
    with azc.FramePool(63, slots=2) as small:
        with pytest.raises(ValueError, match=r"64 bytes .* slots of 63"):
            ends[0].batches((4, 16), pool=small)
    with azc.FramePool(64, slots=1) as one:
        with pytest.raises(ValueError, match="at least two slots"):
            ends[0].batches((4, 16), pool=one)
