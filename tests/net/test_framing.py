"""Frames over streams: the wire format, and which memory belongs to whom, and when."""

import asyncio
import contextlib
import gc
import json
import os
import random
import shutil
import struct
import subprocess
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.streams.stapled import StapledByteStream
from interruption import Interruption, Lines, hit_each_line, keeps_a_borrow
from links import attempt, begun, cut_short, meanwhile, tls_over, until
from tensors import OldTensorWithArray, Tensor

import aiozerocopy as azc
from aiozerocopy import framing
from aiozerocopy._core import leases
from aiozerocopy._core.binding import PORTABLE
from aiozerocopy.framing import (
    HEADER_SIZE,
    CorruptHeader,
    FrameError,
    FrameHeader,
    FrameReceiver,
    FrameSender,
    FrameTooLarge,
    FrameTooSlow,
    TruncatedFrame,
)
from aiozerocopy.pool import FramePool

np = pytest.importorskip("numpy")

anyio_test = pytest.mark.anyio
ROOMS = ("framing", "pool", "_net", "_core.batches", "_core.pins", "_core.change")
HERE = Path(__file__).parents[1]
PAGES = HERE.parent / "docs" / "pages"
VECTORS = json.loads((PAGES / "wire-format-vectors.json").read_text())
GOOD = bytes.fromhex(VECTORS["frames"][0]["frame"])


def name_of(vector: dict[str, Any]) -> str:
    return str(vector["name"])


def header(**changes: Any) -> FrameHeader:
    fields: dict[str, Any] = {
        "sequence": 7,
        "timestamp_ns": -8,
        "dtype": "|u1",
        "shape": (2, 3),
        "pixel_format": "gray",
        "key": True,
        "metadata_length": 0,
        "payload_length": 6,
    }
    return FrameHeader(**(fields | changes))


# ---- the header -----------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS["frames"], ids=name_of)
def test_vector_is_understood(vector: dict[str, Any]) -> None:
    frame = bytes.fromhex(vector["frame"])
    found = FrameHeader.unpack(frame[:HEADER_SIZE])
    for field in ("sequence", "timestamp_ns", "dtype", "pixel_format", "key"):
        assert getattr(found, field) == vector[field]
    assert found.shape == tuple(vector["shape"])
    metadata, payload = (bytes.fromhex(vector[k]) for k in ("metadata", "payload"))
    assert frame == found.pack() + metadata + payload


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=name_of)
def test_vector_is_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(getattr(framing, vector["error"])):
        FrameHeader.unpack(bytes.fromhex(vector["header"]))


@pytest.mark.parametrize(
    "changes",
    [
        {"pixel_format": "seventeen letters"},
        {"pixel_format": "rgb\0"},
        {"pixel_format": "größe"},
        {"sequence": -1},
        {"sequence": 1 << 64},
        {"metadata_length": framing.MAX_METADATA + 1},
        {"shape": (1,) * 9},
    ],
)
def test_header_that_cannot_be_packed(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"pixel_format|fit|metadata"):
        header(**changes).pack()


def test_shape_that_numpy_cannot_hold() -> None:
    with pytest.raises(CorruptHeader):
        FrameHeader.unpack(header(shape=(2**40, 2**40, 0), payload_length=0).pack())


def test_short_header() -> None:
    with pytest.raises(TruncatedFrame) as caught:
        FrameHeader.unpack(GOOD[:100])
    assert (caught.value.received, caught.value.total) == (100, HEADER_SIZE)


def test_limit_is_the_receivers() -> None:
    stream: Any = None
    wrong: Any
    for wrong, error in ((-1, ValueError), ("1M", TypeError), (None, TypeError)):
        with pytest.raises(error, match=r"^max_bytes "):
            FrameReceiver(stream, max_bytes=wrong)
    assert FrameHeader.unpack(GOOD[:HEADER_SIZE], 12).payload_length == 12
    with pytest.raises(FrameTooLarge):
        FrameHeader.unpack(GOOD[:HEADER_SIZE], 11)


