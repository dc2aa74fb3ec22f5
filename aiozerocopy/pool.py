"""FramePool: a fixed number of frames, handed out again when nobody needs them.

The states of a slot
    free
    leased    its `Frame`, or any view or array made of it, or a send that is not over,
              refers to its memory: each of them keeps the same object alive
    free      the last of them is gone, and that object with it

So there is no counter: a slot cannot come back too early, and cannot be lost while
Python collects garbage; `_core.memory` says how.  It may come back in any thread, and
wakes the first task that waits.  The memory stays mapped until no slot is leased, even
if the pool itself is gone.

A program that makes frames gets its backpressure by waiting for a free slot.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import math
import operator
import os
import sys
import weakref
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from anyio import ClosedResourceError, WouldBlock
from anyio.abc import AsyncResource

from aiozerocopy._core import waiter
from aiozerocopy._core.borrows import and_end
from aiozerocopy._core.change import RemoteChange
from aiozerocopy._core.fork_and_exit import OfOneProcess
from aiozerocopy._core.leases import Lease, view_of
from aiozerocopy._core.memory import Memory, finalizing_view

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from aiozerocopy._core.leases import AnyBuffer

_ITEMSIZE = {
    f"{kind}{bits}": bits // 8
    for kind, sizes in (
        ("uint", (8, 16, 32, 64)),
        ("int", (8, 16, 32, 64)),
        ("float", (16, 32, 64)),
        ("complex", (64, 128)),
    )
    for bits in sizes
}

# ctypes names the byte order even if it is the machine's own.
_NATIVE = "<" if sys.byteorder == "little" else ">"


@dataclass(frozen=True)
class PoolStats:
    """What a pool holds now, and how often a task had to wait for a slot."""

    slots: int
    free: int
    waiting: int
    acquired: int
    waited: int
    nbytes: int


class Frame(Lease):
    """One slot, leased.  Its bytes are writable."""

    __slots__ = ("dtype", "nbytes", "shape", "time")
    shape: tuple[int, ...]
    dtype: str

    def __init__(self, view: memoryview, shape: tuple[int, ...], dtype: str) -> None:
        super().__init__(view)
        self.shape = shape
        self.dtype = dtype
        self.nbytes: int = view.nbytes
        self.time: float | None = None  # seconds; of frames from `ffmpeg.Reader`

    def __repr__(self) -> str:
        state = "released" if self._view is None else f"{self.dtype} {self.shape}"
        return f"<Frame {state}>"


def _wake_first(places: weakref.ref[collections.deque[RemoteChange]]) -> None:
    """Let the first task in line look again; any thread or finalizer may call it."""
    line = places()
    if line:
        with contextlib.suppress(IndexError):
            line[0].happen()


class FramePool(AsyncResource):
    """Frames of one shape and dtype, in ``slots`` slots and never more.

    The memory, of ``nbytes`` bytes, is private to this process and asks for huge pages.
    Its frames may travel without any copy: see `SendStream.lane`.
    """

    def __init__(
        self, shape: int | Sequence[int], dtype: Any = "uint8", slots: int = 3
    ) -> None:
        """Map the memory.

        Raises:
            ValueError: an empty or negative shape, no slot, an unknown dtype.
            TypeError: a side, or the number of slots, is not a whole number.
            OSError: there is no memory.
        """
        sides: Any = shape if hasattr(shape, "__iter__") else (shape,)
        try:
            self.shape: tuple[int, ...] = tuple(map(operator.index, sides))
            self.slots: int = operator.index(slots)
        except TypeError:
            raise TypeError(
                f"shape and slots must be whole numbers, not {shape!r} and {slots!r}"
            ) from None
        name, itemsize = _named_dtype(dtype)
        self.dtype: str = name
        self.frame_bytes: int = math.prod(self.shape) * itemsize
        if min(self.shape, default=1) <= 0:
            raise ValueError(f"a frame of shape {self.shape} has no bytes")
        if slots < 1:
            raise ValueError(f"slots must be at least 1, not {slots}")
        try:
            memory = self._new_memory()
        except OverflowError:  # more than C can count
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from None
        self._process = OfOneProcess()
        self.nbytes: int = memory.nbytes
        self._memory: Memory | None = memory  # None once closed
        self._slots = memory.slots
        # The tasks that wait.  Leases refer to them weakly, and keep only memory alive.
        self._line: collections.deque[RemoteChange] = collections.deque()
        self._wake_first = partial(_wake_first, weakref.ref(self._line))
        self._acquired = self._waited = 0

    def _new_memory(self) -> Memory:
        return Memory(self.frame_bytes, self.slots)

    def acquire_nowait(self) -> Frame:
        """Return a free slot.

        Raises:
            WouldBlock: there is none, or other tasks wait for one.
            ClosedResourceError: the pool was closed, or this is a forked child.
        """
        if self._memory is None:
            raise ClosedResourceError("the pool is closed")
        if self._process.inherited:
            raise ClosedResourceError(
                "the pool belongs to the parent process, and this is a forked child: "
                "make a pool of its own here"
            )
        if self._line:
            raise WouldBlock
        return self._take(self._memory)

    def _take(self, memory: Memory) -> Frame:
        view = memory.lease(self._wake_first)
        if view is None:
            raise WouldBlock
        self._acquired += 1
        return Frame(view, self.shape, self.dtype)

    async def acquire(self) -> Frame:
        """Return a free slot; wait for one, in order of the calls.

        The frame is not cleared: it has the contents of an earlier one.

        Raises:
            ClosedResourceError: the pool was closed, before or during the call, or
                this is a forked child.
        """
        await waiter.enter()
        is_over = self._memory is None or self._process.inherited
        if is_over or (self._slots.free() and not self._line):
            with contextlib.suppress(WouldBlock):  # (another thread may be quicker)
                return self.acquire_nowait()
        return await self._wait_in_line()

    async def _wait_in_line(self) -> Frame:
        self._waited += 1
        line, place = self._line, RemoteChange()

        def ready() -> bool:
            return self._memory is None or (line[0] is place and self._slots.free() > 0)

        async def take() -> Frame:
            line.append(place)
            while True:
                await place.wait(ready)
                if (memory := self._memory) is None:
                    raise ClosedResourceError("the pool was closed")
                with contextlib.suppress(WouldBlock):  # (as in `acquire`)
                    return self._take(memory)

        return await and_end(take, partial(self._leave_line, place))

    def _leave_line(self, place: RemoteChange) -> None:
        with contextlib.suppress(ValueError):
            self._line.remove(place)
        if self._slots.free():
            self._wake_first()

    @property
    def stats(self) -> PoolStats:
        """The counters as of now."""
        return PoolStats(
            slots=self.slots,
            free=self._slots.free(),
            waiting=len(self._line),
            acquired=self._acquired,
            waited=self._waited,
            nbytes=self.nbytes,
        )

    def close(self) -> None:
        """Hand out no more slots.  Frames and views stay valid, and the last of them
        frees the memory."""
        self._memory = None
        for place in self._line.copy():
            place.happen()

    async def aclose(self) -> None:
        """Close; for ``async with``."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<FramePool {self.dtype} {self.shape}, "
            f"{self._slots.free()} of {self.slots} free>"
        )


