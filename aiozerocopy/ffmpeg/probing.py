"""What FFmpeg itself says of a video: its size, its rate, and how a frame lies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from aiozerocopy.ffmpeg.arguments import AT_ONCE
from aiozerocopy.ffmpeg.finding import environment
from aiozerocopy.ffmpeg.formats import Layout, layout_of
from aiozerocopy.ffmpeg.running import QUIETLY
from aiozerocopy.process import open_process

# The bytes of a frame, by the FFmpeg that was asked, the format, and width and height.
_asked: dict[tuple[str, str, tuple[int, int]], int] = {}


async def frame_layout(pix_fmt: str, size: tuple[int, int], ffmpeg: str) -> Layout:
    """How a frame lies in memory; FFmpeg is asked for the rarer formats.

    Raises:
        ValueError: FFmpeg does not know the format, or takes no such frames.
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
    """How many bytes FFmpeg reads for one frame; it need not convert it."""
    width, height = size
    raw = ["-f", "rawvideo", "-pix_fmt", pix_fmt, "-video_size", f"{width}x{height}"]
    zeros = [*AT_ONCE, *raw, "-i", "/dev/zero", "-frames:v", "1"]
    told, error = await _ask(ffmpeg, *zeros, "-c", "copy", "-f", "framecrc", "pipe:1")
    if packet := _PACKET.search(told):
        return int(packet["nbytes"])
    formats, _ = await _ask(ffmpeg, "-pix_fmts")
    listed = re.search(rf"^(\S+) {re.escape(pix_fmt)} ", formats, re.MULTILINE)
    if listed is None:
        raise ValueError(f"FFmpeg has no pixel format {pix_fmt!r}")
    if "H" in listed[1]:
        raise ValueError(
            f"{pix_fmt!r} is a hardware format, whose frames are not in memory: "
            "send them as 'nv12', for example, and let FFmpeg upload them"
        )
    raise ValueError(f"FFmpeg takes no frames of {width}x{height} {pix_fmt}: {error}")


async def _ask(ffmpeg: str, *arguments: str) -> tuple[str, str]:
    """What FFmpeg says on its standard output, and its last words beside that."""
    command = [ffmpeg, *QUIETLY, "-loglevel", "error", *arguments]
    async with open_process(
        command, stdin=False, stdout=True, env=environment(), start_new_session=True
    ) as asked:
        assert asked.stdout is not None
        told = b"".join([data async for data in asked.stdout])
        await asked.wait()
    return told.decode(errors="replace"), asked.stderr_tail


@dataclass(frozen=True)
class Facts:
    """What is told of a video before its first frame comes."""

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
    """What an FFmpeg that decodes has said of its output, turned and filtered and all.

    It says so before it writes the first byte.
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
    """FFmpeg rounds to two places; the rates of NTSC are meant exactly."""
    rate = Fraction(text) * factor
    for whole in (24, 30, 48, 60, 72, 120, 240):
        exact = Fraction(whole * 1000, 1001)
        if abs(rate - exact) < Fraction(1, 100):
            return exact
    return rate or None


def _seconds(hours: str, minutes: str, seconds: str) -> float:
    return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