@pytest.mark.parametrize("kind", ["fields", "good"])
def test_hostile_header_with_a_right_checksum(kind: str) -> None:
    """Random fields, and good fields with small changes.

    AZC_FUZZ=1000000 tries more of them.
    """
    dice = random.Random(kind)
    for _ in range(int(os.environ.get("AZC_FUZZ", "1000"))):
        fields = bytearray(GOOD[:124])
        for _ in range(dice.randint(1, 6)):
            fields[dice.randrange(124)] = dice.randrange(256)
        if kind == "fields":
            fields[:] = b"AZCF\1" + dice.randbytes(119)
        try:
            found = FrameHeader.unpack(fields + struct.pack("<I", zlib.crc32(fields)))
        except FrameError:
            continue
        assert found.payload_length <= framing.MAX_BYTES
        assert found.metadata_length <= framing.MAX_METADATA
        memory = memoryview(np.empty(found.payload_length, "u1"))
        array = leases.array_over(memory, found.dtype, found.shape)
        assert array.nbytes == found.payload_length
        # Ignored parts (flags of later versions, the reserved field) are gone.
        assert FrameHeader.unpack(found.pack()) == found


# ---- descriptions of what is sent ---------------------------------------------------


@pytest.mark.parametrize("code", sorted(framing.DTYPES))
def test_every_dtype_of_numpy_arrays_and_their_views(code: str) -> None:
    array = np.zeros((2, 3), code)
    assert framing.describe(array) == (code, (2, 3))
    assert framing.describe(memoryview(array)) == (code, (2, 3))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"abc", ("|u1", (3,))),
        (bytearray(2), ("|u1", (2,))),
        (memoryview(b"abcd").cast("B", (2, 2)), ("|u1", (2, 2))),
        (memoryview(bytes(8)).cast("l"), ("<i8", (1,))),
        (np.float32(1), ("<f4", ())),
        (Tensor(np.zeros((2, 3), "i8")), ("<i8", (2, 3))),
    ],
)
def test_description(data: Any, expected: object) -> None:
    assert framing.describe(data) == expected


@pytest.mark.parametrize(
    "data",
    [
        "text",
        np.zeros(2, "M8[ns]"),
        np.zeros(2, "O"),
        np.zeros(2, [("x", "u1")]),
        np.zeros(2, "S3"),
        np.zeros(2, "g"),
    ],
)
def test_what_does_not_travel(data: Any) -> None:
    with pytest.raises(TypeError):
        framing.describe(data)


def test_description_of_pool_frames() -> None:
    for dtype in ("uint8", "bool", "float32", ">i2", "complex64"):
        with FramePool((2, 2), dtype, slots=1) as pool, pool.acquire_nowait() as frame:
            assert framing.describe(frame) == (np.dtype(dtype).str, (2, 2))


# ---- from one end to the other ----------------------------------------------------


def foreign(stream: azc.Stream) -> StapledByteStream:
    """Wrap one of our streams in a foreign one."""
    return StapledByteStream(stream, stream)


@pytest.fixture(params=["ours", "foreign"])
async def ends(
    request: pytest.FixtureRequest, anyio_backend: object
) -> AsyncIterator[tuple[Any, Any]]:
    one, other = azc.socketpair()
    async with one, other:
        is_ours = request.param == "ours"
        yield (one, other) if is_ours else (foreign(one), foreign(other))


@anyio_test
async def test_arrays_of_all_kinds(ends: tuple[Any, Any]) -> None:
    sender, receiver = FrameSender(ends[0]), FrameReceiver(ends[1])
    arrays = [np.arange(24).astype(code).reshape(2, 3, 4) for code in framing.DTYPES]
    arrays += [np.zeros((0, 3), "f4"), np.array(5, "i8"), np.arange(10)]
    for number, array in enumerate(arrays):
        await sender.send(array, pixel_format="gray", metadata=b"m" * number, key=False)
        with await receiver.receive() as frame:
            assert frame.array.dtype == array.dtype
            assert np.array_equal(frame.array, array)
            assert frame.array.shape == frame.shape == array.shape
            assert frame.array.flags.writeable
            assert frame.nbytes == array.nbytes
            assert (frame.sequence, frame.metadata) == (number, b"m" * number)
            assert (frame.pixel_format, frame.key) == ("gray", False)


@anyio_test
async def test_what_is_no_stream() -> None:
    opening: Any = azc.connect_tcp("127.0.0.1", 1)
    async with azc.pipe() as (reader, writer):
        wrong: Any
        for wrong in (None, 5, reader, opening):
            with pytest.raises(TypeError, match=r"async send\(\) is needed"):
                FrameSender(wrong)
        for wrong in (None, 5, writer, opening):
            with pytest.raises(TypeError, match=r"async receive\(\) is needed"):
                FrameReceiver(wrong)
    opening.close()


