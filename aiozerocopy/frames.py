"""The colours of frames: RGB to YUV 4:2:0, which films are made of, and back.

Frames over a stream are in `framing`.

C does the work without the GIL, by AVX2 or NEON if the processor has them.  It reads
and writes only the given memory, which is yours again when a call returns.  Results are
within 1 of the exact formula.
"""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from aiozerocopy._core import extras
from aiozerocopy._core.borrows import or_undo_now
from aiozerocopy._core.colour import Rows, ThenRgb, described, rgb_to_yuv, yuv_to_rgb
from aiozerocopy._core.leases import Lease, view_of
from aiozerocopy._core.pins import pin, pin_writable

if TYPE_CHECKING:
    import numpy.typing as npt

    from aiozerocopy._core.leases import AnyBuffer

    Matrix = Literal["bt709", "bt601", "bt2020"]

# Red's and blue's part in luma: ITU-R BT.709, BT.601 and BT.2020.
_PARTS = {"bt709": (0.2126, 0.0722), "bt601": (0.299, 0.114)}
_PARTS |= {"bt2020": (0.2627, 0.0593)}

# The bytes of a pixel, and whether blue is the first of them.
PIXELS = {
    **{"rgb24": (3, False), "bgr24": (3, True)},
    **{"rgba": (4, False), "bgra": (4, True), "rgb0": (4, False), "bgr0": (4, True)},
}
PLANES = ("yuv420p", "nv12")


@dataclass(frozen=True)
class Colour:
    """The meaning of the numbers of a YUV picture.

    ``matrix`` is "bt709", "bt601" or "bt2020".  Limited range has black at 16 and white
    at 235, ``full_range`` has them at 0 and 255.  ``chroma`` says where the samples of
    U and V lie: on the "left" one of each two columns (the default of H.264), or in the
    "center" of four pixels (as in JPEG).

    ``primaries`` and ``transfer`` change no number: they say, in FFmpeg's words, which
    red, green and blue a film has.  Screens show "bt709" without a conversion; "bt2020"
    with "smpte2084" or "arib-std-b67" is HDR.
    """

    matrix: Matrix = "bt709"
    full_range: bool = False
    chroma: Literal["left", "center"] = "left"
    primaries: str = "bt709"
    transfer: str = "bt709"

    def __post_init__(self) -> None:
        if self.matrix not in _PARTS:
            known = ", ".join(_PARTS)
            raise ValueError(f"unknown matrix {self.matrix!r}: one of {known}")
        if self.chroma not in ("left", "center"):
            raise ValueError(f"chroma must be 'left' or 'center', not {self.chroma!r}")


