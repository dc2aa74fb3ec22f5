"""What a program gives to TurboPipe's `pipe`: its own memory, or OpenGL's."""

from __future__ import annotations

import sys
from typing import Any

from aiozerocopy._core.pins import nbytes, overlap


class Source:
    """What the program gave: memory of its own, or a buffer that OpenGL has (gl)."""

    def __init__(self, data: Any) -> None:
        self.data = getattr(data, "mglo", data)  # of a moderngl.Buffer
        owner = _owner(self.data)
        self.gl = owner if _is_opengl(owner) else None

    def check(self) -> None:
        """Raise unless it is a buffer; one of OpenGL's is not mapped for that."""
        if self.gl is None:
            nbytes(self.data)

    def touches(self, other: Source) -> bool:
        """Do the two share a byte?"""
        if self.gl is not None or other.gl is not None:
            return self.gl is other.gl
        try:
            return overlap(self.data, other.data)
        except (TypeError, ValueError, BufferError):
            return False  # a memoryview that the program has released since


def _owner(data: Any) -> Any:
    """The object whose memory memoryviews and NumPy arrays show."""
    numpy = sys.modules.get("numpy")  # without it, nobody has an array
    while True:
        if isinstance(data, memoryview):
            data = data.obj
        elif numpy is not None and isinstance(data, numpy.ndarray):
            if data.base is None:
                return data
            data = data.base
        else:
            return data


def _is_opengl(owner: object) -> bool:
    kind = type(owner)
    return kind.__name__ == "Buffer" and kind.__module__ in ("mgl", "moderngl.mgl")
