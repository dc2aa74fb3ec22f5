"""What a user says about a video, checked, and said again as FFmpeg's arguments."""

from __future__ import annotations

import os
from fractions import Fraction
from typing import TYPE_CHECKING

from aiozerocopy.ffmpeg.formats import Audio

if TYPE_CHECKING:
    from collections.abc import Sequence

# All is known of a raw input: no need to take seconds of it before the next is opened.
AT_ONCE = ["-probesize", "32"]
_STANDARD_OUTPUT = ("-", "pipe:", "pipe:1")


def checked_size(size: tuple[int, int]) -> tuple[int, int]:
    """Width and height.

    Raises:
        ValueError: a picture without pixels.
    """
    width, height = map(int, size)
    if width < 1 or height < 1:
        raise ValueError(f"a frame of {width}x{height} has no pixels")
    return width, height


def checked_rate(fps: float | Fraction | str) -> Fraction:
    """Frames a second.

    Raises:
        ValueError: no number, or not a positive one.
    """
    try:
        rate = Fraction(fps).limit_denominator(1_000_000)
    except (ValueError, OverflowError, ZeroDivisionError):
        raise ValueError(f"fps is a number or a fraction, not {fps!r}") from None
    if rate <= 0:
        raise ValueError(f"fps must be positive, not {fps}")
    return rate


def location(path: str | os.PathLike[str]) -> str:
    """A path or URL, so that FFmpeg takes it for nothing else."""
    if not isinstance(path, str):
        return f"file:{os.fspath(path)}"
    return f"./{path}" if path.startswith("-") and path != "-" else path


def output_arguments(
    output: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
) -> list[str]:
    """A path, a URL or a list of arguments, as a list.

    Raises:
        ValueError: there is nothing in it, or it is FFmpeg's standard output.
    """
    if isinstance(output, (str, os.PathLike)):
        arguments = [location(output)]
    else:
        arguments = [os.fspath(argument) for argument in output]
    if not arguments:
        raise ValueError("the output is empty")
    if arguments[-1] in _STANDARD_OUTPUT and "null" not in arguments:
        raise ValueError(
            "FFmpeg's standard output goes nowhere: give a path, a URL or a FIFO"
        )
    return arguments


def input_arguments(source: str | os.PathLike[str] | Sequence[str]) -> list[str]:
    """A path, a URL or a list of arguments that ends with an input, as a list."""
    if isinstance(source, (str, os.PathLike)):
        return ["-i", location(source)]
    return [os.fspath(argument) for argument in source]


def audio_arguments(
    audio: Audio | str | os.PathLike[str] | Sequence[str] | None, pipe: str
) -> list[str]:
    """The second input, where there is one."""
    if audio is None:
        return []
    if not isinstance(audio, Audio):
        return input_arguments(audio)
    rate, channels = str(audio.rate), str(audio.channels)
    raw = ["-f", audio.format, "-ar", rate, "-ac", channels]
    return [*AT_ONCE, *raw, "-i", pipe]
