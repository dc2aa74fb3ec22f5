"""Records of one size, received many at a time: `ReceiveStream.batches`.

Where the bytes are
    coming        in the next batch's memory, which nobody else has
    interrupted   with the stream, after a cancel or because it broke; nothing is lost
    given         the caller's, as an array
At the end the whole records come first, as a shorter array.  The error for the rest of
a record, or for a broken stream, comes after that.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import anyio

from aiozerocopy._core import extras
from aiozerocopy._core.borrows import or_undo
from aiozerocopy._core.errors import IncompleteReceive, StreamBroken
from aiozerocopy._core.failure import Failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    import numpy.typing as npt
    from typing_extensions import Buffer, Self

    from aiozerocopy._core.leases import Lease


class Source(Protocol):
    """The part of a `ReceiveStream` that is used here."""

    _unread: bytes

    def receive_exactly(self, buffer: Buffer) -> Awaitable[Any]: ...


class Pool(Protocol):
    """The part of a `FramePool` that is used here."""

    slots: int
    frame_bytes: int

    def acquire(self) -> Awaitable[Lease]: ...


def give_back(
    stream: Source, come: list[Any], view: memoryview | None, slot: Lease | None
) -> None:
    """Leave the bytes of an interrupted call to the next receive; may be called twice.

    (The view and the slot are released, since the traceback keeps them.)
    """
    unread = b"".join(come) + stream._unread
    stream._unread, come[:] = unread, ()  # (one statement, as in `receive` below)
    if view is not None:
        with contextlib.suppress(BufferError):  # C still has it
            view.release()
    if slot is not None:
        slot.release()


class Batches:
    """The batches of a stream, with ``async for`` or ``await anext(...)``."""

    def __init__(
        self, stream: Source, shape: int | Sequence[int], dtype: Any, pool: Pool | None
    ) -> None:
        with extras.optional("batches", "numpy"):
            import numpy

        self._numpy = numpy
        self._stream = stream
        self._shape = (shape,) if isinstance(shape, int) else tuple(map(int, shape))
        self._dtype = numpy.dtype(dtype)
        self._pool = pool
        self._is_over = False  # True: no full batch will come any more
        self._failure: Failure[Exception] | None = None  # None: the stream's end
        if not self._shape or min(self._shape) < 1 or not self._dtype.itemsize:
            raise ValueError(
                f"a batch of shape {self._shape} and {dtype!r} has no records: the "
                "shape is the number of records, then the shape of one"
            )
        if self._dtype.hasobject:
            raise TypeError("a stream cannot carry Python objects")
        self._record_bytes = math.prod(self._shape[1:]) * self._dtype.itemsize
        if pool is not None:
            self._check(pool)

    def _check(self, pool: Pool) -> None:
        wanted = self._shape[0] * self._record_bytes
        if pool.frame_bytes < wanted:
            raise ValueError(
                f"a batch of {wanted:,} bytes does not fit into the pool's slots of "
                f"{pool.frame_bytes:,}"
            )
        if pool.slots < 2:
            raise ValueError(
                "batches need a pool of at least two slots: you use one while the "
                "next is filled"
            )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> npt.NDArray[Any]:
        """Raises: as `ReceiveStream.batches`."""
        count = self._shape[0]
        if not self._is_over:
            try:
                return await self._receive(count)
            except anyio.EndOfStream:
                self._is_over = True
            except StreamBroken as error:
                self._is_over, self._failure = True, Failure(error)
        # (the stream has kept the bytes that came before it broke)
        whole = len(self._stream._unread) // self._record_bytes
        return await self._receive(min(whole, count)) if whole else self._stop()

    async def _receive(self, count: int) -> npt.NDArray[Any]:
        """Receive ``count`` records, or as many as there are before the end."""
        slot: Lease | None = None
        view: memoryview | None = None
        come: list[memoryview] = []

        async def receive() -> npt.NDArray[Any]:
            nonlocal slot, view, come
            wanted = count * self._record_bytes
            if self._pool is not None:
                slot = await self._pool.acquire()
                view = slot.view[:wanted]
            else:
                view = memoryview(self._numpy.empty(wanted, "u1"))
            try:
                # (one statement: no signal handler runs before `come` has the view)
                come += await self._stream.receive_exactly(view) or (view,)
            except IncompleteReceive as error:
                return self._last(view, error.received)
            return self._array(view, count)

        async def undo(_: BaseException) -> None:
            give_back(self._stream, come, view, slot)

        return await or_undo(receive, undo)

    def _array(self, view: memoryview, count: int) -> npt.NDArray[Any]:
        shape = (count, *self._shape[1:])
        return self._numpy.ndarray(shape, self._dtype, view)

    def _last(self, view: memoryview, received: int) -> npt.NDArray[Any]:
        """Return the whole records of a batch that the stream's end has cut short."""
        whole, rest = divmod(received, self._record_bytes)
        self._is_over = True
        if rest:
            left = bytes(view[received - rest : received])
            self._failure = Failure(IncompleteReceive(rest, self._record_bytes, left))
        return self._array(view, whole) if whole else self._stop()

    def _stop(self) -> NoReturn:
        raise StopAsyncIteration if self._failure is None else self._failure.again()