class Conversion:
    """Converts pictures of one size between an RGB format and a YUV format."""

    def __init__(
        self, rgb: str, yuv: str, size: tuple[int, int], colour: Colour | None = None
    ) -> None:
        """Compute the coefficients.

        Raises:
            ValueError: an unknown format, or a side that is 0 or above 32768.
        """
        if rgb not in PIXELS:
            known = ", ".join(PIXELS)
            raise ValueError(f"unknown RGB format {rgb!r}: one of {known}")
        if yuv not in PLANES:
            raise ValueError(f"unknown YUV format {yuv!r}: one of {', '.join(PLANES)}")
        width, height = map(operator.index, size)
        if not (0 < width <= 1 << 15 and 0 < height <= 1 << 15):
            raise ValueError(f"sides must be from 1 to 32768, not {width}x{height}")
        self.size: tuple[int, int] = width, height
        self.rgb: str = rgb
        self.yuv: str = yuv
        self._pixel_bytes, _ = PIXELS[rgb]
        self.rgb_bytes: int = width * height * self._pixel_bytes
        self.yuv_bytes: int = width * height + 2 * (-(-width // 2) * -(-height // 2))
        self._how = _coefficients(rgb, yuv, self.size, colour or Colour())

    @property
    def rgb_shape(self) -> tuple[int, int, int]:
        """The shape of an RGB array: height, width and channels."""
        return *self.size[::-1], self._pixel_bytes

    @property
    def yuv_shape(self) -> tuple[int, ...]:
        """The shape of a YUV array: rows of the picture's width if its bytes fill such
        rows, else one row."""
        width = self.size[0]
        rows, rest = divmod(self.yuv_bytes, width)
        return (self.yuv_bytes,) if rest else (rows, width)

    def to_yuv(self, rgb: AnyBuffer, out: AnyBuffer, *, flip: bool = False) -> None:
        """Convert a picture into the planes of ``out``, without the GIL.

        With ``flip`` the first row of ``rgb`` is the lowest, as in OpenGL.

        Raises:
            ValueError: a buffer has the wrong size.
            TypeError, BufferError: not a buffer, or not contiguous enough.
        """
        rows = Rows()

        def convert() -> None:
            rows.borrow(rgb, self.rgb_shape, flip=flip)
            with pin_writable(out) as planes:
                self._check(rows.nbytes, self.rgb_bytes, self.rgb)
                self._check(len(planes), self.yuv_bytes, self.yuv)
                rgb_to_yuv(self._how, rows, planes)
            rows.release()

        or_undo_now(convert, rows.release)

    def to_rgb(self, yuv: AnyBuffer, out: AnyBuffer) -> None:
        """Convert planes into the pixels of ``out``, without the GIL.  A fourth byte of
        a pixel becomes 255.

        Raises: as `to_yuv`.
        """
        with pin(yuv) as planes, pin_writable(out) as pixels:
            self._check(len(planes), self.yuv_bytes, self.yuv)
            self._check(len(pixels), self.rgb_bytes, self.rgb)
            yuv_to_rgb(self._how, planes, pixels)

    def then_rgb(self, yuv: AnyBuffer, out: AnyBuffer) -> ThenRgb:
        """Return `to_rgb` as an action that C takes at the end of a receive.

        Raises: as `to_yuv`.
        """
        planes, pixels = pin_writable(yuv), pin_writable(out)
        self._check(len(planes), self.yuv_bytes, self.yuv)
        self._check(len(pixels), self.rgb_bytes, self.rgb)
        return ThenRgb(self._how, planes, pixels)

    def _check(self, given: int, needed: int, pix_fmt: str) -> None:
        if given != needed:
            width, height = self.size
            raise ValueError(
                f"a picture of {width}x{height} {pix_fmt} has {needed:,} bytes, "
                f"not {given:,}"
            )


def _coefficients(rgb: str, yuv: str, size: tuple[int, int], colour: Colour) -> Any:
    """Return the conversion as C knows it: see csrc/colour/yuv.h."""
    red, blue = _PARTS[colour.matrix]
    green = 1 - red - blue
    black = 0 if colour.full_range else 16
    luma, chroma = (1.0, 1.0) if colour.full_range else (219 / 255, 224 / 255)
    of_u, of_v = chroma / (2 * (1 - blue)), chroma / (2 * (1 - red))
    pixel_bytes, blue_first = PIXELS[rgb]

    def row(*of_rgb: float) -> list[int]:
        whole = [round(part * (1 << 15)) for part in of_rgb]
        return whole[::-1] if blue_first else whole

    fields = {
        "width": size[0],
        "height": size[1],
        "pixel_bytes": pixel_bytes,
        "blue_first": blue_first,
        "interleaved": yuv == "nv12",
        "left": colour.chroma == "left",
        "black": black,
        "to_y": row(red * luma, green * luma, blue * luma),
        "to_u": row(-red * of_u, -green * of_u, (1 - blue) * of_u),
        "to_v": row((1 - red) * of_v, -green * of_v, -blue * of_v),
        "gain": round((1 << 13) / luma),
        "from_black": round(-black / luma * 32) + 16,
        "v_to_red": round((1 << 12) / of_v),
        "u_to_green": round(-(1 << 12) / of_u * blue / green),
        "v_to_green": round(-(1 << 12) / of_v * red / green),
        "u_to_blue": round((1 << 12) / of_u),
    }
    return described(fields)


# ---- for one picture ---------------------------------------------------------------


_conversion = functools.lru_cache(maxsize=16)(Conversion)


def to_yuv420p(
    rgb: AnyBuffer,
    out: AnyBuffer | None = None,
    *,
    pix_fmt: str | None = None,
    size: tuple[int, int] | None = None,
    colour: Colour | None = None,
) -> Any:
    """Return the picture as planes: Y, then U and V at half the width and height.

    ``rgb`` is an array of height, width and 3 or 4 channels, whose rows may have gaps
    between them or be upside down, or a buffer with its ``size`` (width, height).
    ``pix_fmt`` is by default "rgb24" or "rgba"; it may also be "bgr24", "bgra", "rgb0"
    or "bgr0".  The result is ``out``, contiguous memory of the right size, or without
    it a new NumPy array.

    Raises:
        ValueError: an impossible size, an unknown format, or ``out`` has another size.
        TypeError, BufferError: not a buffer, or not contiguous enough.
    """
    return _to_planes(rgb, out, "yuv420p", pix_fmt, size, colour)


def to_nv12(
    rgb: AnyBuffer,
    out: AnyBuffer | None = None,
    *,
    pix_fmt: str | None = None,
    size: tuple[int, int] | None = None,
    colour: Colour | None = None,
) -> Any:
    """Return the picture as `to_yuv420p` does, but U and V alternate in one plane."""
    return _to_planes(rgb, out, "nv12", pix_fmt, size, colour)


def _to_planes(
    rgb: AnyBuffer,
    out: AnyBuffer | None,
    yuv: str,
    pix_fmt: str | None,
    size: tuple[int, int] | None,
    colour: Colour | None,
) -> Any:
    shape = (rgb if isinstance(rgb, Lease) else view_of(rgb)).shape or ()
    if size is None:
        if len(shape) != 3:
            raise ValueError(
                "size=(width, height) is needed, or an array of height, width and "
                f"channels, not of the shape {shape}"
            )
        size = shape[1], shape[0]
    if pix_fmt is None:
        channels = shape[2] if len(shape) == 3 else 3
        if channels not in (3, 4):
            raise ValueError(f"pixels of {channels} channels: RGB has 3, RGBA has 4")
        pix_fmt = "rgb24" if channels == 3 else "rgba"
    conversion = _conversion(pix_fmt, yuv, tuple(size), colour)
    if out is None:
        out = _new_array(conversion.yuv_shape)
    conversion.to_yuv(rgb, out)
    return out


def to_rgb(
    yuv: AnyBuffer,
    size: tuple[int, int],
    out: AnyBuffer | None = None,
    *,
    pix_fmt: str = "rgb24",
    source: str = "yuv420p",
    colour: Colour | None = None,
) -> Any:
    """Return planes as pixels: ``pix_fmt`` is a format of `to_yuv420p`.

    ``yuv`` is a contiguous buffer of a picture of that ``size`` (width, height), and
    ``source`` its format: "yuv420p" or "nv12".  ``out`` is as in `to_yuv420p`.

    Raises: as `to_yuv420p`.
    """
    conversion = _conversion(pix_fmt, source, tuple(size), colour)
    if out is None:
        out = _new_array(conversion.rgb_shape)
    conversion.to_rgb(yuv, out)
    return out


def _new_array(shape: tuple[int, ...]) -> npt.NDArray[Any]:
    with extras.optional("a new array (none was given as out=)", "numpy"):
        import numpy

    return numpy.empty(shape, numpy.uint8)
