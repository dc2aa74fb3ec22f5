"""What FFmpeg is told of colours: how to make them, and what a film says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiozerocopy.frames import Colour

_MATRIX_TAG = {"bt709": "bt709", "bt601": "smpte170m", "bt2020": "bt2020nc"}


def meaning(colour: Colour) -> list[str]:
    """What red, green and blue are: for an input of RGB, and any output."""
    primaries, transfer = colour.primaries, colour.transfer
    return ["-color_primaries", primaries, "-color_trc", transfer]


def tags(colour: Colour) -> list[str]:
    """For an input of YUV frames, and an output of them."""
    levels = "pc" if colour.full_range else "tv"
    matrix = _MATRIX_TAG[colour.matrix]
    return [*meaning(colour), "-colorspace", matrix, "-color_range", levels]


def filters(colour: Colour, *, for_yuv: bool, of_grey: bool = False) -> list[str]:
    """By these FFmpeg makes YUV of RGB or grey, if that is what its encoder wants.

    Some encoders write what the frames say of themselves, so they are told too.  Grey
    needs the accurate way, or it comes back up to 3 darker.
    """
    levels = "pc" if colour.full_range else "tv"
    told = f"color_primaries={colour.primaries}:color_trc={colour.transfer}"
    if for_yuv:
        told += f":colorspace={_MATRIX_TAG[colour.matrix]}:range={levels}"
    how = ":flags=bicubic+accurate_rnd" if of_grey else ""
    return [
        f"scale=out_color_matrix={colour.matrix}:out_range={levels}{how}",
        f"setparams={told}",
    ]
