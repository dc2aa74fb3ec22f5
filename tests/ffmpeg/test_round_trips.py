"""A lossless film gives back each byte: formats, sizes, encoders, FFmpegs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ffmpegs import frames_of
from numpy.typing import NDArray

from aiozerocopy.ffmpeg import Layout, Writer

pytestmark = pytest.mark.anyio

PLAIN = ("rgb24", "gray", "bgr24", "gbrp")  # every lossless encoder keeps these
DEEP = ("gray16le", "rgb48le")
WITH_ALPHA = ("ya8", "rgba")
YUV = ("yuv420p", "nv12", "yuv422p", "yuv444p", "yuv420p10le", "yuva420p")
HALVED = ("yuv420p", "nv12", "yuv422p", "yuv420p10le")  # chroma
DEPTHS = {"yuv420p10le": 10, "gray16le": 16, "rgb48le": 16}  # bits, if not 8

WORDS: dict[str, Any] = {"quality": "lossless", "preset": "ultrafast"}
# For each film: arguments, the formats that it keeps, those that need even sizes.
WAYS: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    "ffv1.mkv": ({"codec": "ffv1"}, (*PLAIN, *DEEP, *WITH_ALPHA, *YUV), ()),
    "rawvideo.nut": ({"codec": "rawvideo"}, (*PLAIN, *DEEP, *WITH_ALPHA, *YUV), ()),
    "utvideo.mkv": ({"codec": "utvideo"}, (*PLAIN, "ya8", *YUV[:4]), HALVED),
    "huffyuv.avi": ({"codec": "huffyuv"}, (*PLAIN, "rgba", "yuv422p"), HALVED),
    "png.mov": ({"codec": "png"}, (*PLAIN, *DEEP, *WITH_ALPHA), ()),
    "png.apng": ({}, (*PLAIN, *DEEP, *WITH_ALPHA), ()),
    "x264.mp4": (WORDS, (*PLAIN, *YUV[:5]), HALVED),
    "vp9.webm": (WORDS, (*PLAIN, *YUV[:5]), ()),
}
EVEN = [(16, 16), (320, 180)]
SIZES = [*EVEN, (17, 13), (1, 1)]


def picture(number: int, layout: Layout) -> NDArray[Any]:
    """Make a picture with all values, and little enough noise to be compressed.

    (Otherwise libvpx of FFmpeg 5.1 writes past its memory, and utvideo is unreadable.)
    """
    count = layout.nbytes // layout.itemsize
    noise = np.random.default_rng(number).integers(0, 4, count)
    depth = DEPTHS.get(layout.pix_fmt, 8)
    values = (np.arange(count) * 256 // count + 5 * number + noise) << (depth - 8)
    values += noise * (depth > 8)
    return (values % (1 << depth)).astype(layout.dtype).reshape(layout.shape)


@pytest.mark.parametrize(
    ("way", "pix_fmt"),
    [
        pytest.param(way, pix_fmt, marks=() if pix_fmt == "rgb24" else pytest.mark.slow)
        for way, (_, pix_fmts, _) in WAYS.items()
        for pix_fmt in pix_fmts
    ],
)
async def test_each_byte_comes_back(
    way: str, pix_fmt: str, ffmpeg: str, tmp_path: Path
) -> None:
    options, _, of_even_sizes = WAYS[way]
    for size in EVEN if pix_fmt in of_even_sizes else SIZES:
        sent = []
        async with Writer(
            tmp_path / way, size, 30, pix_fmt, ffmpeg=ffmpeg, **options
        ) as film:
            for number in range(3):
                frame = picture(number, film.layout)
                sent.append(frame.tobytes())
                await film.put(frame)
        back = await frames_of(tmp_path / way, pix_fmt, ffmpeg=ffmpeg)
        assert back == sent, size
