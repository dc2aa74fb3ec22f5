"""The facts of a film: what FFmpeg's log says of its size, rate and colours, and when
each of its frames is to be seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiozerocopy._process.pipes import Lines


@dataclass(frozen=True)
class Pictures:
    """What FFmpeg says of a stream of pictures."""

    pix_fmt: str
    size: tuple[int, int]
    matrix: str | None = None  # FFmpeg's name of it; None where it is not known
    full_range: bool = False
    interlaced: bool = False


@dataclass(frozen=True)
class Facts:
    """What FFmpeg says of a video before its first frame comes.

    ``frames`` are those that come, turned and filtered; ``film`` is the stream that
    they are made of, if it is one.
    """

    frames: Pictures
    fps: Fraction | None = None
    duration: float | None = None  # seconds
    film: Pictures | None = None


_STREAM = re.compile(
    r"^ *Stream #(?P<number>\d+:\d+).*?: Video: .*?, "
    r"(?P<pix_fmt>\w+)(?:\((?P<tags>.*?)\))?, (?P<width>\d+)x(?P<height>\d+)\b"
    r"(?P<more>.*)$",
    re.MULTILINE,
)
# Colours are said as matrix/primaries/transfer, or by one name for the three.
_NO_COLOUR = re.compile(r"|tv|pc|\d+ bpc|progressive|(top|bottom) .*first.*")
_OUTPUT = re.compile(r"^Output #0", re.MULTILINE)
_MAPPING = re.compile(r"^ *Stream #(\d+:\d+) -> #0:0 \(", re.MULTILINE)
_RATE = re.compile(r", ([\d.]+)(k?) fps\b")
_DURATION = re.compile(r"^ *Duration: (\d+):(\d+):([\d.]+)", re.MULTILINE)


def facts_in(log: str) -> Facts | None:
    """Find what FFmpeg logs of its output before it writes the first byte."""
    begins = _OUTPUT.search(log)
    output = begins and _STREAM.search(log, begins.start())
    if not begins or not output:
        return None
    before = log[: begins.start()]
    rate = _RATE.search(output["more"])
    duration = _DURATION.search(before)
    return Facts(
        frames=_pictures(output),
        fps=None if rate is None else _rate(rate[1], 1000 if rate[2] else 1),
        duration=None if duration is None else _seconds(*duration.groups()),
        film=_film_in(before),
    )


def _film_in(log: str) -> Pictures | None:
    """The stream that goes straight into the output."""
    mapping = _MAPPING.search(log)
    if mapping is None:
        return None
    streams = _STREAM.finditer(log, 0, mapping.start())
    films = [_pictures(found) for found in streams if found["number"] == mapping[1]]
    return films[0] if films else None


def _pictures(stream: re.Match[str]) -> Pictures:
    tags = (stream["tags"] or "").split(", ")
    colours = [tag for tag in tags if not _NO_COLOUR.fullmatch(tag)]
    matrix = colours[0].partition("/")[0] if colours else "unknown"
    return Pictures(
        pix_fmt=stream["pix_fmt"],
        size=(int(stream["width"]), int(stream["height"])),
        matrix=None if matrix == "unknown" else matrix,
        full_range="pc" in tags,
        interlaced=any("first" in tag for tag in tags),
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


# ---- the times of frames -------------------------------------------------------------

_TIME = re.compile(rb" pts:(-?\d+|NOPTS) .*\n")
_READ = 4096


class Times:
    """When each frame is to be seen, in seconds from the beginning of the film.

    FFmpeg writes a line for each into a pipe, as `arguments.timed` tells it, before the
    frame goes out.  So the line is there when the frame is, and nothing waits for it.

    At a constant ``rate`` only the first frame has a line.  (FFmpeg may fill a gap with
    more frames at once than the pipe has room for lines.  It would wait for us to read
    them, while we wait for the first of these frames.)
    """

    def __init__(self, lines: Lines, start: int, rate: Fraction | None) -> None:
        self._lines = lines
        self._start = start  # in the film, where FFmpeg counts from; microseconds
        self._rate = rate
        self._at: Fraction | None = None  # the next frame's time, at a constant rate
        self._text = b""
        self._end = 0  # of what was read of it

    def next(self) -> float | None:
        """Return the time of the frame that was received; None if it has none."""
        if self._rate is None or self._at is None:
            if (told := self._next_told()) is None:
                return None
            if self._rate is None:
                return (self._start + told) / 1_000_000
            number = round(told * self._rate / 1_000_000)
            self._at = Fraction(self._start, 1_000_000) + number / self._rate
        at, self._at = self._at, self._at + 1 / self._rate
        return float(at)

    def _next_told(self) -> int | None:
        found = _TIME.search(self._text, self._end)
        if found is None and not self._lines.closed:
            self._text = self._text[self._end :] + (self._lines.read(_READ) or b"")
            self._end = 0
            found = _TIME.search(self._text)
        if found is None:
            return None
        self._end = found.end()
        return None if found[1] == b"NOPTS" else int(found[1])

    def close(self) -> None:
        self._lines.close()
