"""Pictures for viewers: which frames can be shown, and the header of each message.

Over a WebSocket each message is a header of 32 bytes, all little-endian, and a payload:

    offset  type      what
    0       u8        version, 1
    1       u8        payload: 0 pixels, 1 H.264 (AVCC), 2 H.264 configuration (avcC)
    2       u8        pixel format: 0 gray8, 1 rgb24, 2 rgba, 3 bgr24, 4 bgra
    3       u8        flags: 1 decodable by itself (a key frame)
    4       u32, u32  width, height
    12      u32       0
    16      u64       sequence number of the frame
    24      i64       its timestamp, microseconds since 1970
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiozerocopy.web.websocket import binary_header

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from aiozerocopy.broadcast import Published

PIXELS, H264, H264_CONFIGURATION = range(3)
KEY = 1

_HEADER = struct.Struct("<BBBBIIIQq")


@dataclass(frozen=True)
class PixelFormat:
    """How pixels lie in memory, and what others call that."""

    name: str
    code: int
    channels: int
    ffmpeg: str
    simplejpeg: str
    pillow: tuple[str, str]  # mode, raw mode


FORMATS = {
    form.name: form
    for form in (
        PixelFormat("gray8", 0, 1, "gray", "GRAY", ("L", "L")),
        PixelFormat("rgb24", 1, 3, "rgb24", "RGB", ("RGB", "RGB")),
        PixelFormat("rgba", 2, 4, "rgba", "RGBX", ("RGB", "RGBX")),
        PixelFormat("bgr24", 3, 3, "bgr24", "BGR", ("RGB", "BGR")),
        PixelFormat("bgra", 4, 4, "bgra", "BGRX", ("RGB", "BGRX")),
    )
}
_BY_CHANNELS = {1: "gray8", 3: "rgb24", 4: "rgba"}
_ALIASES = {"": "", "gray": "gray8", "rgb": "rgb24", "bgr": "bgr24"}


class UnknownPicture(ValueError):
    """A frame of a shape, dtype or pixel format that no browser could be shown."""


@dataclass(frozen=True)
class PictureFormat:
    """The size and pixel format of a frame."""

    width: int
    height: int
    form: PixelFormat

    @property
    def nbytes(self) -> int:
        return self.width * self.height * self.form.channels


def picture_format(frame: Published) -> PictureFormat:
    """Raises: UnknownPicture."""
    shape = frame.shape
    channels = shape[2] if len(shape) == 3 else 1
    name = _ALIASES.get(frame.pixel_format, frame.pixel_format)
    form = FORMATS.get(name or _BY_CHANNELS.get(channels, ""))
    if len(shape) not in (2, 3) or form is None or form.channels != channels:
        raise UnknownPicture(
            f"a picture has the shape (height, width, channels) and one of the pixel "
            f"formats {', '.join(FORMATS)}, not {shape} and {frame.pixel_format!r}"
        )
    if str(frame.dtype).lstrip("|<>=") not in ("uint8", "u1"):
        raise UnknownPicture(f"a picture is of dtype uint8, not {frame.dtype}")
    if 0 in shape:
        raise UnknownPicture(f"a picture has pixels, which {shape} does not")
    return PictureFormat(shape[1], shape[0], form)


def websocket_message(
    payload: Buffer,
    nbytes: int,
    kind: int,
    picture: PictureFormat,
    *,
    key: bool,
    sequence: int,
    timestamp_ns: int,
) -> Sequence[Buffer]:
    """Header and payload, as the buffers that are sent together."""
    header = _HEADER.pack(
        1,
        kind,
        picture.form.code,
        KEY if key else 0,
        picture.width,
        picture.height,
        0,
        sequence,
        timestamp_ns // 1000,
    )
    return (binary_header(len(header) + nbytes) + header, payload)


def raw(frame: Published) -> Sequence[Buffer]:
    """The frame's own memory as a message: nothing is converted or copied."""
    picture = picture_format(frame)
    return websocket_message(
        frame.view,
        picture.nbytes,
        PIXELS,
        picture,
        key=True,
        sequence=frame.sequence,
        timestamp_ns=frame.timestamp_ns,
    )
