"""How a frame of FFmpeg's pixel formats, and a sample of its audio, lie in memory."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.leases import Lease, look_at, view_of
from aiozerocopy._core.pins import nbytes
from aiozerocopy.ffmpeg.arguments import AT_ONCE
from aiozerocopy.ffmpeg.binary import ask

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozerocopy._core.leases import AnyBuffer

_ITEMSIZES = {"uint8": 1, "uint16": 2, "<u2": 2, ">u2": 2, "float32": 4}
_ITEMSIZES |= {"<f4": 4, ">f4": 4}


@dataclass(frozen=True)
class Layout:
    """How one frame lies in memory: the shape and dtype of its array.

    ``packed``: the rows consist of whole pixels, so the first axis is the height.
    ``opaque``: only FFmpeg knows what the bytes mean, and any dtype is accepted.
    ``planes``: the items of each plane of a planar format.
    """

    pix_fmt: str
    size: tuple[int, int]  # width and height
    shape: tuple[int, ...]
    dtype: str = "uint8"
    packed: bool = False
    opaque: bool = False
    planes: tuple[int, ...] = ()

    @property
    def itemsize(self) -> int:
        return _ITEMSIZES[self.dtype]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    def check(self, planes: Sequence[AnyBuffer]) -> bool:
        """Refuse buffers that cannot be one frame; return whether all are contiguous.

        Raises:
            ValueError: the size, dtype or shape is not that of a frame.
            TypeError, BufferError: not a buffer, or one in a device's memory.
        """
        contiguous = True
        try:
            given = sum(map(nbytes, planes))
        except BufferError:
            contiguous = False
            given = sum(view_of(plane).nbytes for plane in planes)
        if given != self.nbytes:
            theirs = _look(planes[0]) if len(planes) == 1 else ""
            ours = f" ({self.shape}, {self.dtype})" if theirs else ""
            raise ValueError(
                f"{self} has {self.nbytes:,} bytes{ours}, not {given:,}{theirs}"
            )
        for plane in planes:
            if not self.opaque and type(plane) not in (bytes, bytearray):
                self._check_array(plane, is_whole=len(planes) == 1)
        if self.planes and len(planes) > 1:
            self._check_planes([view_of(plane).nbytes for plane in planes])
        return contiguous

    def _check_planes(self, given: list[int]) -> None:
        """Refuse pieces that do not end where a plane ends."""
        sizes = [items * self.itemsize for items in self.planes]
        if not {*accumulate(given)} <= {*accumulate(sizes)}:
            ours, theirs = (
                ", ".join(f"{n:,}" for n in each) for each in (sizes, given)
            )
            raise ValueError(f"{self} has planes of {ours} bytes, not of {theirs}")

    def _check_array(self, plane: Any, *, is_whole: bool) -> None:
        kind, order, itemsize, shape = _described(plane)
        # One integer may stand for a whole pixel, or for each of its channels.
        pixel = self.itemsize * math.prod(self.shape[2:]) if self.packed else 1
        fits = itemsize in (1, self.itemsize, pixel) and kind != "b"
        if kind == "f":
            fits = itemsize == self.itemsize and self.dtype[-2:] in ("32", "f4")
        if kind and min(itemsize, self.itemsize) > 1:
            fits = fits and order == _ORDERS.get(self.dtype[0], sys.byteorder)
        if not fits:
            hint = ": multiply it by np.uint8(255)" * (
                kind == "b" and self.itemsize == 1
            )
            raise ValueError(
                f"{self} is of dtype {self.dtype}, not of {_dtype_of(plane)}{hint}"
            )
        if self.packed and len(shape) > 1:
            if shape[0] != self.shape[0]:
                raise ValueError(f"{self} has the shape {self.shape}, not {shape}")
            if not is_whole:
                raise ValueError(f"{self} has no planes: send one array {self.shape}")

    def __str__(self) -> str:
        return f"a frame of {self.size[0]}x{self.size[1]} {self.pix_fmt}"


def _look(array: Any) -> str:
    """Return the shape and dtype of an array, for an error; "" for plain bytes."""
    shape, dtype = (getattr(array, name, None) for name in ("shape", "dtype"))
    return "" if dtype is None else f" ({shape}, {dtype})"


# How memoryview and NumPy name the kinds of numbers, and byte orders.
_KINDS = {"?": "b"} | dict.fromkeys("efdg", "f")
_KINDS |= dict.fromkeys("bhilqn", "i") | dict.fromkeys("BHILQN", "u")
_ORDERS = {"<": "little", ">": "big", "!": "big"}


def _described(array: Any) -> tuple[str, str, int, Sequence[int]]:
    """Return the kind of an array's items (b, i, u, f, or "" for others), their byte
    order and size, and the array's shape."""
    if isinstance(array, Lease):
        shape = getattr(array, "shape", ())
        dtype = getattr(array, "dtype", "uint8")
        name = dtype.lstrip("<>|")
        kind = name[0] if name[0] in "biuf" else ""
        itemsize = array.view.nbytes // math.prod(shape)
    else:
        dtype, itemsize, shape = look_at(array)
        kind = _KINDS.get(dtype[-1:], "")
    return kind, _ORDERS.get(dtype[:1], sys.byteorder), itemsize, shape