@anyio_test
async def test_big_frames_and_the_end(ends: tuple[Any, Any]) -> None:
    array = np.arange(1_500_000, dtype="u2")
    got = 0

    async def send() -> None:
        sender = FrameSender(ends[0])
        for number in range(3):
            await sender.send(array, timestamp_ns=number, metadata=bytes(60_000))
            array[:] += 1  # the sender does not need the array any more
        await ends[0].send_eof()

    async with meanwhile(send):
        async for frame in FrameReceiver(ends[1]):
            expected = np.arange(1_500_000, dtype="u2") + got
            assert frame.timestamp_ns == frame.sequence == got
            assert np.array_equal(frame.array, expected)
            got += 1
    assert got == 3


@anyio_test
async def test_many_tasks_send_whole_frames(ends: tuple[Any, Any]) -> None:
    sender, receiver = FrameSender(ends[0]), FrameReceiver(ends[1])
    async with anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(sender.send, np.full(300_000, number, "u1"))
        numbers = []
        for sequence in range(6):
            frame = await receiver.receive()
            assert frame.sequence == sequence
            assert len(set(frame.array)) == 1
            numbers.append(int(frame.array[0]))
    assert sorted(numbers) == list(range(6))


@anyio_test
@pytest.mark.parametrize("kind", [np.asarray, OldTensorWithArray])
async def test_receive_into_the_callers_array(ends: tuple[Any, Any], kind: Any) -> None:
    sender, receiver = FrameSender(ends[0]), FrameReceiver(ends[1])
    mine = np.zeros((4, 5), "f4")
    sent = np.arange(20, dtype="f4").reshape(4, 5)
    await sender.send(kind(sent))
    frame = await receiver.receive(into=kind(mine))
    assert (frame.dtype, frame.shape) == ("<f4", (4, 5))
    assert np.array_equal(mine, sent)
    assert np.shares_memory(frame.array, mine)
    await sender.send(sent)
    with pytest.raises(ValueError, match="do not fit"):
        await receiver.receive(into=bytearray(79))
    with pytest.raises(BufferError):
        await receiver.receive(into=bytes(80))
    assert np.array_equal((await receiver.receive(into=bytearray(90))).array, sent)


@anyio_test
async def test_receive_into_a_pool(ends: tuple[Any, Any]) -> None:
    sender = FrameSender(ends[0])
    with FramePool((10, 10), "uint8", slots=1) as pool:
        receiver = FrameReceiver(ends[1], pool)
        for number in range(3):
            await sender.send(np.full((5, number), number, "u1"))
            frame = await receiver.receive()
            assert pool.stats.free == 0
            assert frame.array.shape == (5, number)
            assert (frame.array == number).all()
            frame.release()
            frame.release()
            assert pool.stats.free == 1
            with pytest.raises(ValueError, match="released"):
                _ = frame.array
        await sender.send(bytes(101))
        with pytest.raises(FrameTooLarge):
            await receiver.receive()


@anyio_test
@pytest.mark.skipif(PORTABLE, reason="the portable build lends nothing")
async def test_frames_of_a_pool_are_lent() -> None:
    """They go to a known receiver, between headers and metadata that are copied."""
    async with azc.socketpair(peer="reads") as (theirs, ours):
        with FramePool((2048, 2048), slots=1) as pool, await pool.acquire() as frame:
            sender, receiver = FrameSender(ours), FrameReceiver(theirs)
            for number in range(3):
                frame.array[:] = number
                async with anyio.create_task_group() as tasks:
                    send = partial(sender.send, metadata=bytes(5000 * number))
                    tasks.start_soon(send, frame)
                    received = await receiver.receive()
                frame.array[:] = 0xDB
                assert received.metadata == bytes(5000 * number)
                assert (received.array == number).all()
        assert ours.lane == "vmsplice"


@anyio_test
async def test_what_cannot_be_sent_leaves_no_trace(ends: tuple[Any, Any]) -> None:
    sender = FrameSender(ends[0])
    bad: list[tuple[Any, dict[str, Any]]] = [
        (np.zeros((4, 4), "u1")[:, ::2], {}),
        (np.zeros(2, "O"), {}),
        (b"x", {"pixel_format": "x" * 17}),
        (b"x", {"metadata": bytes(65537)}),
        (b"x", {"metadata": "text"}),
        (b"x", {"metadata": 3}),
    ]
    for frame, options in bad:
        with pytest.raises((BufferError, TypeError, ValueError)):
            await sender.send(frame, **options)
    await sender.send(b"good", pixel_format=None)
    received = await FrameReceiver(ends[1]).receive()
    assert (received.sequence, bytes(received.view)) == (0, b"good")
    assert received.pixel_format == ""


