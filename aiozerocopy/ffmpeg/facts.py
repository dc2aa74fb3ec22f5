"""The facts of a film: its size, rate and colours from FFmpeg's log, and the time of
each frame.
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
    """What FFmpeg's log says of a stream of pictures."""

    pix_fmt: str
    size: tuple[int, int]
    matrix: str | None = None  # by FFmpeg's name; None where it is not known
    full_range: bool = False
    interlaced: bool = False


@dataclass(frozen=True)
class Facts:
    """What FFmpeg's log says of a video before the first frame comes.

    ``frames`` describes the frames that come, turned and filtered; ``film`` the stream
    that they are made from, if it goes straight into the output.
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
# FFmpeg writes colours as matrix/primaries/transfer, or as one name for all three.
_NO_COLOUR = re.compile(r"|tv|pc|\d+ bpc|progressive|(top|bottom) .*first.*")
_OUTPUT = re.compile(r"^Output #0", re.MULTILINE)
_MAPPING = re.compile(r"^ *Stream #(\d+:\d+) -> #0:0 \(", re.MULTILINE)
_RATE = re.compile(r", ([\d.]+)(k?) fps\b")
_DURATION = re.compile(r"^ *Duration: (\d+):(\d+):([\d.]+)", re.MULTILINE)


def facts_in(log: str) -> Facts | None:
    """Return the facts that FFmpeg logs before it writes the first byte."""
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
    """Return the stream that goes straight into the output, if one does."""
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
    """Return the exact rate: FFmpeg writes 29.97 for NTSC's 30000/1001."""
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
Left = tuple[bytes, Fraction | None]  # FFmpeg's text; at a constant rate, a time


class Times:
    """The time of each frame, in seconds from the beginning of the film.

    FFmpeg writes a line for each frame into a pipe before it sends the frame: see
    `arguments.timed`.  So the line is there when the frame is; we never wait for it.

    At a constant ``rate`` only the first frame has a line.  (If FFmpeg filled a gap
    with many frames at once, the pipe could lack room for their lines.  FFmpeg would
    wait for us to read the lines, while we wait for the first of these frames.)

    An exception of a signal handler may come at any line.  So `next` uses no time up:
    the caller stores what is `left` in the line that hands the frame over.
    """

    def __init__(self, lines: Lines, start: int, rate: Fraction | None) -> None:
        self._lines = lines
        self._start = start  # where in the film FFmpeg counts from; microseconds
        self._rate = rate
        self.left: Left = (b"", None)
        self._come = bytearray(_READ)  # zeros, but for what was read into it

    def next(self) -> tuple[float | None, Left]:
        """Return the time of the frame that was just received, and what is left then.

        The time is None if the frame has none.
        """
        text, at = self.left
        if self._rate is None or at is None:
            told, text = self._next_told()
            if told is None:
                return None, (text, at)
            if self._rate is None:
                return (self._start + told) / 1_000_000, (text, at)
            number = round(told * self._rate / 1_000_000)
            at = Fraction(self._start, 1_000_000) + number / self._rate
        return float(at), (text, at + 1 / self._rate)

    def _next_told(self) -> tuple[int | None, bytes]:
        """Return the next line's time, if it has one, and the text behind it."""
        if _TIME.search(self.left[0]) is None and not self._lines.closed:
            self._read()
        text = self.left[0]
        if (found := _TIME.search(text)) is None:
            return None, text
        told = None if found[1] == b"NOPTS" else int(found[1])
        return told, text[found.end() :]

    def _read(self) -> None:
        if not self._come[0]:  # else a signal handler raised just after it was read
            self._lines.readinto(self._come)
        text, at = self.left
        left, zeros = (text + self._come.rstrip(b"\0"), at), bytearray(_READ)
        # (One line without a call: a signal handler may raise at a new line or a call.)
        self.left = left; self._come = zeros  # noqa: E702  # fmt: skip

    def close(self) -> None:
        self._lines.close()
