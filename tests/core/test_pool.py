"""FramePool: slots come back when nothing uses them any more, and not before."""

import contextlib
import ctypes
import errno
import gc
import os
import sys
import threading
from functools import partial
from typing import Any

import anyio
import numpy as np
import pytest
from links import begun_in_thread, fork, is_trio, meanwhile, until
from tensors import Tensor

import aiozerocopy as azc

pytestmark = pytest.mark.anyio


def waiting(pool: azc.FramePool, n: int) -> bool:
    return pool.stats.waiting == n


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


class TestFrames:
    def test_view_and_array_are_the_same_memory(self) -> None:
        with azc.FramePool((3, 4), "float32", slots=1) as pool:
            frame = pool.acquire_nowait()
            frame.array[:] = np.arange(12, dtype="float32").reshape(3, 4)
            assert frame.view.nbytes == frame.nbytes == pool.frame_bytes == 48
            assert bytes(frame.view) == frame.array.tobytes()
            assert frame.array.shape == frame.shape == (3, 4)
            assert frame.array.dtype == frame.dtype == "float32"
            frame.view[:4] = bytes(4)
            assert frame.array[0, 0] == 0

    @pytest.mark.parametrize("shape", [(1080, 1920, 3), (2 << 20,)])
    def test_big_frames_begin_at_a_huge_page(self, shape: tuple[int, ...]) -> None:
        with azc.FramePool(shape, slots=2) as pool:
            frames = [pool.acquire_nowait() for _ in range(2)]
            assert [address(frame.view) % (2 << 20) for frame in frames] == [0, 0]
            assert pool.nbytes >= 2 * pool.frame_bytes
            assert pool.nbytes % (2 << 20) == 0

    def test_small_frames_take_a_page(self) -> None:
        with azc.FramePool(100, slots=10) as pool:
            assert pool.stats.nbytes == pool.nbytes == 10 * 4096

    async def test_released_frame_says_so(self) -> None:
        """A block also releases its frame."""
        with azc.FramePool(10, slots=1) as pool:
            async with pool.acquire_nowait() as frame:
                pass
            with pool.acquire_nowait() as other:
                other.release()
            for each in (frame, other):
                assert "released" in repr(each)
                for ask in (lambda it: it.view, lambda it: it.array, np.from_dlpack):
                    with pytest.raises(ValueError, match="the frame was released"):
                        ask(each)

    def test_any_dtype_of_numpy(self) -> None:
        for dtype in (np.uint16, "datetime64[s]", ">u4", "bool"):
            with azc.FramePool((2,), dtype) as pool:
                assert pool.acquire_nowait().array.dtype == dtype
        with pytest.raises(ValueError, match="cannot hold"):
            azc.FramePool((2,), object)

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (((0, 4),), "no bytes"),
            (((-1, 4),), "no bytes"),
            (((4,), "uint8", 0), "slots must be at least 1"),
            (((4,), "foo"), "no dtype 'foo'"),
        ],
    )
    def test_nonsense_is_refused(self, arguments: Any, says: str) -> None:
        with pytest.raises(ValueError, match=says):
            azc.FramePool(*arguments)

    def test_numbers_of_numpy(self) -> None:
        for shape in (np.int64(6), np.array([2, 3]), [np.uint8(6)]):
            with azc.FramePool(shape, slots=np.int8(1)) as pool:  # type: ignore[arg-type]
                assert pool.nbytes >= pool.frame_bytes == 6

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (((2.7, 3),), r"whole numbers, not \(2\.7, 3\) and 3"),
            (("12",), "whole numbers, not '12' and 3"),
            ((None,), "whole numbers, not None and 3"),
            (((3,), "uint8", "3"), r"whole numbers, not \(3,\) and '3'"),
            (((3,), "uint8", 2.5), r"whole numbers, not \(3,\) and 2\.5"),
        ],
    )
    def test_what_is_no_whole_number_is_refused(
        self, arguments: Any, says: str
    ) -> None:
        with pytest.raises(TypeError, match=says):
            azc.FramePool(*arguments)

    @pytest.mark.parametrize(
        ("shape", "slots"), [(1 << 40, 1 << 10), (1 << 70, 3), (1, 1 << 40)]
    )
    def test_more_than_there_is_is_refused(self, shape: int, slots: int) -> None:
        with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
            azc.FramePool(shape, slots=slots)


