"""The header before each frame of `framing`: docs/pages/wire-format.md in Python.

A header is used only after its checksum and its limits were checked.
"""

from __future__ import annotations

import math
import struct
import time
import zlib
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

from aiozerocopy._core.leases import look_at
from aiozerocopy._core.pins import nbytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from aiozerocopy._core.leases import AnyBuffer, Lease

MAGIC = b"AZCF"
VERSION = 1
HEADER_SIZE = 128
KEY = 1  # the only flag: the frame can be decoded without those before it
MAX_DIMENSIONS = 8
MAX_METADATA = 64 << 10
MAX_BYTES = 256 << 20  # of a payload, unless a receiver says otherwise

# magic, version, ndim, flags, sequence, timestamp, payload and metadata length, dtype,
# pixel format, shape, reserved.  Then the checksum of these follows.
_FIELDS = struct.Struct(f"<4sBBHQqQI4s16s{MAX_DIMENSIONS}QI")
_CHECKSUM = struct.Struct("<I")
_SIZES = {"b": (1,), "u": (1, 2, 4, 8), "i": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}


# Every dtype that can travel, as NumPy writes it, and its item's size.
DTYPES: dict[str, int] = {
    f"{order}{kind}{size}": size
    for kind, sizes in _SIZES.items()
    for size in sizes
    for order in ("|" if size == 1 else "<>")
}
# The names that pools use.  They have no byte order: it is little-endian.
_NAMES = {
    f"{name}{size * 8}": f"{'|' if size == 1 else '<'}{kind}{size}"
    for kind, name in (("u", "uint"), ("i", "int"), ("f", "float"), ("c", "complex"))
    for size in _SIZES[kind]
} | {"bool": "|b1"}
_KINDS = dict.fromkeys("bhilqn", "i") | dict.fromkeys("BHILQNc", "u")
_KINDS |= dict.fromkeys("efd", "f") | {"?": "b", "Zf": "c", "Zd": "c"}


# ---- errors ---------------------------------------------------------------------


class FrameError(Exception):
    """No acceptable frame has come, and where the next one begins is unknown."""


class WrongMagic(FrameError):
    """The bytes do not begin as a frame does: the peer speaks another protocol."""


class UnknownVersion(FrameError):
    """A frame of a version that this receiver does not know."""


class CorruptHeader(FrameError):
    """The checksum is wrong, or the fields contradict each other."""


class FrameTooLarge(FrameError):
    """The header is intact, but announces more bytes than the receiver's limit."""


class FrameTooSlow(FrameError):
    """The rest of a frame did not come within the receiver's ``frame_timeout``."""


class TruncatedFrame(FrameError):
    """The stream ended inside a frame, after ``received`` of ``total`` bytes."""

    def __init__(self, received: int, total: int) -> None:
        super().__init__(
            f"the stream ended after {received:,} of the frame's {total:,} bytes"
        )
        self.received = received
        self.total = total


# ---- the header -----------------------------------------------------------------


@dataclass(frozen=True)
class FrameHeader:
    """The contents of a frame's header."""

    sequence: int
    timestamp_ns: int
    dtype: str  # as NumPy writes it: "|u1", "<f4"
    shape: tuple[int, ...]
    pixel_format: str
    key: bool
    metadata_length: int
    payload_length: int

    @classmethod
    def of(
        cls,
        frame: AnyBuffer | Lease,
        sequence: int,
        timestamp_ns: int | None,
        pixel_format: str | None,
        key: bool,
        metadata: bytes,
    ) -> FrameHeader:
        """Return the header of a frame that is about to be sent.

        Raises:
            TypeError, ValueError, BufferError: the frame cannot be sent.
        """
        dtype, shape = describe(frame)
        return cls(
            sequence,
            time.time_ns() if timestamp_ns is None else timestamp_ns,
            dtype,
            shape,
            pixel_format or "",
            key,
            len(metadata),
            nbytes(frame),
        )

    def pack(self) -> bytes:
        """Return the 128 bytes.

        Raises:
            ValueError: a field does not fit.
        """
        pixel_format = self.pixel_format
        is_short = len(pixel_format) <= 16
        if not (is_short and pixel_format.isascii() and "\0" not in pixel_format):
            raise ValueError(
                "pixel_format must be at most 16 ASCII characters, not "
                f"{pixel_format!r}"
            )
        if self.metadata_length > MAX_METADATA:
            raise ValueError(_too_much_metadata(self.metadata_length))
        dimensions = len(self.shape)
        try:
            fields = _FIELDS.pack(
                MAGIC,
                VERSION,
                dimensions,
                KEY if self.key else 0,
                self.sequence,
                self.timestamp_ns,
                self.payload_length,
                self.metadata_length,
                self.dtype.encode(),
                pixel_format.encode(),
                *self.shape,
                *(0,) * (MAX_DIMENSIONS - dimensions),
                0,
            )
        except struct.error as error:
            raise ValueError(f"a field does not fit the header: {error}") from None
        return fields + _CHECKSUM.pack(zlib.crc32(fields))

    @classmethod
    def unpack(cls, data: Buffer, max_bytes: int = MAX_BYTES) -> FrameHeader:
        """Read the 128 bytes, and check them.

        Raises:
            WrongMagic, UnknownVersion, CorruptHeader, FrameTooLarge: see these.
            TruncatedFrame: there are fewer bytes.
        """
        memory = memoryview(data).cast("B")
        if len(memory) < HEADER_SIZE:
            raise TruncatedFrame(len(memory), HEADER_SIZE)
        fields = memory[: _FIELDS.size]
        magic, version, ndim, flags, sequence, time_ns, length, extra, *rest = (
            _FIELDS.unpack(fields)
        )
        if magic != MAGIC:
            raise WrongMagic(
                f"not a frame: it begins with {magic!r}, not with {MAGIC!r}"
            )
        if version != VERSION:
            raise UnknownVersion(
                f"unknown version {version}: this side knows only {VERSION}"
            )
        (checksum,) = _CHECKSUM.unpack_from(memory, _FIELDS.size)
        if checksum != zlib.crc32(fields):
            raise CorruptHeader("the header's checksum is wrong")
        dtype, pixel_format, *sides = rest[: 2 + MAX_DIMENSIONS]
        header = cls(
            *(sequence, time_ns, _text(dtype), _shape(ndim, sides)),
            *(_text(pixel_format), bool(flags & KEY), extra, length),
        )
        header._check(max_bytes)
        return header

    def _check(self, max_bytes: int) -> None:
        itemsize = DTYPES.get(self.dtype)
        if itemsize is None:
            raise CorruptHeader(f"unknown dtype {self.dtype!r}")
        most = math.prod(side or 1 for side in self.shape) * itemsize
        if most >> 63 or math.prod(self.shape) * itemsize != self.payload_length:
            raise CorruptHeader(
                f"{self.payload_length:,} bytes do not fit dtype {self.dtype} and "
                f"shape {self.shape}"
            )
        if self.payload_length > max_bytes:
            raise FrameTooLarge(
                f"a frame of {self.payload_length:,} bytes exceeds the limit of "
                f"{max_bytes:,}"
            )
        if self.metadata_length > MAX_METADATA:
            raise FrameTooLarge(_too_much_metadata(self.metadata_length))


