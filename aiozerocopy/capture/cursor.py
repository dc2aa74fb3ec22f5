"""The mouse's pointer, drawn over a picture."""

from __future__ import annotations

from typing import Any

from aiozerocopy._core import extras
from aiozerocopy.capture.x11 import Cursor, Rectangle

FORMATS = ("bgr0", "rgb0", "0rgb", "0bgr")


def draw(
    cursor: Cursor, picture: Any, region: Rectangle, pix_fmt: str
) -> Rectangle | None:
    """Draw it over the picture of a region, and return where that was.

    The picture is an array of height, width and 4 bytes.
    """
    with extras.optional("a picture with the cursor", "capture"):
        import numpy

    shown = cursor.place.within(region)
    if shown is None:
        return None
    x, y, width, height = shown.seen_from(region)
    left, top, _, _ = shown.seen_from(cursor.place)
    size = (cursor.place.height, cursor.place.width)
    pixels = numpy.frombuffer(cursor.pixels, "u4").reshape(size)
    part = pixels[top : top + height, left : left + width, None]
    order = [8 * "bgr".index(letter) if letter != "0" else 24 for letter in pix_fmt]
    colours = part >> numpy.array(order, "u4") & 0xFF  # they are multiplied by alpha
    under = picture[y : y + height, x : x + width]
    under[:] = colours + (under * (255 - (part >> 24)) + 127) // 255
    return Rectangle(x, y, width, height)