class TestSlots:
    @pytest.mark.parametrize("slots", [1, 2])
    def test_a_forked_child_gets_none(self, slots: int) -> None:
        """Its frame is a copy; the pool's memory is the parent's."""

        async def acquire() -> None:
            with anyio.fail_after(5):
                await pool.acquire()

        with azc.FramePool(10, slots=slots) as pool, pool.acquire_nowait():
            pid = fork()
            if pid == 0:
                refused = 0
                for call in (pool.acquire_nowait, partial(anyio.run, acquire)):
                    with contextlib.suppress(BaseException):
                        try:
                            call()
                        except anyio.ClosedResourceError as error:
                            refused += "forked child" in str(error)
                os._exit(2 - refused)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    def test_no_more_frames_than_slots(self) -> None:
        with azc.FramePool(10, slots=2) as pool:
            frames = [pool.acquire_nowait(), pool.acquire_nowait()]
            with pytest.raises(anyio.WouldBlock):
                pool.acquire_nowait()
            frames.pop().release()
            pool.acquire_nowait()
            assert pool.stats.acquired == 3

    @pytest.mark.parametrize(
        "made", ["view", "slice", "array", "rows", "cast", "dlpack"]
    )
    def test_a_view_keeps_the_slot(self, made: str) -> None:
        with azc.FramePool((4, 4), "uint16", slots=1) as pool:
            frame = pool.acquire_nowait()
            make: dict[str, Any] = {
                "view": lambda: frame.view,
                "slice": lambda: frame.view[3:9][1:],
                "array": lambda: frame.array,
                "rows": lambda: frame.array[1:, ::2].T,
                "cast": lambda: memoryview(frame.array)[1:],
                "dlpack": lambda: np.from_dlpack(frame)[1:],
            }
            kept = make[made]()
            assert np.shares_memory(kept, frame.array)
            frame.release()
            assert pool.stats.free == 0
            del make, kept
            assert pool.stats.free == 1

    @pytest.mark.every_loop
    async def test_cancelled_acquire_takes_no_slot(self) -> None:
        with azc.FramePool(10, slots=1) as pool, anyio.CancelScope() as scope:
            scope.cancel()
            with await pool.acquire():
                if not is_trio():  # on asyncio, a call that need not wait succeeds
                    return
        assert scope.cancelled_caught
        assert pool.stats.acquired == 0

    @pytest.mark.every_loop
    async def test_acquire_waits_in_order(self) -> None:
        order = []
        async with azc.FramePool(10, slots=1) as pool:
            first = await pool.acquire()

            async def acquire(n: int) -> None:
                async with await pool.acquire():
                    order.append(n)

            async with anyio.create_task_group() as tasks:
                for n in range(5):
                    tasks.start_soon(acquire, n)
                    await until(partial(waiting, pool, n + 1))
                with pytest.raises(anyio.WouldBlock):
                    pool.acquire_nowait()
                first.release()
            assert order == list(range(5))
            assert pool.stats.free == 1

    @pytest.mark.every_loop
    async def test_a_cancelled_wait_leaves_no_trace(self) -> None:
        async with azc.FramePool(10, slots=1) as pool:
            frame = await pool.acquire()
            taken = []

            async def acquire() -> None:
                taken.append(await pool.acquire())

            async with anyio.create_task_group() as tasks:
                with anyio.CancelScope() as impatient:
                    tasks.start_soon(acquire)
                    await until(lambda: pool.stats.waiting == 1)
                    impatient.cancel()
                    with anyio.CancelScope() as scope:
                        scope.cancel()
                        await pool.acquire()
                frame.release()
            assert len(taken) == 1
            assert pool.stats.waiting == 0

    @pytest.mark.every_loop
    async def test_a_slot_comes_back_from_another_thread(self) -> None:
        async with azc.FramePool(10, slots=1) as pool:
            frames = [await pool.acquire()]
            async with meanwhile(pool.acquire):
                await until(lambda: pool.stats.waiting == 1)
                thread = threading.Thread(target=frames.clear)
                thread.start()
                thread.join()

    async def test_a_slot_comes_back_though_who_took_it_sleeps(self) -> None:
        """Without the GIL, this takes a garbage collection."""
        frames, end = list[azc.Frame](), threading.Event()
        pool = azc.FramePool(10, slots=1)
        begun_in_thread(lambda: frames.__iadd__([pool.acquire_nowait()]) and end.wait())
        await until(lambda: frames)
        frames.clear()
        (await pool.acquire()).release()
        end.set()

    @pytest.mark.every_loop
    async def test_close_tells_those_who_wait(self) -> None:
        pool = azc.FramePool(10, slots=1)
        frame = await pool.acquire()
        refused = []

        async def acquire() -> None:
            with pytest.raises(anyio.ClosedResourceError):
                await pool.acquire()
            refused.append(True)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(acquire)
            await until(lambda: pool.stats.waiting == 3)
            await pool.aclose()
        assert len(refused) == 3
        frame.release()

    async def test_a_frame_is_accepted_as_a_buffer(self) -> None:
        reader, writer = azc.pipe()
        async with reader, writer, azc.FramePool((2, 5), slots=3) as pool:
            frames = [await pool.acquire() for _ in range(3)]
            for n, frame in enumerate(frames):
                frame.array[:] = n
            await writer.send(frames[0])
            await writer.send(b"-", frames[1])
            await writer.send_many([frames[2], b"+"])
            data = bytearray(32)
            await reader.receive_exactly(data)
            assert data == bytes(10) + b"-" + b"\1" * 10 + b"\2" * 10 + b"+"
            await writer.send(b"0123456789")
            await reader.receive_exactly(frames[0])
            assert bytes(frames[0].view) == b"0123456789"
            frames[0].release()
            with pytest.raises(ValueError, match="released"):
                await writer.send(frames[0])


