"""What FFmpeg tells of a video: its size, its rate, and how a frame lies in memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from aiozerocopy.ffmpeg.finding import environment
from aiozerocopy.ffmpeg.formats import Layout, layout_of
from aiozerocopy.ffmpeg.running import QUIETLY
from aiozerocopy.process import open_process


async def frame_layout(pix_fmt: str, size: tuple[int, int], ffmpeg: str) -> Layout:
    """How a frame lies in memory; FFmpeg is asked for the rarer formats.

    Raises:
        ValueError: FFmpeg does not know the format.
    """
    known = layout_of(pix_fmt, size)
    if known is not None:
        return known
    command = [
        *(ffmpeg, *QUIETLY, "-loglevel", "error", "-f", "lavfi", "-i", "color"),
        *("-frames:v", "1", "-s", f"{size[0]}x{size[1]}", "-pix_fmt", pix_fmt),
        *("-f", "rawvideo", "pipe:1"),
    ]
    async with open_process(
        command, stdin=False, stdout=True, env=environment(), start_new_session=True
    ) as asked:
        assert asked.stdout is not None
        count = 0
        async for data in asked.stdout:
            count += len(data)
        await asked.wait()
    if not count:
        raise ValueError(
            f"FFmpeg has no pixel format {pix_fmt!r} for frames: {asked.stderr_tail}"
        )
    return Layout(pix_fmt, size, (count,))


@dataclass(frozen=True)
class Facts:
    """What is known of a video before its first frame comes."""

    size: tuple[int, int]
    fps: Fraction | None
    duration: float | None  # seconds


_OUTPUT = re.compile(
    r"^Output #0.*?^ *Stream #0:0.*?: Video: .*?, (\d+)x(\d+)\b(.*?)$",
    re.MULTILINE | re.DOTALL,
)
_RATE = re.compile(r", ([\d.]+)(k?) fps\b")
_DURATION = re.compile(r"^ *Duration: (\d+):(\d+):([\d.]+)", re.MULTILINE)


def facts_in(log: str) -> Facts | None:
    """What FFmpeg's log tells of its output, after rotation and filters.

    FFmpeg logs that before it writes the first byte.
    """
    output = _OUTPUT.search(log)
    if output is None:
        return None
    rate = _RATE.search(output[3])
    duration = _DURATION.search(log)
    return Facts(
        size=(int(output[1]), int(output[2])),
        fps=None if rate is None else _rate(rate[1], 1000 if rate[2] else 1),
        duration=None if duration is None else _seconds(*duration.groups()),
    )


def _rate(text: str, factor: int) -> Fraction | None:
    """The exact rate.  FFmpeg rounds to two places, NTSC's 30000/1001 to 29.97."""
    rate = Fraction(text) * factor
    for whole in (24, 30, 48, 60, 72, 120, 240):
        exact = Fraction(whole * 1000, 1001)
        if abs(rate - exact) < Fraction(1, 100):
            return exact
    return rate or None


def _seconds(hours: str, minutes: str, seconds: str) -> float:
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
