"""What FFmpeg reports while it works."""

from __future__ import annotations

import math
from dataclasses import dataclass

REPORT_BYTES = 4 << 10  # a report has about 300 bytes, more with many streams


@dataclass(frozen=True)
class Status:
    """FFmpeg's last report: two a second, and one at the end."""

    frames: int = 0  # that it has encoded
    fps: float = 0.0
    bitrate: float | None = None  # bits a second
    size: int | None = None  # bytes of output
    out_time: float = 0.0  # seconds of output
    duplicated: int = 0
    dropped: int = 0
    speed: float | None = None  # seconds of output in a second
    ended: bool = False  # it was the last report


def parse(text: str) -> Status:
    """The last whole report in FFmpeg's ``-progress`` output."""
    report: dict[str, str] = {}
    fields: dict[str, str] = {}
    for line in text.splitlines(keepends=True):
        name, _, value = line.partition("=")
        fields[name] = value.strip()
        if name == "progress" and line.endswith("\n"):
            report, fields = fields, {}
    return Status(
        frames=_whole(report.get("frame")) or 0,
        fps=_number(report.get("fps")) or 0.0,
        bitrate=_bits(report.get("bitrate")),
        size=_whole(report.get("total_size")),
        out_time=max(_number(report.get("out_time_us")) or 0.0, 0.0) / 1e6,
        duplicated=_whole(report.get("dup_frames")) or 0,
        dropped=_whole(report.get("drop_frames")) or 0,
        speed=_number(report.get("speed")),
        ended=report.get("progress") == "end",
    )


def _number(text: str | None) -> float | None:
    """A number, if it is one: FFmpeg says "N/A" and "inf" too."""
    try:
        value = float((text or "").removesuffix("x"))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _whole(text: str | None) -> int | None:
    value = _number(text)
    return None if value is None else int(value)


def _bits(text: str | None) -> float | None:
    value = _number((text or "").removesuffix("kbits/s"))
    return None if value is None else value * 1000
