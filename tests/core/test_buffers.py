"""Any C-contiguous memory may be a buffer; everything else is refused at the call."""

from __future__ import annotations

import array
import ctypes
import errno
import gc
import mmap
import os
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
import scripts
from links import (
    BIG,
    SENDS,
    Link,
    attempt,
    attempting,
    begun,
    checked,
    collected,
    cut_short,
    linux_only,
    open_link,
    put_and_wait,
    reading,
    receives,
    stuck,
    until,
)
from numpy.typing import NDArray
from oracle import assert_same, message, payload, poison
from tensors import CUDA, OldTensor, OldTensorWithArray, Tensor, TensorThatCopies

from aiozerocopy import StreamBroken, open_reader, socketpair
from aiozerocopy._core import receiving
from aiozerocopy._core.pins import receive_at_once

pytestmark = pytest.mark.anyio

PLACES = ("adopted", "pty", "unix")  # one for each way in which bytes are written


@pytest.fixture(params=PLACES)
def link(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Link]:
    with open_link(request.param, tmp_path) as opened:
        yield opened


def _mapped() -> mmap.mmap:
    memory = mmap.mmap(-1, 100_000)
    memory[:] = bytes(payload(1, 100_000))
    return memory


KINDS: dict[str, Callable[[], Any]] = {
    "bytes": lambda: bytes(payload(1, 100_000)),
    "bytearray": lambda: bytearray(payload(1, 100_000)),
    "small memoryview": lambda: memoryview(bytes(payload(1, 100))),
    "slice of a memoryview": lambda: memoryview(bytearray(payload(1, 100_001)))[1:],
    "memoryview of int32": lambda: memoryview(bytes(payload(1, 100_000))).cast("i"),
    "2-d memoryview": lambda: memoryview(bytes(payload(1, 100_000))).cast(
        "B", (100, 1000)
    ),
    "0-d memoryview": lambda: memoryview(bytes(8)).cast("d", ()),
    "array of double": lambda: array.array("d", range(12_000)),
    "mmap": _mapped,
    "ctypes": lambda: (ctypes.c_uint16 * 40_000)(*range(40_000)),
}


def _arrays() -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 1 << 63, size=30_000, dtype=np.int64)
    read_only = bits.copy()
    read_only.flags.writeable = False
    when = np.arange("2000-01-01", "2001-01-01", dtype="datetime64[D]")
    records = np.zeros(700, dtype=[("a", "<u2"), ("b", ">f8", (3,)), ("c", "S5")])
    records["a"] = np.arange(700)
    return {
        "float32": rng.random((100, 50, 3), dtype=np.float32),
        "float16": rng.random(20_000).astype(np.float16),
        "complex": rng.random(9_000) + 1j,
        "bool": bits > 1 << 62,
        "big-endian": bits.astype(">i4"),
        "text": np.array(["ab", "cde"] * 1_000),
        "datetime64": when,
        "timedelta64": when - when[0],
        "structured": records,
        "0-d": np.array(3.5),
        "scalar": np.float64(2.5),
        "zero in the shape": np.zeros((0, 100, 3)),
        "also later": np.zeros((100, 0)),
        "read-only": read_only,
        "rows of a frame": rng.random((100, 60, 3), dtype=np.float32)[20:70],
        "one element, any strides": np.ones((5, 1, 5))[2:3, :, 2:3],
    }


ARRAYS = _arrays()


# Objects with DLPack and without the buffer protocol.
TENSORS: dict[str, Any] = {
    f"tensor: {kind}": Tensor(ARRAYS[kind])
    for kind in ("float32", "0-d", "rows of a frame")
}


@pytest.mark.parametrize("kind", [*KINDS, *ARRAYS, *TENSORS])
async def test_kinds(pipe: Link, kind: str) -> None:
    if kind in TENSORS:
        data, array = TENSORS[kind], TENSORS[kind].array
    else:
        data = array = KINDS[kind]() if kind in KINDS else ARRAYS[kind]
    async with collected(pipe, start=True) as (stream, _, received):
        for send in SENDS.values():
            await send(stream, data)
    sent = getattr(array, "tobytes", None) or memoryview(array).tobytes
    assert_same(received, sent() * len(SENDS))


@pytest.mark.parametrize("call", ["pieces", "send_many"])
async def test_more_pieces_than_one_system_call_takes(link: Link, call: str) -> None:
    pieces = [bytearray(payload(n, 1 + n % 50)) for n in range(5_000)]
    pieces[100] = bytearray()
    expected = b"".join(pieces)
    async with collected(link, start=True) as (stream, _, received):
        if call == "pieces":
            await stream.send(*pieces)
        else:
            await stream.send_many(pieces)
        for piece in pieces:
            poison(piece)
            piece.clear()
    assert_same(received, expected)


