"""RGB and YUV: calls of csrc/colour, and the memory of pictures for it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.binding import check, ffi, lib
from aiozerocopy._core.leases import view_of
from aiozerocopy._core.pins import pin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiozerocopy._core.leases import AnyBuffer


def described(fields: Mapping[str, Any]) -> Any:
    """Return a conversion as C knows it: see csrc/colour/yuv.h."""
    return ffi.new("azc_yuv *", fields)


class Rows:
    """A picture's memory, borrowed: where it starts, and how far its rows are apart."""

    start: Any
    stride: int
    nbytes: int

    def __init__(self) -> None:
        self._borrowed: list[Any] = []

    def borrow(
        self, picture: AnyBuffer, shape: tuple[int, int, int], *, flip: bool = False
    ) -> None:
        """Borrow a picture, whose shape is height, width and channels of a byte.

        With ``flip`` the picture starts with its last row.

        Raises:
            TypeError, BufferError, ValueError: as `pin`, except for an array of this
                shape with gaps between its rows, or with its rows upside down.
        """
        borrowed = self._borrowed
        borrowed.append(view_of(picture))
        apart = _apart(borrowed[0], shape)
        if apart is None:
            borrowed.append(pin(borrowed[0]))
            self.start = borrowed[1]
            self.nbytes, self.stride = len(self.start), shape[1] * shape[2]
        else:
            self.start, self.stride = apart
            self.nbytes = math.prod(shape)
        if flip:
            self.start += (shape[0] - 1) * self.stride
            self.stride = -self.stride

    def release(self) -> None:
        """Give the memory back; may be called again after an interruption."""
        for at in reversed(range(len(self._borrowed))):
            self._borrowed[at].__exit__(None, None, None)


def _apart(memory: memoryview, shape: tuple[int, ...]) -> tuple[Any, int] | None:
    """Return where the first row starts, and the stride; None: `pin` the memory."""
    strides = memory.strides
    if memory.shape != shape or not strides or memory.itemsize != 1:
        return None
    if strides[1:] != (shape[2], 1) or strides[0] == shape[1] * shape[2]:
        return None
    import numpy

    address, _ = numpy.asarray(memory).__array_interface__["data"]
    return ffi.cast("char *", address), strides[0]


class ThenRgb:
    """A picture that is received, and then converted in C: see azc_recv_then."""

    def __init__(self, how: Any, planes: Any, pixels: Any) -> None:
        """``planes`` and ``pixels`` are pins of the right size."""
        self.function: Any = ffi.addressof(lib, "azc_yuv_then_rgb")
        self.argument: Any = ffi.new("azc_yuv_job *", (how[0], planes, pixels))
        # C uses these until the receive is over.
        self.borrowed: list[Any] = [planes, pixels, self.argument]

    def __call__(self) -> None:
        lib.azc_yuv_then_rgb(self.argument)


def rgb_to_yuv(how: Any, rows: Rows, planes: Any) -> None:
    check(lib.azc_rgb_to_yuv(how, rows.start, rows.stride, planes))


def yuv_to_rgb(how: Any, planes: Any, pixels: Any) -> None:
    check(lib.azc_yuv_to_rgb(how, planes, pixels, how.width * how.pixel_bytes))
