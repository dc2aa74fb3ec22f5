"""A real X server for tests, and what is drawn there."""

import contextlib
import shutil
from collections.abc import Iterator, Sequence

import pytest
import xvfb
from xvfb import Painter as Painter
from xvfb import Server as Server

SIZE = WIDTH, HEIGHT = 160, 120
COLOURS = (0xFF0000, 0x00FF00, 0x0000FF, 0xFFFFFF, 0x7840C8, 0xFAC80A)


@contextlib.contextmanager
def x_server(
    *arguments: str, size: tuple[int, int] = SIZE, depth: int = 24
) -> Iterator[Server]:
    """A small Xvfb, where there is one."""
    if shutil.which("Xvfb") is None:
        pytest.skip("needs Xvfb")
    with xvfb.x_server(*arguments, size=size, depth=depth) as server:
        yield server


def as_bytes(colour: int, order: str = "bgr") -> Sequence[int]:
    """The bytes of a pixel, but for the fourth."""
    return [colour >> 8 * (2 - "rgb".index(letter)) & 0xFF for letter in order]
