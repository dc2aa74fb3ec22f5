"""Record and Batch: received records, in the ring's own memory.

The memory is the reader's until all references to it are gone: the record or batch
(until it is released), its views and its arrays, even after the ring is closed.  Until
then the producer cannot use that part of the ring.  It is read-only here, but the
producer's process can write to it: if you do not trust that program, copy the bytes
before you check them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, overload

from aiozerocopy._core import extras
from aiozerocopy._core.leases import Lent, array_over

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt

    from aiozerocopy._core.ring_end import Taken


class Record(Lent):
    """One record: ``view``, ``type_id``.  Use it with ``with``, or drop it."""

    __slots__ = ("nbytes", "type_id")
    KIND: ClassVar[str] = "record"

    def __init__(self, view: memoryview, type_id: int) -> None:
        super().__init__(view)
        self.type_id: int = type_id
        self.nbytes: int = view.nbytes

    def array(self, dtype: Any = "uint8", shape: Any = -1) -> npt.NDArray[Any]:
        """Return the memory as a read-only NumPy array, without a copy.

        Raises:
            ValueError: it was released; or it is not of that type and shape.
        """
        view = self.view
        with extras.optional("an array", "numpy"):
            import numpy
        return numpy.frombuffer(view, dtype).reshape(shape)

    def __dlpack__(self, **options: Any) -> Any:
        """Return the bytes, read-only, for ``from_dlpack`` of other packages.

        Raises:
            BufferError: the other package does not know of read-only memory.
        """
        return self.array().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # the CPU

    def __len__(self) -> int:
        return self.nbytes

    def __bytes__(self) -> bytes:
        return bytes(self.view)

    def __repr__(self) -> str:
        state = "released" if self._view is None else f"{self.nbytes:,} bytes"
        return f"<Record type_id={self.type_id} {state}>"


def only_record(taken: Taken) -> Record:
    """Return the record of a batch of one."""
    return Record(taken.view, taken.items[0].type_id)


class Batch(Lent):
    """Records that were taken together, oldest first; ``batch[i]`` is a `Record`.

    They go back to the producer together, when all references to them are gone.
    ``view`` has all payloads, with other bytes between them.
    """

    __slots__ = ("_items", "_length", "_stride")
    KIND: ClassVar[str] = "batch"

    def __init__(self, taken: Taken) -> None:
        super().__init__(taken.view)
        self._items = taken.items
        self._length = taken.count
        self._stride = taken.stride

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            return [self._record(i) for i in range(self._length)[index]]
        return self._record(range(self._length)[index])

    def _record(self, i: int) -> Record:
        item = self._items[i]
        start: int = item.offset
        return Record(self.view[start : start + item.size], item.type_id)

    def __iter__(self) -> Iterator[Record]:
        return map(self._record, range(self._length))

    @property
    def nbytes(self) -> int:
        """The bytes of all payloads together."""
        return sum(item.size for item in self._items[0 : self._length])

    @property
    def type_ids(self) -> list[int]:
        return [item.type_id for item in self._items[0 : self._length]]

    def array(self, dtype: Any = "uint8", shape: Any = None) -> npt.NDArray[Any]:
        """Return all records as one read-only NumPy array, without a copy.

        Its first axis is the record; the others are ``shape``: by default one axis, of
        all items in a record.

        Raises:
            ValueError: the records have several sizes, or not the size of that shape;
                a dtype of Python objects; or the batch was released.
        """
        view = self.view
        with extras.optional("an array", "numpy"):
            import numpy
        size: int = self._items[0].size
        if not self._stride:
            sizes = sorted({item.size for item in self._items[0 : self._length]})
            raise ValueError(
                f"the records of this batch have sizes from {sizes[0]:,} to "
                f"{sizes[-1]:,} bytes, so they are not one array: use each by itself"
            )
        kind = numpy.dtype(dtype)
        each = _shape_of(size, kind.itemsize, shape)
        if math.prod(each) * kind.itemsize != size:
            raise ValueError(
                f"a record of {size:,} bytes is not an array of {kind} and shape {each}"
            )
        row = array_over(view, kind, each)
        return numpy.ndarray(
            (self._length, *each), kind, view, 0, (self._stride, *row.strides)
        )

    def __repr__(self) -> str:
        state = ", released" if self._view is None else ""
        return f"<Batch of {self._length}{state}>"


def _shape_of(size: int, itemsize: int, shape: Any) -> tuple[int, ...]:
    if shape is None:
        return (size // itemsize if itemsize else 0,)
    return (shape,) if isinstance(shape, int) else tuple(shape)
