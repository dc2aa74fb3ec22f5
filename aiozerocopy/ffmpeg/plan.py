"""The plan of a film: what we convert, what FFmpeg is told, and in which words."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aiozerocopy.ffmpeg import colours, encoders
from aiozerocopy.ffmpeg.encoders import RGB
from aiozerocopy.frames import PIXELS, PLANES, Conversion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozerocopy.ffmpeg.encoders import Choice
    from aiozerocopy.frames import Colour

_FILTERING = ("-vf", "-filter", "-filter:v", "-filter:v:0", "-filter_complex", "-lavfi")
_GREY = ("gray", "mono", "ya", "xyz")
# FFmpeg's formats that take frames in whatever pixel format.
_RAW = ("null", "rawvideo", "framecrc", "framehash", "framemd5")
# Encoders without odd widths and heights, where the picture is 4:2:0.
_PAD = "pad=ceil(iw/2)*2:ceil(ih/2)*2"


@dataclass(frozen=True)
class Plan:
    """How frames become a film."""

    pix_fmt: str  # of the frames that FFmpeg gets
    before: list[str]  # of its inputs
    of_input: list[str]
    of_output: list[str]
    conversion: Conversion | None = None  # what we do ourselves
    is_padded: bool = False


def plan(
    pix_fmt: str,
    size: tuple[int, int],
    choice: Choice,
    options: Sequence[str],
    colour: Colour,
    *,
    ours: bool,
    ends_as_yuv: bool = False,
) -> Plan:
    """How frames of this format become what the encoder wants.

    ``options`` are the user's own, which win.  Frames that end as 4:2:0 are converted
    by us, unless ``ours`` is false or the user has filters, which may want all of them.
    ``ends_as_yuv`` tells of an encoder whose format FFmpeg chooses.
    """
    target = _last(options, "-pix_fmt") or choice.pix_fmt
    is_raw = target is None and _last(options, "-f") in _RAW
    if is_raw or encoders.named_in(options) == "copy":  # frames stay as they are
        return Plan(pix_fmt, [], [], list(options))
    filtered = any(word in _FILTERING for word in options)
    if target is not None and target.startswith("yuvj"):  # JPEG has but one meaning
        colour = replace(colour, matrix="bt601", full_range=True)
    if pix_fmt.startswith("yuvj"):  # older FFmpegs believe the name, and no tag
        pix_fmt = pix_fmt.replace("yuvj", "yuv")
        colour = replace(colour, full_range=True)
    is_rgb = pix_fmt.startswith(RGB)
    is_grey = pix_fmt.startswith(_GREY)
    if is_grey and choice.is_lossless:  # fewer levels would be a loss
        colour = replace(colour, full_range=True)
    conversion = None
    if ours and pix_fmt in PIXELS and target in PLANES and not filtered:
        conversion = Conversion(pix_fmt, target, size, colour)
        pix_fmt = target
    for_yuv = ends_as_yuv if target is None else _is_yuv(target)
    is_padded = choice.codec is not None and not filtered and _needs_even(target, size)
    filters: list[str] = []
    if is_rgb and conversion is None and not (target or "").startswith(RGB):
        filters += colours.filters(colour, for_yuv=for_yuv)
    elif is_grey and for_yuv:
        filters += colours.filters(colour, for_yuv=True, of_grey=True)
    if is_padded:
        filters.append(_PAD)
    if choice.filters:
        filters.append(choice.filters)
    of_output = _encoder(choice, [] if filtered else filters)
    of_input: list[str] = []
    if _is_yuv(pix_fmt):
        of_input = colours.tags(colour)
    elif is_rgb:  # newer FFmpegs write what the frames say, and not the options
        of_input = colours.meaning(colour)
    if for_yuv:
        of_output += colours.tags(colour)
    elif is_rgb:
        of_output += colours.meaning(colour)
    return Plan(
        pix_fmt,
        list(choice.before),
        of_input,
        [*of_output, *options],
        conversion,
        is_padded,
    )


def _encoder(choice: Choice, filters: Sequence[str]) -> list[str]:
    arguments: list[str] = []
    if filters:
        arguments += ["-vf", ",".join(filters)]
    if choice.codec is not None:
        arguments += ["-c:v", choice.codec, *choice.arguments]
    if choice.pix_fmt is not None and not choice.filters:
        arguments += ["-pix_fmt", choice.pix_fmt]
    return arguments


def _needs_even(pix_fmt: str | None, size: tuple[int, int]) -> bool:
    """Is it 4:2:0 of an odd size?"""
    subsampled = pix_fmt is not None and ("420" in pix_fmt or pix_fmt == "nv12")
    return subsampled and any(side % 2 for side in size)


def _is_yuv(pix_fmt: str) -> bool:
    return not pix_fmt.startswith((*RGB, *_GREY))


def _last(options: Sequence[str], name: str) -> str | None:
    """The value of an option; of two, the last wins."""
    found = None
    for option, value in itertools.pairwise(options):
        if option == name:
            found = value
    return found