def _named_dtype(dtype: Any) -> tuple[str, int]:
    """Return the name and the size of a dtype; only rarer ones need NumPy."""
    if isinstance(dtype, str) and dtype in _ITEMSIZE:
        return dtype, _ITEMSIZE[dtype]
    try:
        import numpy
    except ImportError:
        names = ", ".join(_ITEMSIZE)
        raise ValueError(f"without NumPy a dtype is one of {names}") from None
    try:
        kind = numpy.dtype(dtype)
    except TypeError:
        raise ValueError(f"NumPy knows no dtype {dtype!r}") from None
    if kind.hasobject or not kind.itemsize:
        raise ValueError(f"a frame cannot hold {dtype!r}")
    return kind.str if kind.names is None else str(kind), kind.itemsize


def finalizing_buffer(memory: AnyBuffer, finalizer: Callable[[], Any]) -> memoryview:
    """Return a view of ``memory``; ``finalizer()`` runs once, when no view is left.

    The memory stays exported until then, and read-only memory stays read-only.  The
    finalizer may run in any thread, even after a stream that used the view was closed.
    The objects that it refers to are kept until then; if the view is one of them, it
    never runs.

    The view has the memory's shape and type if the items are native numbers.  Otherwise
    (big-endian, complex or structured items, or none) it consists of bytes.

    Raises:
        TypeError, BufferError: not a buffer, or not a C-contiguous one.
        ValueError: a released memoryview, or an array of dates.
    """
    outer = view_of(memory)
    view = finalizing_view(memory, finalizer)
    if outer.readonly:
        view = view.toreadonly()
    if outer.format != "B" or outer.ndim != 1:
        cast: Any = view.cast
        with contextlib.suppress(TypeError, ValueError):
            view = cast(outer.format.removeprefix(_NATIVE), outer.shape)
    return view