def _dtype_of(array: Any) -> str:
    """Return the dtype of an array, for an error."""
    return str(getattr(array, "dtype", "")) or repr(view_of(array).format)


# ---- pixel formats ---------------------------------------------------------------

# The channels of each format, by the bits of a channel.
_CHANNELS = {
    "8": "gray=1 gray8=1 ya8=2 rgb24=3 bgr24=3 rgba=4 bgra=4 argb=4 abgr=4 rgb0=4 "
    "bgr0=4 0rgb=4 0bgr=4",
    "16": "gray9=1 gray10=1 gray12=1 gray14=1 gray16=1 ya16=2 rgb48=3 bgr48=3 "
    "rgba64=4 bgra64=4",
    "f32": "grayf32=1 rgbf32=3 rgbaf32=4",
}
_PACKED = {
    name: (depth, int(channels))
    for depth, names in _CHANNELS.items()
    for name, channels in (entry.split("=") for entry in names.split())
}

# How often the chroma planes are halved, in width and in height.
_HALVED = {"420": (1, 1), "422": (1, 0), "440": (0, 1), "444": (0, 0), "411": (2, 0)}
_YUV = re.compile(r"yuv(?P<alpha>a?)j?(?P<chroma>4\d\d)p(?P<depth>\d*)")
_NV = {"nv12": "420", "nv21": "420", "nv16": "422", "nv24": "444", "nv42": "444"}
_P01X = re.compile(r"p(?P<chroma>[024])(?:10|12|16)")
_GBR = re.compile(r"gbr(?P<alpha>a?)p(?P<depth>9|1\d|f32|)")


def layout_of(pix_fmt: str, size: tuple[int, int]) -> Layout | None:
    """Return how a frame lies in memory; None for a format that only FFmpeg knows."""
    width, height = size
    shape: tuple[int, ...]
    planes: tuple[int, ...] = ()
    name, order = _without_order(pix_fmt)
    if name in _PACKED:
        depth, channels = _PACKED[name]
        shape = (height, width) if channels == 1 else (height, width, channels)
    elif match := _GBR.fullmatch(name):
        depth = match["depth"]
        shape = (4 if match["alpha"] else 3, height, width)
        planes = (width * height,) * shape[0]
    elif chroma := _chroma_of(name):
        subsampling, depth, alpha = chroma
        wide, high = _HALVED[subsampling]
        plane = -(-width >> wide) * -(-height >> high)
        planes = (width * height, plane, plane, *[width * height] * alpha)
        if not name.startswith("yuv"):  # their chroma is one plane
            planes = (width * height, 2 * plane)
        items = sum(planes)
        # In rows if the items fill them: 4:2:0 has half as many again as the picture.
        rows, rest = divmod(items, width)
        shape = (items,) if rest else (rows, width)
    else:
        return None
    dtype, packed = _dtype(depth, order), name in _PACKED
    return Layout(pix_fmt, size, shape, dtype, packed, planes=planes)


def _chroma_of(name: str) -> tuple[str, str, bool] | None:
    """Return subsampling, depth, and "has alpha?"; None without chroma planes."""
    if name in _NV:
        return _NV[name], "", False
    if match := _P01X.fullmatch(name):
        return "4" + {"0": "20", "2": "22", "4": "44"}[match["chroma"]], "16", False
    match = _YUV.fullmatch(name)
    if match is None or match["chroma"] not in _HALVED:
        return None
    return match["chroma"], match["depth"], bool(match["alpha"])


def _without_order(pix_fmt: str) -> tuple[str, str]:
    """Split a name from its byte order, which by default is the machine's."""
    for suffix, order in (("le", "little"), ("be", "big")):
        if pix_fmt.endswith(suffix):
            return pix_fmt[:-2], order
    return pix_fmt, sys.byteorder


def _dtype(depth: str, order: str) -> str:
    if depth in ("", "8"):
        return "uint8"
    ours, theirs = ("float32", "f4") if depth == "f32" else ("uint16", "u2")
    return (
        ours if order == sys.byteorder else f"{'>' if order == 'big' else '<'}{theirs}"
    )


# ---- the formats that only FFmpeg knows ------------------------------------------