@anyio_test
@pytest.mark.every_loop
async def test_metadata_of_any_memory_travels_as_its_bytes(
    ends: tuple[Any, Any],
) -> None:
    sender, receiver = FrameSender(ends[0]), FrameReceiver(ends[1])
    numbers = np.arange(3, dtype="<i4")
    metadata: Any
    for metadata in (numbers, numbers[::2], memoryview(b"bytes"), bytearray(b"bytes")):
        await sender.send(b"frame", metadata=metadata)
        received = await receiver.receive()
        assert received.metadata == bytes(memoryview(metadata))
        assert bytes(received.view) == b"frame"


# ---- failures -----------------------------------------------------------------------


@anyio_test
@pytest.mark.parametrize("kind", ["ours", "foreign"])
async def test_stream_that_ends_inside_of_a_frame(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it ends, each receive reports it, and the memory is free at once."""
    made = freed = 0

    def free() -> None:
        nonlocal freed
        freed += 1

    def fresh(n: int) -> memoryview:
        nonlocal made
        made += 1
        return azc.finalizing_buffer(bytearray(n), free)

    monkeypatch.setattr(framing, "fresh", fresh)
    frame = header(metadata_length=6).pack() + b"m" * 6 + b"p" * 6
    kept: list[object] = []
    gc.collect()
    gc.disable()
    try:
        with FramePool(6, slots=1) as pool:
            for cut in range(1, len(frame)):
                one, other = azc.socketpair()
                async with one, other:
                    await one.send(frame + frame[:cut])
                    await one.send_eof()
                    end = other if kind == "ours" else foreign(other)
                    receiver = FrameReceiver(end, pool if cut % 2 else None)
                    with await receiver.receive() as first:
                        assert bytes(first.view) == b"p" * 6
                    for _ in range(2):
                        with pytest.raises(TruncatedFrame) as caught:
                            await receiver.receive()
                        assert caught.value.received == cut
                        assert caught.value.total == (140 if cut >= 128 else 128)
                        kept += receiver, caught.value
                assert pool.stats.free == 1
                assert made == freed
        assert made > 0
    finally:
        gc.enable()


@anyio_test
async def test_a_slot_is_not_for_a_peer_that_drips(ends: tuple[Any, Any]) -> None:
    """Single bytes do not move the deadline, which counts from the header."""
    near, far = ends
    head = header(dtype="|u1", shape=(64,), metadata_length=0, payload_length=64)

    async def drip() -> None:
        await near.send(head.pack())
        while True:
            await near.send(b"x")
            await anyio.sleep(0.02)

    with FramePool((64,), slots=1) as pool:
        receiver = FrameReceiver(far, pool, frame_timeout=0.3)
        async with cut_short(drip):
            with anyio.fail_after(5), pytest.raises(FrameTooSlow, match="64 bytes"):
                await receiver.receive()
            with pytest.raises(FrameTooSlow):  # where the next frame begins is unknown
                await receiver.receive()
        with anyio.fail_after(5):
            (await pool.acquire()).release()


def _received(end: Any) -> int:
    ours: Any = getattr(end, "receive_stream", end)
    return int(ours.stats.bytes_received)


@anyio_test
@pytest.mark.parametrize("at", [60, 128, 132, 140, 1100])
async def test_cancelled_receive_loses_nothing(ends: tuple[Any, Any], at: int) -> None:
    payload = bytes(range(256)) * 8
    packed = header(shape=(2048,), payload_length=2048, metadata_length=8).pack()
    frame = packed + b"metadata" + payload
    receiver = FrameReceiver(ends[1])
    async with anyio.create_task_group() as tasks:
        receiving = attempt(tasks, receiver.receive)
        await ends[0].send(frame[:at])
        await until(lambda: _received(ends[1]) == at)
        assert not receiving.done
        with pytest.raises(anyio.BusyResourceError):
            await receiver.receive()
        tasks.cancel_scope.cancel()
    await ends[0].send(frame[at:])
    received = await receiver.receive()
    assert (received.metadata, bytes(received.view)) == (b"metadata", payload)


@anyio_test
async def test_cancelled_send_over_a_foreign_stream_breaks_the_sender() -> None:
    one, other = azc.socketpair()
    async with one, other:
        sender = FrameSender(foreign(one))
        async with cut_short(sender.send, bytes(2_000_000)):
            await begun(one)
        with pytest.raises(azc.StreamBroken, match="middle of a message"):
            await sender.send(b"next")
        one.abort()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("how", ["new", "into", "pool", "batches", "foreign", "tls"])
def test_interrupted_at_any_line(how: str, tls: Any) -> None:
    """No frame is lost or doubled, and its memory is free at once."""

    async def play(lines: Lines) -> list[str]:
        streams: Any = azc.socketpair()
        one, other = map(foreign, streams) if how == "foreign" else streams
        if how == "tls":
            one, other = await tls_over(streams, tls).__aenter__()
        sender, pool = FrameSender(one), FramePool(300, slots=2)
        receiver = FrameReceiver(other, pool if how == "pool" else None)
        batches = streams[1].batches(300, pool=pool)
        data, into = bytearray(b"2" * 172), bytearray(172)
        raised: list[BaseException] = []
        got: list[bytes] = []

        async def receive(memory: bytearray | None = None) -> None:
            if how == "batches":
                got.append(bytes(await anext(batches))[128:])
            else:
                got.append(bytes((await receiver.receive(memory)).view))

        await sender.send(b"1" * 172)
        held = [pool.acquire_nowait() for _ in range(2)]
        asyncio.get_running_loop().call_soon(held.clear)
        try:
            with lines:
                await receive(into if how == "into" else None)
                await sender.send(data)
        except Interruption as error:
            raised.append(error)
        kept = keeps_a_borrow(raised, [], [data, into])
        with contextlib.suppress(azc.StreamBroken):  # a foreign stream is cut off
            await sender.send(b"3" * 172)
        streams[0].abort()
        ends = anyio.EndOfStream, StopAsyncIteration, azc.StreamBroken
        with contextlib.suppress(*ends):
            with anyio.fail_after(5):
                while True:
                    await receive()
        streams[1].abort()
        came = b"".join(frame[:1] * (len(frame) == 172) for frame in got)
        is_whole = came in (b"123", b"13")
        if how in ("foreign", "tls"):  # a message may be cut off
            is_whole = is_whole or b"12".startswith(came)
        return ["a traceback keeps a borrow"] * kept + [f"{came!r}"] * (not is_whole)

    def task(lines: Lines) -> Awaitable[list[str]]:
        return asyncio.ensure_future(play(lines))

    here = asyncio.current_task
    asyncio.run(hit_each_line(task, ROOMS, list, lambda: here() is not None))


# ---- readers in other languages -----------------------------------------------------


def c_reader(folder: Path) -> Path:
    source = HERE.parent / "examples" / "frame_reader.c"
    flags = ["-Wall", "-Wextra", "-Werror", "-O2", "-std=gnu11"]
    subprocess.run(["cc", *flags, "-o", folder / "reader", source], check=True)
    return folder / "reader"


def rust_reader(folder: Path) -> Path:
    if shutil.which("rustc") is None:
        pytest.skip("no rustc")
    source = HERE.parent / "examples" / "frame_reader.rs"
    flags = ["-D", "warnings", "--edition", "2021"]
    subprocess.run(["rustc", *flags, "-o", folder / "reader", source], check=True)
    return folder / "reader"


@pytest.mark.parametrize("build", [c_reader, rust_reader])
def test_reader_in_another_language(
    tmp_path: Path, build: Callable[[Path], Path]
) -> None:
    reader = build(tmp_path)

    def read(data: bytes) -> tuple[list[str], str]:
        done = subprocess.run([reader], input=data, capture_output=True, timeout=10)
        assert bool(done.stderr) == bool(done.returncode)
        return done.stdout.decode().splitlines(), done.stderr.decode()

    frames = VECTORS["frames"]
    lines, error = read(b"".join(bytes.fromhex(frame["frame"]) for frame in frames))
    assert not error
    assert lines == [line_of(frame) for frame in frames]
    for vector in VECTORS["refused"]:
        lines, error = read(bytes.fromhex(vector["header"]) + bytes(64))
        assert not lines
        assert vector["error"] in error
    for cut in (1, 127, 128, 139):
        assert "TruncatedFrame" in read(GOOD[:cut])[1]


def line_of(frame: dict[str, Any]) -> str:
    words = [
        frame["sequence"],
        frame["timestamp_ns"],
        frame["dtype"],
        frame["pixel_format"] or "-",
        int(frame["key"]),
        len(frame["metadata"]) // 2,
        zlib.crc32(bytes.fromhex(frame["payload"])),
        "x".join(map(str, frame["shape"])),
    ]
    return " ".join(map(str, words))