class _Point(ctypes.Structure):
    _fields_ = (("x", ctypes.c_int32), ("y", ctypes.c_double))


KEPT: dict[str, Any] = {
    "memoryview": np.arange(6, dtype="f4").reshape(2, 3).data,
    "<H": (ctypes.c_uint16 * 5)(*range(5)),
    "i2": np.arange(5, dtype="i2"),
    "2-d": ((ctypes.c_int32 * 3) * 2)(),
    "bool": np.array([True, False]),
}
PLAIN_BYTES: dict[str, Any] = {
    "big-endian": np.arange(5, dtype=">i4"),
    "big-endian memoryview": memoryview(np.arange(5, dtype=">u2")),
    "structured": np.ones(7, dtype=[("a", "<u2"), ("b", ">f8", (3,)), ("c", "S5")]),
    "ctypes structure": (_Point * 3)(_Point(1, 2.5), _Point(3, 4.5)),
    "text": np.array(["ab", "cde"]),
    "empty": np.zeros((0, 5)),
    "empty bytes": b"",
    "empty ctypes": (ctypes.c_uint16 * 0)(),
}
KNOWS_COMPLEX = sys.version_info >= (3, 15)  # memoryviews do
(KEPT if KNOWS_COMPLEX else PLAIN_BYTES)["complex"] = np.arange(4) + 1j


class TestFinalizingBuffer:
    def test_finalizer_runs_once_after_the_last_view(self) -> None:
        told = []
        view = azc.finalizing_buffer(bytearray(b"0123456789"), lambda: told.append(1))
        part = np.frombuffer(view[2:], "u1")[1:]
        del view
        assert not told
        assert part.tobytes() == b"3456789"
        del part
        gc.collect()
        assert told == [1]

    def test_it_is_as_read_only_as_the_memory(self) -> None:
        assert azc.finalizing_buffer(b"01", int).readonly
        view = azc.finalizing_buffer(bytearray(2), int)
        assert not view.readonly
        view[0] = 1

    @pytest.mark.parametrize("kind", KEPT)
    def test_it_keeps_shape_and_type(self, kind: str) -> None:
        view = azc.finalizing_buffer(KEPT[kind], int)
        expected = np.asarray(KEPT[kind])
        assert view.shape == expected.shape
        assert np.array_equal(np.asarray(view), expected)
        assert np.asarray(view).dtype == expected.dtype

    @pytest.mark.parametrize("kind", PLAIN_BYTES)
    async def test_of_all_else_it_has_the_bytes(self, kind: str) -> None:
        memory, told = PLAIN_BYTES[kind], list[int]()
        expected = memoryview(memory).tobytes()
        view = azc.finalizing_buffer(memory, lambda: told.append(1))
        assert (view.format, view.shape) == ("B", (len(expected),))
        assert view.tobytes() == expected
        async with azc.pipe() as (reader, writer):
            await writer.send(view, b".")
            assert await reader.receive() == expected + b"."
        del view
        gc.collect()
        assert told == [1]

    def test_of_a_tensor(self) -> None:
        told = list[int]()
        tensor: Any = Tensor(np.arange(12, dtype="i4").reshape(3, 4))
        view = azc.finalizing_buffer(tensor, lambda: told.append(1))
        assert (view.format, view.shape) == ("i", (3, 4))
        assert view.tolist() == tensor.array.tolist()
        del view
        assert told == [1]
