"""A caller's arguments about a video, checked and turned into FFmpeg's arguments.

Each function raises ValueError or TypeError for an argument that makes no sense, and
says what would make sense.
"""

from __future__ import annotations

import operator
import os
import re
import reprlib
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from aiozerocopy.frames import Colour

if TYPE_CHECKING:
    from collections.abc import Sequence

# No probing of a raw input.  (FFmpeg would read seconds of it before the next input.)
AT_ONCE = ["-probesize", "32"]
_STANDARD_OUTPUT = ("-", "pipe:", "pipe:1")


def checked_size(size: tuple[int, int]) -> tuple[int, int]:
    try:
        width, height = map(operator.index, size)
    except (TypeError, ValueError):
        raise ValueError(f"size must be (width, height), not {size!r}") from None
    if width < 1 or height < 1:
        raise ValueError(f"size must be at least 1x1, not {width}x{height}")
    return width, height


def checked_rate(fps: float | Fraction | str) -> Fraction:
    try:
        rate = Fraction(fps).limit_denominator(1_000_000)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        raise ValueError(f"fps must be a number or a fraction, not {fps!r}") from None
    if rate <= 0:
        raise ValueError(f"fps must be positive, not {fps}")
    return rate


# How FFmpeg writes a time, besides a number of seconds: 1:30, 0:01:30.5, 1500ms.
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d+(?:\.\d*)?)")
_WITH_UNIT = re.compile(r"(\d+(?:\.\d*)?)(s|ms|us)")
_UNITS = {"s": 1, "ms": 1000, "us": 1_000_000}


def part_arguments(
    start: float | Fraction | str | None, duration: float | Fraction | str | None
) -> list[str]:
    """Return the options that choose a part of an input; they go before "-i"."""
    arguments: list[str] = []
    if start is not None:
        arguments += ["-ss", f"{checked_microseconds(start, 'start')}us"]
    if duration is not None:
        length = checked_microseconds(duration, "duration")
        if not length:
            raise ValueError(f"duration must be above 0, not {duration!r}")
        arguments += ["-t", f"{length}us"]
    return arguments


def checked_microseconds(time: float | Fraction | str, name: str) -> int:
    try:
        microseconds = round(_seconds(time) * 1_000_000)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError):
        raise ValueError(
            f"{name} must be seconds or text such as '1:30', not {time!r}"
        ) from None
    if microseconds < 0:
        raise ValueError(f"{name} must be at least 0, not {time!r}")
    return microseconds


def _seconds(time: float | Fraction | str) -> Fraction:
    if isinstance(time, str) and (match := _CLOCK.fullmatch(time)):
        hours, minutes, seconds = match.groups("0")
        return 3600 * int(hours) + 60 * int(minutes) + Fraction(seconds)
    if isinstance(time, str) and (match := _WITH_UNIT.fullmatch(time)):
        return Fraction(match[1]) / _UNITS[match[2]]
    return Fraction(time)


def checked_format(pix_fmt: str) -> str:
    """Return the name of a pixel format, which only FFmpeg can look up."""
    if not isinstance(pix_fmt, str):
        raise TypeError(f"pix_fmt must be a name such as 'rgb24', not {pix_fmt!r}")
    return pix_fmt


def checked_colour(colour: Colour | None) -> Colour:
    if not isinstance(colour, (Colour, type(None))):
        raise TypeError(
            f"colour must be a Colour such as Colour('bt601'), not {colour!r}"
        )
    return colour or Colour()


def words(
    arguments: Sequence[str | os.PathLike[str]] | Mapping[str, object],
    what: str = "options is",
) -> list[str]:
    """Return FFmpeg's arguments, given as a list or as a mapping of names and values.

    A str is refused: it would be read as a list of letters.

    Raises: TypeError: neither a list, nor a tuple, nor a mapping.
    """
    if isinstance(arguments, Mapping):
        return [
            text
            for name, value in arguments.items()
            for text in (f"-{name.removeprefix('-')}", str(value))
        ]
    if not isinstance(arguments, (list, tuple)):  # (a file would be read to its end)
        hint = ": give the path of a file" if hasattr(arguments, "read") else ""
        raise TypeError(
            f"{what} a list of arguments, not {reprlib.repr(arguments)}{hint}"
        )
    return [os.fspath(argument) for argument in arguments]