# ---- tensors ----------------------------------------------------------------------


# From NumPy 2.1 on, a tensor says whether it is writable.
_TELLS = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
_NEW = pytest.param(Tensor, marks=pytest.mark.skipif(not _TELLS, reason="old NumPy"))


@pytest.mark.parametrize("kind", [_NEW, OldTensorWithArray])
async def test_tensors_to_receive_into(pipe: Link, kind: type[Tensor]) -> None:
    first, second = np.zeros((2, 1000), "i4")
    first_tensor, second_tensor = map(kind, (first, second))
    async with pipe.receiver() as receiver, pipe.sender() as stream:
        await stream.send(np.arange(2000, dtype="i4"))
        await receiver.receive_exactly(first_tensor)
        assert await receiver.receive_into(second_tensor) == 4000
    assert np.array_equal([*first, *second], np.arange(2000))


async def test_a_tensor_is_kept_until_it_is_sent(pipe: Link) -> None:
    tensor = Tensor(np.frombuffer(payload(1, BIG), "u1").copy())
    array = weakref.ref(tensor.array)
    received = bytearray()
    async with reading(pipe, received.extend, start=False) as reader:
        async with pipe.sender() as stream, stuck(stream, tensor):
            del tensor
            gc.collect()
            assert array() is not None
            reader.start()
        assert array() is None
    assert_same(received, payload(1, BIG))


async def test_tensors_need_numpy(pipe: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    tensor: Any = Tensor(np.zeros(5))
    async with pipe.receiver(), pipe.sender() as stream:
        monkeypatch.setitem(sys.modules, "numpy", None)
        needs = "the memory of a Tensor needs numpy: pip install"
        with pytest.raises(ModuleNotFoundError, match=needs):
            await stream.send(tensor)


class _Refusing(Tensor):
    def __dlpack__(self, **_: Any) -> Any:
        raise RuntimeError("requires grad")


# ---- refused ----------------------------------------------------------------------


def _released() -> memoryview:
    view = memoryview(b"abc")
    view.release()
    return view


def _closed() -> mmap.mmap:
    memory = mmap.mmap(-1, 4096)
    memory.close()
    return memory


SQUARE = np.arange(60_000, dtype=np.int32).reshape(200, 300)
STRIDED: dict[str, Any] = {
    "every second byte": memoryview(bytes(1_000))[::2],
    "backwards": memoryview(bytes(1_000))[::-1],
    "transposed": SQUARE.T,
    "Fortran order": np.asfortranarray(SQUARE),
    "columns": SQUARE[:, 10:20],
    "steps": SQUARE[::2],
    "reversed": SQUARE[::-1],
    "field of records": ARRAYS["structured"]["a"],
    "memoryview of a transposed array": memoryview(SQUARE.T),
}
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    **{name: (data, BufferError, "contiguous") for name, data in STRIDED.items()},
    "array of objects": (np.array([{}, []], dtype=object), TypeError, "objects"),
    "records with objects": (np.zeros(3, dtype=[("a", "O")]), TypeError, "objects"),
    "memoryview of objects": (memoryview(np.array([{}])), TypeError, "objects"),
    "str": ("text", TypeError, "'str'.*encode"),
    "None": (None, TypeError, "'NoneType'"),
    "int": (5, TypeError, "'int'"),
    "list": ([1, 2], TypeError, "'list'"),
    "list of bytes": ([b"a"], TypeError, "'list'"),
    "released view": (_released(), ValueError, "released"),
    "closed mapping": (_closed(), ValueError, "closed"),
    "transposed tensor": (Tensor(SQUARE.T), BufferError, "ascontiguousarray"),
    "tensor of a device": (Tensor(SQUARE, CUDA), BufferError, r"copy .*tensor.cpu\("),
    "tensor that refuses": (_Refusing(SQUARE), BufferError, "usable: requires grad"),
}


@pytest.mark.parametrize("kind", REFUSED)
async def test_refused_at_the_call(pipe: Link, kind: str) -> None:
    data, error, text = REFUSED[kind]
    async with checked(pipe, {1: 2}, start=True) as (stream, _):
        good = message(1, 0, 100)
        await stream.send(good)
        for send in SENDS.values():
            with pytest.raises(error, match=text):
                await send(stream, data)
        with pytest.raises(error, match=text):
            await stream.send(good, data, good)
        with pytest.raises(error, match=text):
            await stream.send_many([good, data, good])
        good.clear()
        assert stream.stats.messages_queued == 0
        await stream.send(message(1, 1, 100))