def _of_header(name: str) -> Any:
    return property(attrgetter(f"header.{name}"))


class Described:
    """A frame with a header; its properties are the header's fields."""

    __slots__ = ()
    header: FrameHeader
    sequence: int = _of_header("sequence")
    timestamp_ns: int = _of_header("timestamp_ns")
    shape: tuple[int, ...] = _of_header("shape")
    dtype: str = _of_header("dtype")
    pixel_format: str = _of_header("pixel_format")
    key: bool = _of_header("key")
    nbytes: int = _of_header("payload_length")


def _too_much_metadata(nbytes: int) -> str:
    return f"at most {MAX_METADATA:,} bytes of metadata, not {nbytes:,}"


def _text(field: bytes) -> str:
    text, _, rest = field.partition(b"\0")
    if not text.isascii() or rest.strip(b"\0"):
        raise CorruptHeader(f"not text in ASCII: {field!r}")
    return text.decode()


def _shape(ndim: int, sides: Sequence[int]) -> tuple[int, ...]:
    if ndim > MAX_DIMENSIONS or any(sides[ndim:]):
        raise CorruptHeader(f"{ndim} dimensions, with sides {tuple(sides)}")
    return tuple(sides[:ndim])


def bytes_of_metadata(metadata: Buffer) -> bytes:
    """Raises: TypeError: it is no buffer."""
    try:
        return bytes(memoryview(metadata))
    except TypeError:
        kind = type(metadata).__name__
        raise TypeError(f"metadata= must be bytes-like, not {kind!r}") from None


def describe(array: AnyBuffer | Lease) -> tuple[str, tuple[int, ...]]:
    """Return the dtype, as it is sent, and the shape of an array, frame or buffer.

    Raises:
        TypeError: not a buffer, or a dtype that cannot be sent.
        ValueError: more than 8 dimensions.
    """
    dtype = getattr(array, "dtype", None)
    text = getattr(dtype, "str", dtype)
    if isinstance(text, str):
        code, shape = _NAMES.get(text, text), cast("Any", array).shape
    else:  # a plain buffer, or a tensor, whose dtype is not NumPy's
        try:
            letters, itemsize, shape = look_at(array)
        except TypeError:
            if hasattr(array, "__dlpack__"):  # (then the error says more)
                raise
            kind = type(array).__name__
            raise TypeError(
                f"a frame must be an array or another buffer, not {kind!r}"
            ) from None
        code = _dtype_of_format(letters, itemsize)
    if code not in DTYPES:
        raise TypeError(
            f"frames of dtype {dtype or code} cannot be sent: send a view of bytes"
        )
    if len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"at most {MAX_DIMENSIONS} dimensions, not {len(shape)}")
    return code, shape


def _dtype_of_format(code: str, itemsize: int) -> str:
    """Return the dtype for a memoryview's format."""
    order = ">" if code[0] in ">!" else "<"
    kind = _KINDS.get(code.lstrip("@=<>!"), code)
    return f"{'|' if itemsize == 1 else order}{kind}{itemsize}"
