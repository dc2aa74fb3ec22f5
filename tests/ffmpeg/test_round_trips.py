"""A film that is lossless gives back each byte: formats, sizes, encoders, FFmpegs.

The quick test has each two of these together in some film.  The slow one makes all
small films, also those that `LOSSES` says are not lossless.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pytest
from ffmpegs import frames_of, needed

from aiozerocopy.ffmpeg import FFmpegError, Writer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from aiozerocopy.ffmpeg import Layout

pytestmark = pytest.mark.anyio

GREY = ("gray", "gray16le", "ya8")
RGB = ("rgb24", "bgr24", "rgba", "rgb48le", "gbrp", "gbrap")
YUV = ("yuv420p", "nv12", "yuv422p", "yuv444p", "yuv420p10le", "yuva420p")
HALVED = ("yuv420p", "nv12", "yuv420p10le", "yuva420p", "yuv422p")  # chroma
DEPTHS = {"yuv420p10le": 10, "gray16le": 16, "rgb48le": 16}  # bits, if not 8

SMALL = [(16, 16), (17, 13), (1, 1), (1, 16), (16, 1)]
SIZES = [*SMALL, (641, 359), (1280, 720)]

WAYS: dict[str, dict[str, Any]] = {
    "ffv1.mkv": {"codec": "ffv1"},
    "rawvideo.nut": {"codec": "rawvideo"},
    "utvideo.mkv": {"codec": "utvideo"},
    "huffyuv.avi": {"codec": "huffyuv"},
    "png.mov": {"codec": "png"},
    "png.apng": {},
    "x264.mp4": {"quality": "lossless", "preset": "ultrafast"},
    "vp9.webm": {"quality": "lossless", "preset": "ultrafast"},
}


class Case(NamedTuple):
    pix_fmt: str
    way: str
    size: tuple[int, int]
    ffmpeg: str

    def __str__(self) -> str:
        width, height = self.size
        return f"{self.pix_fmt}-{self.way}-{width}x{height}-{self.ffmpeg}"


class Loss(NamedTuple):
    """Films that do not give back each byte, and why.

    ``for_some``: that depends on FFmpeg's version.
    """

    why: str
    ways: Sequence[str]
    pix_fmts: Sequence[str]
    sizes: Sequence[tuple[int, int]] = SIZES
    for_some: bool = False

    def is_of(self, case: Case) -> bool:
        return (
            case.way in self.ways
            and case.pix_fmt in self.pix_fmts
            and case.size in self.sizes
        )


ODD_WIDTH = [(width, height) for width, height in SIZES if width % 2]
ODD_HEIGHT = [(width, height) for width, height in SIZES if height % 2]
MANY_ROWS = [(width, height) for width, height in SIZES if height > 1]
LOSSES = [
    Loss("8 bits", ["utvideo.mkv", "huffyuv.avi"], tuple(DEPTHS)),
    Loss("10 or 12 bits", ["x264.mp4", "vp9.webm"], ("gray16le", "rgb48le")),
    Loss("no alpha", ["x264.mp4", "vp9.webm"], ("ya8", "rgba", "gbrap", "yuva420p")),
    Loss("alpha of RGB", ["utvideo.mkv", "huffyuv.avi"], ("yuva420p",)),
    Loss("grey is rounded on its way to RGB", ["huffyuv.avi"], ("ya8",)),
    Loss("4:2:2 or RGB", ["huffyuv.avi"], ("yuv444p",)),
    Loss("4:2:2 or RGB", ["huffyuv.avi"], ("yuv420p", "nv12"), MANY_ROWS),
    Loss("grey or RGB", ["png.mov", "png.apng"], YUV),
    Loss("even widths", ["utvideo.mkv", "huffyuv.avi", "x264.mp4"], HALVED, ODD_WIDTH),
    Loss("even heights", ["utvideo.mkv", "x264.mp4"], HALVED[:4], ODD_HEIGHT),
    Loss("4 slices", ["ffv1.mkv"], (*GREY, *RGB, *YUV), [(1, 16)], for_some=True),
    Loss("RGBA is rounded", ["utvideo.mkv"], ("rgba",), for_some=True),
    Loss(
        "GBRA is rounded",
        ["ffv1.mkv", "huffyuv.avi", "png.mov", "png.apng"],
        ("gbrap",),
        for_some=True,
    ),
]


def losses(case: Case) -> list[Loss]:
    return [loss for loss in LOSSES if loss.is_of(case)]


CASES = [
    Case(*case)
    for case in itertools.product(
        (*GREY, *RGB, *YUV), WAYS, SIZES, ("path", "packaged")
    )
]


def covering(cases: Sequence[Case]) -> list[Case]:
    """Few of them, with each two values that occur together in all."""
    numbers: dict[object, int] = {}
    pairs = {
        case: sum(
            1 << numbers.setdefault(pair, len(numbers))
            for pair in itertools.combinations(enumerate(case), 2)
        )
        for case in cases
    }
    missing = (1 << len(numbers)) - 1
    chosen = []
    while missing:
        case = max(cases, key=lambda case: (pairs[case] & missing).bit_count())
        missing &= ~pairs[case]
        chosen.append(case)
    return chosen


def picture(number: int, layout: Layout) -> NDArray[Any]:
    """One that has all values, and noise, but so little that it can be compressed.

    (Else libvpx of FFmpeg 5.1 writes past its memory, and utvideo cannot be read.)
    """
    count = layout.nbytes // layout.itemsize
    noise = np.random.default_rng(number).integers(0, 4, count)
    depth = DEPTHS.get(layout.pix_fmt, 8)
    values = (np.arange(count) * 256 // count + 5 * number + noise) << (depth - 8)
    values += noise * (depth > 8)
    return (values % (1 << depth)).astype(layout.dtype).reshape(layout.shape)


async def is_kept(case: Case, folder: Path) -> bool:
    """Does a film of a few frames give back each byte?"""
    path, ffmpeg = folder / case.way, needed(case.ffmpeg)
    sent = []
    try:
        async with Writer(
            path, case.size, 30, case.pix_fmt, ffmpeg=ffmpeg, **WAYS[case.way]
        ) as film:
            for number in range(3):
                frame = picture(number, film.layout)
                sent.append(frame.tobytes())
                await film.put(frame)
        return await frames_of(path, case.pix_fmt, ffmpeg=ffmpeg) == sent
    except FFmpegError:
        return False


COVERING = covering([case for case in CASES if not losses(case)])
# One of each way, small and by the FFmpeg that starts faster, is for each run.
QUICK = {
    case.way: case
    for case in COVERING
    if case.ffmpeg == "packaged" and case.size in SMALL
}.values()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case in QUICK else pytest.mark.slow)
        for case in COVERING
    ],
    ids=str,
)
async def test_each_byte_comes_back(case: Case, tmp_path: Path) -> None:
    assert await is_kept(case, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [loss for loss in LOSSES if not loss.for_some])
async def test_what_is_lost(loss: Loss, tmp_path: Path) -> None:
    """In the first film of each, or it would be no loss."""
    case = next(case for case in CASES if losses(case) == [loss])
    assert not await is_kept(case, tmp_path), loss.why


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("ffmpeg", "way"),
    [*(("packaged", way) for way in WAYS), ("path", "ffv1.mkv"), ("path", "x264.mp4")],
)
async def test_every_small_film(way: str, ffmpeg: str, tmp_path: Path) -> None:
    for case in CASES:
        if case.way != way or case.ffmpeg != ffmpeg or case.size not in SMALL:
            continue
        known = losses(case)
        if not any(loss.for_some for loss in known):
            assert await is_kept(case, tmp_path) == (not known), case