TARGETS: dict[str, tuple[Any, type[Exception]]] = {
    "bytes": (b"read-only", BufferError),
    "array": (ARRAYS["read-only"], BufferError),
    "strided": (memoryview(bytearray(100))[::2], BufferError),
    "transposed": (SQUARE.copy().T, BufferError),
    "same": (np.broadcast_to(np.zeros(1), 4), BufferError),
    "objects": (np.array([{}]), TypeError),
    "str": ("text", TypeError),
    "released": (_released(), ValueError),
    "read-only tensor": (Tensor(ARRAYS["read-only"]), BufferError),
    "tensor that cannot tell": (OldTensor(np.zeros(5)), BufferError),
    "tensor that copies": (TensorThatCopies(np.zeros(5)), BufferError),
    "tensor of a device": (Tensor(np.zeros(5), CUDA), BufferError),
}


@pytest.mark.parametrize("kind", TARGETS)
async def test_targets_that_are_refused(pipe: Link, kind: str) -> None:
    target, error = TARGETS[kind]
    async with pipe.receiver() as receiver, pipe.sender() as stream:
        await stream.send(b"abc")
        for call in (receiver.receive_into, receiver.receive_exactly):
            with pytest.raises(error):
                await call(target)
        assert await receiver.receive() == b"abc"


async def test_number_of_bytes_is_no_target(pipe: Link) -> None:
    async with pipe.receiver() as receiver, pipe.sender() as stream:
        with pytest.raises(TypeError, match=r"give bytearray\(10\)"):
            await receiver.receive_exactly(10)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"write \*buffers"):
            await stream.send([b"one", b"two"])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"not 'int'$"):
            await stream.send(10)  # type: ignore[arg-type]


# ---- bad memory ---------------------------------------------------------------------


@pytest.fixture
def beyond_the_end(tmp_path: Path) -> Iterator[mmap.mmap]:
    """A mapping of 2 MiB whose file has been truncated to 1 MiB."""
    fd = os.open(tmp_path / "mapped", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 2 * BIG)
    with mmap.mmap(fd, 2 * BIG) as memory:
        memory[:BIG] = payload(1, BIG)
        os.ftruncate(fd, BIG)
        yield memory
        os.ftruncate(fd, 2 * BIG)
    os.close(fd)


async def test_memory_without_a_file_is_refused(
    link: Link, beyond_the_end: mmap.mmap
) -> None:
    """It is refused at any size: even a copy of a small message would be fatal."""
    async with checked(link, {1: 2}, start=True) as (stream, _):

        async def send_many(data: memoryview) -> None:
            await stream.send_many([b"", data])

        await stream.send(message(1, 0, 100))
        view = memoryview(beyond_the_end)
        for n in (100, BIG - 5):
            for send in (stream.send, partial(put_and_wait, stream), send_many):
                with pytest.raises(BufferError, match="nothing was sent"):
                    await send(view[BIG + 5 :][:n])
        await stream.send(message(1, 1, 100))


@pytest.mark.every_loop
@pytest.mark.parametrize("start", [BIG - 50, BIG])
@pytest.mark.parametrize("kind", ["pipe", "untrusted", "fifo", "pty", "unix", "tcp4"])
async def test_received_into_memory_without_a_file(
    kind: str, start: int, beyond_the_end: mmap.mmap, tmp_path: Path
) -> None:
    """The bytes stay for the next receive, even those that came before the end."""
    data, received = payload(2, 100), bytearray(100)
    with open_link("adopted" if kind == "untrusted" else kind, tmp_path) as link:
        if kind == "untrusted":
            stream = open_reader(link.take_read_fd(), peer="untrusted")
        else:
            stream = link.receiver()
        async with stream:
            with memoryview(beyond_the_end)[start : start + 100] as view:
                for unread in (b"", data[:70]):
                    stream._unread = bytes(unread)
                    os.write(link._write_fd, data[len(unread) :])
                    with pytest.raises(BufferError, match="nothing was received"):
                        await stream.receive_exactly(view)
                    await stream.receive_exactly(received)
                    assert received == data
                async with attempting(stream.receive_exactly, view) as waiting:
                    await until(lambda: receives(stream))
                    os.write(link._write_fd, data)
                assert isinstance(waiting.error, BufferError)
            await stream.receive_exactly(received)
            assert received == data


