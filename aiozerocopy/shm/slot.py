"""Slot: a record that is filled in place.

The states
    waiting     it has a place in the line of the tasks that send
    reserved    the first in line: the room is its own, the consumer sees nothing yet
    over        committed, or rolled back, and out of the line

A slot that is dropped while it is reserved rolls back.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, ClassVar

from aiozerocopy._core.leases import Lent, array_over
from aiozerocopy.shm.sender import Place, Sender

if TYPE_CHECKING:
    from collections.abc import Generator

    import numpy.typing as npt
    from typing_extensions import Self


class Slot(Lent):
    """Room for a record: fill in ``view`` or ``array``, then commit.

    ``async with`` commits at the end of the block, and rolls back if an exception ends
    it.  After a commit the memory is the consumer's: do not write through a view that
    you have kept.
    """

    __slots__ = ("_place", "_sender", "nbytes", "type_id")
    KIND: ClassVar[str] = "slot"

    def __init__(self, sender: Sender, nbytes: int, type_id: int) -> None:
        self._view = None
        self._sender = sender
        self._place: Place | None = None
        self.nbytes: int = nbytes
        self.type_id: int = type_id

    def __await__(self) -> Generator[Any, None, Self]:
        """Wait for the room; then `commit` or `rollback` has to follow."""
        return self._reserved().__await__()

    async def _reserved(self) -> Self:
        if self._view is None:
            try:
                self._place = place = Place(self._sender.line)
                self._view = await self._sender.reserve_at(place, self.nbytes)
            except BaseException:
                self.rollback()
                raise
        return self

    def array(
        self, dtype: Any, shape: tuple[int, ...] | None = None
    ) -> npt.NDArray[Any]:
        """Return the memory as a writable NumPy array.

        Raises:
            ValueError: the slot is not reserved.
        """
        view = self.view
        if shape is None:
            import numpy

            shape = (self.nbytes // numpy.dtype(dtype).itemsize,)
        return array_over(view, dtype, shape)

    def commit(self, nbytes: int | None = None) -> None:
        """Give the record to the consumer, or its first ``nbytes`` bytes.

        Raises:
            ValueError: the slot is not reserved, or has fewer bytes.
            StreamBroken, StreamClosed: as for `Ring.send`.
        """
        n = self.nbytes if nbytes is None else nbytes
        if self._view is None:
            raise ValueError(
                "nothing is reserved: await the slot first, and commit it once"
            )
        if not 0 <= n <= self.nbytes:
            raise ValueError(f"{n:,} bytes do not fit into a slot of {self.nbytes:,}")
        self._sender.commit(n, self.type_id)
        self._leave()

    def rollback(self) -> None:
        """Send nothing; may be called twice, and after `commit`."""
        if self._view is not None:
            self._sender.end.rollback()
        self._leave()

    release = rollback

    def _leave(self) -> None:
        view, self._view = self._view, None
        if view is not None:
            with contextlib.suppress(BufferError):  # an array uses it
                view.release()
        place, self._place = self._place, None
        if place is not None:
            place.close()

    async def __aenter__(self) -> Self:
        return await self

    async def __aexit__(self, *error: object) -> None:
        self.__exit__(*error)

    def __exit__(self, *error: object) -> None:
        if error[0] is None and self._view is not None:
            self.commit()
        else:
            self.rollback()

    def __del__(self) -> None:
        # (Other views of the room may exist: it is rolled back with the last of them.)
        if (place := getattr(self, "_place", None)) is not None:
            place.close()

    def __repr__(self) -> str:
        state = "not reserved" if self._view is None else f"{self.nbytes:,} bytes"
        return f"<Slot {state}>"
