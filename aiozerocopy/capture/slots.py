"""Slots that an X server fills: a pool over a file that the server maps too."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from anyio import ClosedResourceError

from aiozerocopy._core.memory import FileMemory, Memory
from aiozerocopy.pool import Frame, FramePool

if TYPE_CHECKING:
    from collections.abc import Sequence
    from io import FileIO

    from aiozerocopy.capture.x11 import Rectangle

HAS_FILES = hasattr(os, "memfd_create")


class Screenshot(Frame):
    """A picture of a screen, yours until it is released.

    ``pix_fmt`` is FFmpeg's name of its pixel format.  ``changed`` says where it differs
    from the picture before, in pixels of the picture; None if that is not known.
    ``number`` counts the times at which a picture was due: a gap means that there were
    times without a picture.  ``timestamp_ns`` is when the server had copied it, in
    nanoseconds since 1970.

    Pictures from ``frames(damage=True)`` are read-only, because only the rows that
    change are copied into their slots again.
    """

    __slots__ = ("changed", "number", "pix_fmt", "timestamp_ns")

    def __init__(
        self,
        view: memoryview,
        frame: Frame,
        pix_fmt: str,
        changed: tuple[Rectangle, ...] | None,
        number: int,
    ) -> None:
        super().__init__(view, frame.shape, frame.dtype)
        self.pix_fmt: str = pix_fmt
        self.changed: tuple[Rectangle, ...] | None = changed
        self.number: int = number
        self.timestamp_ns: int = time.time_ns()


class ScreenPool(FramePool):
    """A `FramePool` whose slots have numbers, and lie in a file if ``in_file``."""

    def __init__(
        self, shape: Sequence[int], dtype: str, slots: int, *, in_file: bool
    ) -> None:
        self._in_file = in_file
        super().__init__(shape, dtype, slots)

    def _new_memory(self) -> Memory:
        if not self._in_file:
            return Memory(self.frame_bytes, self.slots)
        memory = FileMemory(self.frame_bytes, self.slots)
        self.file: FileIO = memory.file  # the screen closes it
        self.stride: int = memory.stride  # bytes from a slot to the next in the file
        return memory

    def number_of(self, view: memoryview) -> int:
        """Return the number of a frame's slot; ClosedResourceError after `close`."""
        if self._memory is None:
            raise ClosedResourceError("the screen is closed")
        return self._memory.number_of(view)