# The bytes of a frame, by the FFmpeg that was asked, the format, and the size.
_asked: dict[tuple[str, str, tuple[int, int]], int] = {}


async def frame_layout(pix_fmt: str, size: tuple[int, int], ffmpeg: str) -> Layout:
    """Return how a frame lies in memory; ask FFmpeg about the rarer formats.

    Raises: ValueError: FFmpeg does not know the format, or takes no such frames.
    """
    known = layout_of(pix_fmt, size)
    if known is not None:
        return known
    question = ffmpeg, pix_fmt, size
    if question not in _asked:
        _asked[question] = await _frame_bytes(*question)
    return Layout(pix_fmt, size, (_asked[question],), opaque=True)


# A line of the framecrc format: stream, dts, pts, duration, size, checksum.
_PACKET = re.compile(r"^0,(?: *-?\d+,){3} *(?P<nbytes>\d+),", re.MULTILINE)


async def _frame_bytes(ffmpeg: str, pix_fmt: str, size: tuple[int, int]) -> int:
    """Ask FFmpeg how many bytes it reads for one frame."""
    width, height = size
    raw = ["-f", "rawvideo", "-pix_fmt", pix_fmt, "-video_size", f"{width}x{height}"]
    zeros = [*AT_ONCE, *raw, "-i", "/dev/zero", "-frames:v", "1"]
    copied = [*zeros, "-c", "copy", "-f", "framecrc", "pipe:1"]
    _, told, error = await ask(ffmpeg, "-loglevel", "error", *copied, tail=True)
    if packet := _PACKET.search(told):
        return int(packet["nbytes"])
    _, formats, _ = await ask(ffmpeg, "-loglevel", "error", "-pix_fmts")
    listed = re.search(rf"^(\S+) {re.escape(pix_fmt)} ", formats, re.MULTILINE)
    if listed is None:
        raise ValueError(f"FFmpeg has no pixel format {pix_fmt!r}")
    if "H" in listed[1]:
        raise ValueError(
            f"{pix_fmt!r} is a hardware format, whose frames are not in memory: "
            "send them as 'nv12', for example, and let FFmpeg upload them"
        )
    raise ValueError(f"FFmpeg takes no frames of {width}x{height} {pix_fmt}: {error}")


# ---- audio -----------------------------------------------------------------------

_SAMPLE = re.compile(r"[suf](8|16|24|32|64)(le|be)?")


@dataclass(frozen=True)
class Audio:
    """The samples that a program sends: their format, rate and channels.

    ``format`` is a name of FFmpeg's, such as "s16le"; the channels are interleaved.
    """

    format: str = "s16le"
    rate: int = 48_000
    channels: int = 2

    def __post_init__(self) -> None:
        if not _SAMPLE.fullmatch(self.format):
            raise ValueError(f"unknown sample format {self.format!r}: try 's16le'")
        if self.rate < 1 or self.channels < 1:
            raise ValueError(f"rate and channels must be at least 1: {self}")

    @property
    def sample_bytes(self) -> int:
        """The size of one sample of all channels."""
        match = _SAMPLE.fullmatch(self.format)
        assert match
        return int(match[1]) // 8 * self.channels

    def check(self, samples: AnyBuffer) -> None:
        """Refuse buffers that are not whole samples.

        Raises:
            ValueError: a part of a sample, or another dtype or shape than the format's.
            TypeError, BufferError: not a buffer, or not a C-contiguous one.
        """
        given = nbytes(samples)
        if given % self.sample_bytes:
            raise ValueError(
                f"{given:,} bytes are not a whole number of samples: one of "
                f"{self.channels} x {self.format} has {self.sample_bytes} bytes"
            )
        if type(samples) in (bytes, bytearray):
            return
        kind, order, itemsize, shape = _described(samples)
        width = self.sample_bytes // self.channels
        letter = self.format[0]  # f, u, or s for signed
        fits = kind in ("", {"s": "i"}.get(letter, letter)) and itemsize == width
        if kind and width > 1:
            fits = fits and order == _without_order(self.format)[1]
        if not fits and itemsize == 1 and kind in ("", "u"):
            return  # plain bytes
        if not fits:
            theirs = _dtype_of(samples)
            raise ValueError(f"samples of {self.format} are not of dtype {theirs}")
        # (In one row, mono samples have the same bytes as in one column.)
        in_one_row = (shape[:1], self.channels) == ((1,), 1)
        if len(shape) == 2 and shape[1] != self.channels and not in_one_row:
            hint = ": transpose them, by np.ascontiguousarray(samples.T)"
            raise ValueError(
                f"samples have the shape (n, {self.channels}), not {shape}"
                + hint * (shape[0] == self.channels)
            )
