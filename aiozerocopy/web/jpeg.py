"""JPEG, encoded once a frame in a worker thread, for all who watch it so.

simplejpeg does it where it is installed (1080p in about 5 ms), else Pillow.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from aiozerocopy.web.pictures import picture_format

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Buffer

    from aiozerocopy.broadcast import Published
    from aiozerocopy.web.pictures import PixelFormat

    Compress = Callable[[Any, PixelFormat, int], bytes]

BOUNDARY = "aiozerocopy-frame"
_PART_END = b"\r\n"
CONTENT_TYPE = f"multipart/x-mixed-replace; boundary={BOUNDARY}"


def _with_simplejpeg(array: Any, form: PixelFormat, quality: int) -> bytes:
    simplejpeg: Any = importlib.import_module("simplejpeg")

    if array.ndim == 2:
        array = array[:, :, None]
    subsampling = "Gray" if form.channels == 1 else "420"
    encoded: bytes = simplejpeg.encode_jpeg(
        array,
        quality=quality,
        colorspace=form.simplejpeg,
        colorsubsampling=subsampling,
        fastdct=True,
    )
    return encoded


def _with_pillow(array: Any, form: PixelFormat, quality: int) -> bytes:
    import io

    from PIL import Image

    mode, raw_mode = form.pillow
    size = (array.shape[1], array.shape[0])
    image = Image.frombuffer(mode, size, array, "raw", raw_mode, 0, 1)
    out = io.BytesIO()
    image.save(out, "jpeg", quality=quality)
    return out.getvalue()


_COMPRESSORS: dict[str, Compress] = {
    "simplejpeg": _with_simplejpeg,
    "PIL": _with_pillow,
}


def find_compressor() -> Compress | None:
    """The best that is installed."""
    for module, compress in _COMPRESSORS.items():
        if importlib.util.find_spec(module):
            return compress
    return None


class JpegEncoder:
    """Encodes frames for multipart streams, each frame once."""

    def __init__(self, compress: Compress, quality: int) -> None:
        self._compress = compress
        self._quality = quality
        self._lock = anyio.Lock()
        self._encoded: tuple[int, bytes] = (-1, b"")  # the newest: sequence and JPEG

    async def _jpeg(self, frame: Published) -> bytes:
        async with self._lock:
            sequence, jpeg = self._encoded
            if sequence != frame.sequence:
                jpeg = await anyio.to_thread.run_sync(
                    self._compress,
                    frame.array,
                    picture_format(frame).form,
                    self._quality,
                )
                self._encoded = (frame.sequence, jpeg)
            return jpeg

    async def plain(self, frame: Published) -> Sequence[Buffer]:
        """A part of a multipart stream."""
        jpeg = await self._jpeg(frame)
        return (_part_header(frame, len(jpeg)), jpeg, _PART_END)

    async def chunked(self, frame: Published) -> Sequence[Buffer]:
        """The same as a chunk of an HTTP/1.1 answer."""
        jpeg = await self._jpeg(frame)
        header = _part_header(frame, len(jpeg))
        length = len(header) + len(jpeg) + len(_PART_END)
        return (b"%x\r\n%b" % (length, header), jpeg, _PART_END + b"\r\n")


def _part_header(frame: Published, nbytes: int) -> bytes:
    return (
        f"--{BOUNDARY}\r\n"
        "Content-Type: image/jpeg\r\n"
        f"Content-Length: {nbytes}\r\n"
        f"X-Sequence: {frame.sequence}\r\n"
        f"X-Timestamp: {frame.timestamp_ns // 1000}\r\n"
        "\r\n"
    ).encode()
