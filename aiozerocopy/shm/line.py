"""Line: who sends next.

A record is made at one place of the ring, so one task at a time makes one; the others
wait in the order of their calls.  A place leaves the line with whoever has it: by
`leave`, or when it is collected.
"""

from __future__ import annotations

import collections
import contextlib
import weakref
from typing import TYPE_CHECKING

from aiozerocopy._core.change import RemoteChange

if TYPE_CHECKING:
    from typing_extensions import Self


class Line:
    """The places, the first of which may send."""

    def __init__(self) -> None:
        self._places: collections.deque[weakref.ref[Place]] = collections.deque()

    def is_empty(self) -> bool:
        return self._first() is None

    def _first(self) -> Place | None:
        while self._places:
            place = self._places[0]()
            if place is not None:
                return place
            with contextlib.suppress(IndexError):
                self._places.popleft()
        return None

    def wake(self) -> None:
        """Let the first look again.  Any thread or finalizer may call it."""
        first = self._first()
        if first is not None:
            first.change.happen()


class Place:
    """A place in the line, the last when it is made."""

    def __init__(self, line: Line) -> None:
        self.change: RemoteChange = RemoteChange()
        self._line = line
        self._entry = weakref.ref(self)
        line._places.append(self._entry)

    async def wait(self) -> None:
        """Return when it is the first; without a checkpoint if it is so already."""
        await self.change.wait(self.is_first)

    def is_first(self) -> bool:
        return self._line._first() is self

    def leave(self) -> None:
        with contextlib.suppress(ValueError):
            self._line._places.remove(self._entry)
        self._line.wake()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def __del__(self) -> None:
        if hasattr(self, "_entry"):
            self.leave()