def parted_at_inputs(options: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the options that belong to inputs, which end with "-i NAME", and the rest.

    (Between our own output options they would make these options of an input.)
    """
    end = max((at + 2 for at, word in enumerate(options) if word == "-i"), default=0)
    return [*options[:end]], [*options[end:]]


# ---- filters -------------------------------------------------------------------------

_FILTER = re.compile(r"-vf$|-/?filter|-lavfi")  # (-vframes is no filter)


def with_filters(
    options: Sequence[str], *, first: str = "", last: str = ""
) -> list[str] | None:
    """Return the options with one more filter before or after the others.

    None if the filters are in a graph that we cannot add to.
    """
    filters = [at for at, option in enumerate(options) if _FILTER.match(option)]
    if not filters:
        return [*options, "-vf", ",".join(filter(None, (first, last)))]
    *_, at = filters
    graph = "".join(options[at + 1 : at + 2])
    is_closed = (first and graph.startswith("[")) or (last and graph.endswith("]"))
    if options[at] not in ("-vf", "-filter:v") or is_closed:
        return None
    graph = ",".join(filter(None, (first, graph, last)))
    return [*options[: at + 1], graph, *options[at + 2 :]]


# Each frame once.  (In microseconds: else FFmpeg complains about frames close in time.)
AS_THEY_COME = ["-fps_mode", "passthrough", "-enc_time_base", "1:1000000"]
# With one of these options the caller decides which frames come, and when.
_TIMING = re.compile(r"-(r|fpsmax|fps_mode|vsync|ss|copyts)(:.*)?")
# FFmpeg writes a line for each frame, with its time in microseconds, to its standard
# input, which is the end of a pipe of ours.
_TELL = "settb=1/1000000,metadata=add:key=azc:value={when}"
_TELL += ",metadata=print:key=azc:file='pipe\\:0':direct=1"


def timed(options: Sequence[str], rate: Fraction | None) -> list[str] | None:
    """Return the options with a filter that writes frames' times: see `facts.Times`.

    With a rate, FFmpeg's filter "fps" leaves out some frames and repeats others; then
    only the first frame has a line.  None if the options have a timing of their own.
    """
    if "copy" in options or any(map(_TIMING.fullmatch, options)):
        return None
    tell = _TELL.format(when="0")
    if rate is not None:
        tell = f"fps={rate}," + _TELL.format(when="0:enable='eq(n,0)'")
    return with_filters(options, last=tell)


def location(path: str | os.PathLike[str]) -> str:
    """Return a path or URL, written so that FFmpeg cannot mistake it."""
    if not isinstance(path, str):
        return f"file:{os.fspath(path)}"
    if ":" in path and os.path.exists(path):  # a time in a film's name, say
        return f"file:{path}"
    return f"./{path}" if path.startswith("-") and path != "-" else path


def output_arguments(
    output: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    takes_stdout: bool = False,
) -> list[str]:
    """Return a path, a URL or a list of arguments, as a list.

    ``takes_stdout``: we read FFmpeg's standard output.
    """
    if isinstance(output, (str, os.PathLike)):
        arguments = [location(output)]
    else:
        arguments = words(output, "the output is a path, a URL or")
    if not any(arguments[-1:]):
        raise ValueError("the output is empty: give a path, a URL or arguments")
    goes_to_stdout = arguments[-1] in _STANDARD_OUTPUT and "null" not in arguments
    if goes_to_stdout and not takes_stdout:
        raise ValueError(
            "FFmpeg's standard output goes nowhere: give a path, a URL or a FIFO"
        )
    return arguments


def input_arguments(source: str | os.PathLike[str] | Sequence[str]) -> list[str]:
    """Return a path, a URL or a list of arguments, as a list that ends with an input.

    (Without a "-i" FFmpeg would write to the file that it should read.)
    """
    if isinstance(source, (str, os.PathLike)):
        return ["-i", location(source)]
    arguments = words(source, "an input is a path, a URL or")
    if "-i" not in arguments[-2:-1]:
        raise ValueError(
            f"input arguments end with '-i' and a name, not {reprlib.repr(arguments)}"
        )
    return arguments
