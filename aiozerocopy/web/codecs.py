"""What browsers decode, what an encoder is asked for, and what it makes.

All encoders take planes (see `planes`) one by one, hold none back, and pass on packets
as WebCodecs takes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from aiozerocopy.web.planes import even

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from typing_extensions import Buffer

    from aiozerocopy.web.pixels import PictureFormat

FPS = 30  # that bitrates are meant for
NEVER = "1000000"  # frames from one key frame to the next that nobody asked for


@dataclass(frozen=True)
class Codec:
    """What browsers decode, and how PyAV encodes it without a delay."""

    title: str
    library: str
    bits: float  # that it needs for the same picture, as a part of H.264's
    retunes: bool  # may the bitrate change while it runs?
    formats: tuple[str, ...]  # of planes
    options: Callable[[int], dict[str, str]]  # for this bitrate


def x264_options(bitrate: int) -> dict[str, str]:
    """A buffer of 0.1 s limits a key frame to the size of three or four others."""
    return {
        **{"preset": "ultrafast", "tune": "zerolatency", "g": NEVER},
        **{"b": str(bitrate), "maxrate": str(bitrate), "bufsize": str(bitrate // 10)},
    }


def _x264_in_process(bitrate: int) -> dict[str, str]:
    options = {"forced-idr": "1", "x264-params": "annexb=0"}
    return x264_options(bitrate) | options


def _svt_options(bitrate: int) -> dict[str, str]:
    """As for video calls: no frame waits for others, and each 0.1 s has its limit."""
    buffer = "buf-sz=100:buf-initial-sz=60:buf-optimal-sz=60"
    return {
        **{"preset": "11", "b": str(bitrate), "g": NEVER},
        **{"svtav1-params": f"rtc=1:pred-struct=1:rc=2:lp=2:{buffer}"},
    }


H264 = Codec("H.264", "libx264", 1, True, ("yuv420p", "nv12"), _x264_in_process)
AV1 = Codec("AV1", "libsvtav1", 0.5, False, ("yuv420p",), _svt_options)
CODECS = {"h264": H264, "av1": AV1}  # by the mode of the page


@dataclass(frozen=True)
class Task:
    """What to encode: the planes of a picture, whose own sides may be odd."""

    picture: PictureFormat
    bitrate: int
    is_half: bool = False  # half as wide and high

    @property
    def planes(self) -> PictureFormat:
        width, height = even(self.picture.width), even(self.picture.height)
        return replace(self.picture, width=width, height=height)

    @property
    def size(self) -> tuple[int, int]:
        """The size of the encoded picture."""
        part = 2 if self.is_half else 1
        width, height = self.planes.width, self.planes.height
        return even(width // part), even(height // part)


class Made(NamedTuple):
    """What an encoder has made of a frame, or the configuration before the first."""

    number: int  # of the frame; -1 for the configuration
    is_key: bool
    payload: Buffer


class Encoder(Protocol):
    last: float  # the highest number of a frame that it takes

    async def encode(self, planes: Buffer, number: int, *, is_key: bool) -> None:
        """Take a frame, numbered from 0.

        Raises: OSError.
        """

    async def wait(self) -> str:
        """Return why it has ended by itself; "" if another encoder is to go on."""

    def follow(self, bitrate: int) -> bool:
        """Change the bitrate, or return False: another encoder must be started."""


Tell: TypeAlias = "Callable[[Made], object]"
Encoders: TypeAlias = "Callable[[Task, Tell], AbstractAsyncContextManager[Encoder]]"
