"""Pictures of one colour, whose values are known exactly."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from aiozerocopy.frames import to_nv12, to_yuv420p

Array = NDArray[np.uint8]

DRAWN = [
    *((0, 200, 0), (255, 0, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)),
    *((120, 60, 200), (128, 128, 128), (250, 200, 10)),
]


def drawn(colour: Sequence[int], size: tuple[int, int], pix_fmt: str) -> Array:
    """Return a picture of one colour as an array of that format."""
    rgb = np.full((size[1], size[0], 3), colour, np.uint8)
    if pix_fmt == "yuv420p":
        made: Array = to_yuv420p(rgb)
    elif pix_fmt == "nv12":
        made = to_nv12(rgb)
    else:
        made = rgb if pix_fmt.startswith("rgb") else rgb[..., ::-1]
        if pix_fmt.endswith(("a", "0")):
            made = np.dstack([made, np.full(made.shape[:2], 255, np.uint8)])
    return np.ascontiguousarray(made)