@pytest.mark.parametrize("kind", ["pipe", "adopted", "fifo", "unix", "tcp4"])
async def test_memory_that_ends_in_the_middle(
    kind: str, beyond_the_end: mmap.mmap, tmp_path: Path
) -> None:
    received = bytearray()
    with open_link(kind, tmp_path) as link:
        async with reading(link, received.extend, start=False) as reader:
            stream = link.sender()
            async with anyio.create_task_group() as tasks:
                sending = attempt(tasks, stream.send, beyond_the_end)
                await begun(stream)
                behind = [
                    attempt(tasks, stream.send, b"behind"),
                    attempt(tasks, stream.send, b"behind", b"it"),
                    attempt(tasks, stream.send_many, [b"behind", b"it"]),
                ]
                ticket = await stream.put(b"behind all")
                reader.start()
                await until(lambda: all(each.done for each in [sending, *behind]))
                with pytest.raises(StreamBroken) as of_ticket:
                    await ticket
            with pytest.raises(StreamBroken) as later:
                await stream.send(b"later")
            stream.abort()
    assert_same(received, payload(1, BIG)[: len(received)])
    assert isinstance(sending.error, StreamBroken)
    assert sending.error.bytes_sent == len(received) > 0
    assert f"{len(received):,} of {2 * BIG:,} bytes" in str(sending.error)
    for error in (
        *(each.error for each in [sending, *behind]),
        of_ticket.value,
        later.value,
    ):
        assert isinstance(error, StreamBroken)
        assert "nothing was sent" not in str(error)
        assert error.errno == errno.EFAULT


def test_memory_that_has_ended_is_converted() -> None:
    """Only the kernel's copies can be refused: the processor's end the process."""
    code = """
    import mmap, tempfile
    from aiozerocopy.frames import Conversion
    with tempfile.TemporaryFile() as file:
        file.truncate(640 * 360 * 3)
        memory = mmap.mmap(file.fileno(), 0)
        file.truncate(0)
        Conversion("rgb24", "yuv420p", (640, 360)).to_yuv(memory, bytearray(345_600))
    """
    status, _, complained = scripts.finish(scripts.start(code))
    assert status == -signal.SIGBUS, complained


async def test_rescue_without_a_file(link: Link, beyond_the_end: mmap.mmap) -> None:
    received = bytearray()
    async with reading(link, received.extend, start=False) as reader:
        stream = link.sender()
        async with cut_short(stream.send, beyond_the_end):
            await begun(stream)
        with pytest.raises(StreamBroken):
            await stream.send(b"more")
        reader.start()
        stream.abort()
    assert_same(received, payload(1, BIG)[: len(received)])


# ---- huge ---------------------------------------------------------------------------


@pytest.fixture
def huge() -> Iterator[mmap.mmap]:
    """A buffer that one system call cannot move; it takes no memory."""
    with mmap.mmap(-1, (2 << 30) + 4_099, flags=mmap.MAP_PRIVATE | 0x4000) as memory:
        memory[-1:] = b"!"
        yield memory


@linux_only
@pytest.mark.timeout(60)
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_more_than_two_gib(huge: mmap.mmap, tmp_path: Path) -> None:
    counted = 0

    def count(piece: memoryview) -> None:
        nonlocal counted
        counted += len(piece)

    with open_link("unix", tmp_path) as link, memoryview(huge) as view:
        async with reading(link, count), link.sender() as stream:
            await stream.send(view)
            assert stream.stats.bytes_sent == len(huge)
    assert counted == len(huge)


async def test_received_is_free_even_if_the_operation_is_kept() -> None:
    """The traceback of an exception in the loop may keep the operation."""
    near, far = socketpair()
    data = bytearray(100)
    async with near, far, attempting(far.receive_into, data) as receiving:
        await until(lambda: far._reception is not None)
        kept = far._reception
        await near.send(b"x")
        await until(lambda: receiving.done)
        data.clear()
    assert kept is not None
    assert receiving.result == 1


@pytest.mark.parametrize("size", [500, 1000])
@pytest.mark.parametrize("left", [400, 1000])
async def test_a_handler_shortens_what_was_received_into(
    left: int, size: int, anyio_backend_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes beyond the shortened buffer come with the next receive.

    A handler cannot shorten the buffer while more bytes are expected.
    """
    if anyio_backend_name == "trio":
        pytest.skip("on trio every receive pins its memory")
    buffer = bytearray(1000)

    def interrupted(*arguments: Any) -> None:
        kept = receive_at_once(*arguments)
        if left < len(buffer):
            assert isinstance(kept, memoryview) is (size < len(buffer))
            del buffer[left:]
        raise KeyboardInterrupt

    near, far = socketpair()
    async with near, far:
        await near.send(data := bytes(payload(1, 10 + size)))
        assert await far.receive(10) == data[:10]  # this binds it to its loop
        monkeypatch.setattr(receiving, "receive_at_once", interrupted)
        with pytest.raises((KeyboardInterrupt, BufferError)):
            await far.receive_exactly(buffer)
        assert await far.receive() == data[10 : 10 + min(size, len(buffer))]
