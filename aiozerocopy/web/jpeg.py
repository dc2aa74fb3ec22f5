"""JPEG in two qualities, encoded in a worker thread once a frame for all viewers.

simplejpeg does it where it is installed (1080p in about 5 ms), else Pillow.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from aiozerocopy._core.change import Turns, in_turn
from aiozerocopy.frames import to_rgb
from aiozerocopy.web.pixels import (
    FORMATS,
    JPEG,
    UnknownPicture,
    picture_format,
    reason_message,
    websocket_message,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

    from aiozerocopy.broadcast import Published
    from aiozerocopy.web.pixels import PictureFormat, PixelFormat

    Compress = Callable[[Any, PixelFormat, int], bytes]

BOUNDARY = "aiozerocopy-frame"
_PART_END = b"\r\n"
# Both compressors have these names for the formats; for gray each has its own.
_COLOURS = {"rgb24": "RGB", "rgba": "RGBX", "bgr24": "BGR", "bgra": "BGRX"}
CONTENT_TYPE = f"multipart/x-mixed-replace; boundary={BOUNDARY}"
MAX_SIDE = 65_500  # pixels, for libjpeg


def _with_simplejpeg(array: Any, form: PixelFormat, quality: int) -> bytes:
    simplejpeg: Any = importlib.import_module("simplejpeg")

    if array.ndim == 2:
        array = array[:, :, None]
    subsampling = "Gray" if form.channels == 1 else "420"
    encoded: bytes = simplejpeg.encode_jpeg(
        array,
        quality=quality,
        colorspace=_COLOURS.get(form.name, "GRAY"),
        colorsubsampling=subsampling,
        fastdct=True,
    )
    return encoded


def _with_pillow(array: Any, form: PixelFormat, quality: int) -> bytes:
    import io

    from PIL import Image

    mode = "L" if form.channels == 1 else "RGB"
    size = (array.shape[1], array.shape[0])
    raw_mode = _COLOURS.get(form.name, "L")
    image = Image.frombuffer(mode, size, array, "raw", raw_mode, 0, 1)
    out = io.BytesIO()
    image.save(out, "jpeg", quality=quality)
    return out.getvalue()


_COMPRESSORS: dict[str, Compress] = {
    "simplejpeg": _with_simplejpeg,
    "PIL": _with_pillow,
}


def find_compressor() -> Compress | None:
    """Return the best that is installed; None without NumPy, which makes the arrays."""
    if not importlib.util.find_spec("numpy"):
        return None
    for module, compress in _COMPRESSORS.items():
        if importlib.util.find_spec(module):
            return compress
    return None


def lower(quality: int) -> int:
    """The quality for slow links, which takes 30 to 50 % of the bytes."""
    return max(quality // 3, 1)


class JpegEncoder:
    """Encodes each frame once: for multipart streams, and for WebSockets."""

    def __init__(self, compress: Compress, quality: int) -> None:
        self._compress = compress
        self._quality = quality
        self._turns = Turns()
        # The newest frame: its sequence, and its JPEG or why there is none.
        self._newest: tuple[int, bytes | UnknownPicture] = (-1, b"")

    async def part(self, frame: Published) -> Sequence[bytes]:
        encoded = await self._encoded(frame)
        if isinstance(encoded, UnknownPicture):
            return _part(frame, "text/plain; charset=utf-8", str(encoded).encode())
        return _part(frame, "image/jpeg", encoded)

    async def message(self, frame: Published) -> Sequence[Buffer]:
        encoded = await self._encoded(frame)
        if isinstance(encoded, UnknownPicture):
            return reason_message(frame, encoded)
        when = frame.sequence, frame.timestamp_ns
        return websocket_message(encoded, JPEG, picture_format(frame), *when, key=True)

    @in_turn
    async def _encoded(self, frame: Published) -> bytes | UnknownPicture:
        if self._newest[0] != frame.sequence:
            try:
                picture = _picture_format(frame)
            except UnknownPicture as reason:
                self._newest = frame.sequence, UnknownPicture(str(reason))
            else:
                jpeg = await anyio.to_thread.run_sync(self._jpeg, frame, picture)
                self._newest = frame.sequence, jpeg
        return self._newest[1]

    def _jpeg(self, frame: Published, picture: PictureFormat) -> bytes:
        array, form = frame.array, picture.form
        if form.is_yuv:
            size = (picture.width, picture.height)
            array, form = to_rgb(array, size, source=form.name), FORMATS["rgb24"]
        return self._compress(array, form, self._quality)


def _picture_format(frame: Published) -> PictureFormat:
    """Raises: UnknownPicture, also for a frame that no JPEG can hold."""
    picture = picture_format(frame)
    width, height = picture.width, picture.height
    if max(width, height) > MAX_SIDE:
        raise UnknownPicture(
            f"its size is {width}x{height}: JPEG has at most {MAX_SIDE}x{MAX_SIDE}"
        )
    return picture


def _part(frame: Published, kind: str, content: bytes) -> Sequence[bytes]:
    head = (
        f"--{BOUNDARY}\r\n"
        f"Content-Type: {kind}\r\n"
        f"Content-Length: {len(content)}\r\n"
        f"X-Sequence: {frame.sequence}\r\n"
        f"X-Timestamp: {frame.timestamp_ns // 1000}\r\n"
        "\r\n"
    )
    return (head.encode(), content, _PART_END)
