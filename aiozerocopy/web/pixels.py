"""Pixels for viewers: which frames can be shown, and the header of each message.

Over a WebSocket each message is a header of 32 bytes, all little-endian, and a payload.
(Other servers send a long one as several messages, the first of which has the header.)

    offset  type      what
    0       u8        version, 1
    1       u8        payload: 0 pixels, 1 H.264 (AVCC) or AV1 (a temporal unit),
                      2 their configuration (avcC, or AV1's sequence header),
                      3 why the frame cannot be shown (UTF-8), 4 JPEG
    2       u8        pixel format: 0 gray8, 1 rgb24, 2 rgba, 3 bgr24, 4 bgra,
                      5 yuv420p, 6 nv12
    3       u8        flags: 1 decodable by itself (a key frame)
    4       u32, u32  width, height
    12      u32       the payload's bytes
    16      u64       sequence number of the frame
    24      i64       its timestamp, microseconds since 1970

YUV is shown as BT.709 of limited range, which is what `aiozerocopy.frames` makes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from aiozerocopy.frames import PLANES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from aiozerocopy.broadcast import Published

PIXELS, CODED, CONFIGURATION, REASON, JPEG = range(5)
KEY = 1

_HEADER = struct.Struct("<BBBBIIIQq")


@dataclass(frozen=True)
class PixelFormat:
    """How pixels lie in memory, by FFmpeg's names."""

    name: str
    code: int
    channels: int  # 1 for YUV, whose planes are rows as wide as the picture

    @property
    def is_yuv(self) -> bool:
        return self.name in PLANES


_CHANNELS = {"gray8": 1, "rgb24": 3, "rgba": 4, "bgr24": 3, "bgra": 4}
_CHANNELS |= {"yuv420p": 1, "nv12": 1}
FORMATS = {
    name: PixelFormat(name, code, channels)
    for code, (name, channels) in enumerate(_CHANNELS.items())
}
_BY_CODE = tuple(FORMATS.values())
_BY_CHANNELS = {1: "gray8", 3: "rgb24", 4: "rgba"}
_ALIASES = {"": "", "gray": "gray8", "rgb": "rgb24", "bgr": "bgr24"}
_ALIASES |= {"rgb0": "rgba", "bgr0": "bgra"}  # alpha is not shown


class UnknownPicture(ValueError):
    """A frame whose shape, dtype or pixel format the page cannot show."""


@dataclass(frozen=True)
class PictureFormat:
    width: int
    height: int
    form: PixelFormat


_NO_PICTURE = PictureFormat(0, 0, FORMATS["gray8"])


def picture_format(frame: Published) -> PictureFormat:
    """Raises: UnknownPicture."""
    shape = frame.shape
    channels = shape[2] if len(shape) == 3 else 1
    name = _ALIASES.get(frame.pixel_format, frame.pixel_format)
    form = FORMATS.get(name or _BY_CHANNELS.get(channels, ""))
    if name and form is None:
        known = ", ".join(FORMATS)
        raise UnknownPicture(f"its pixel format is {name!r}, which is none of {known}")
    if (dtype := _numpy_name(frame.dtype)) != "uint8":
        raise UnknownPicture(f"its dtype is {dtype}, not uint8")
    if len(shape) not in (2, 3) or form is None or form.channels != channels:
        of = f" of {name}" if name else ""
        raise UnknownPicture(f"its shape{of} is {shape}, not (height, width, channels)")
    if 0 in shape:
        raise UnknownPicture(f"its shape is {shape}: it has no pixels")
    if form.is_yuv:
        return PictureFormat(shape[1], _yuv_height(name, shape), form)
    return PictureFormat(shape[1], shape[0], form)


def _numpy_name(dtype: str) -> str:
    """What NumPy calls it: "float32" for "<f4"."""
    kind, size = dtype[1], int(dtype[2:])
    names = {"u": "uint", "i": "int", "f": "float", "c": "complex"}
    return f"{names[kind]}{size * 8}" if kind in names else "bool"


def _yuv_height(name: str, shape: tuple[int, ...]) -> int:
    """The height of a 4:2:0 picture of this shape: two thirds of its rows are luma."""
    rows, width = shape[:2]
    if width % 2 or rows % 3 == 1:
        raise UnknownPicture(
            f"its shape of {name} is {shape}, not (height * 3 / 2, width), width even"
        )
    return (2 * rows) // 3


def websocket_message(
    payload: Buffer,
    kind: int,
    picture: PictureFormat,
    sequence: int,
    timestamp_ns: int,
    *,
    key: bool,
) -> Sequence[Buffer]:
    """Header and payload, as the buffers that are sent together."""
    code, flags = picture.form.code, KEY if key else 0
    size = picture.width, picture.height
    nbytes = memoryview(payload).nbytes
    header = _HEADER.pack(
        1, kind, code, flags, *size, nbytes, sequence, timestamp_ns // 1000
    )
    return (header, payload)


class Header(NamedTuple):
    """What a message's header says."""

    kind: int
    picture: PictureFormat
    sequence: int
    timestamp_ns: int

    @classmethod
    def of(cls, message: Buffer) -> Header:
        fields = _HEADER.unpack_from(message)
        _, kind, code, _, width, height, _, sequence, when = fields
        picture = PictureFormat(width, height, _BY_CODE[code])
        return cls(kind, picture, sequence, 1000 * when)


def reason_message(frame: Published, reason: UnknownPicture) -> Sequence[Buffer]:
    text, when = str(reason).encode(), (frame.sequence, frame.timestamp_ns)
    return websocket_message(text, REASON, _NO_PICTURE, *when, key=False)


def raw(frame: Published) -> Sequence[Buffer]:
    """The frame's own memory as a message: nothing is converted or copied."""
    try:
        picture = picture_format(frame)
    except UnknownPicture as reason:
        return reason_message(frame, reason)
    when = frame.sequence, frame.timestamp_ns
    return websocket_message(frame.view, PIXELS, picture, *when, key=True)
