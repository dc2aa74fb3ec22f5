"""Draws the pictures of pages/colours.md, and prints its table.

    python docs/colours.py

Each is made by real films of 1280x720.  Needs ffmpeg and NumPy.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np

from aiozerocopy import ffmpeg

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

PAGES = Path(__file__).parent / "pages"
SIZE = WIDTH, HEIGHT = 1280, 720
COLOURS = [
    *((0, 200, 0), (255, 0, 0), (0, 0, 255), (250, 200, 10)),
    *((120, 60, 200), (0, 200, 200), (230, 160, 130), (128, 128, 128)),
]
STRIP, GAP = 36, 6  # pixels


def flat() -> Array:
    """A column of each colour."""
    row = np.repeat(np.array(COLOURS, "u1"), WIDTH // len(COLOURS), axis=0)
    return np.repeat(row[None], HEIGHT, axis=0)


def rainbow() -> Array:
    """All hues from left to right; white at the top, black at the bottom."""
    hue = np.arange(WIDTH) / WIDTH * 6
    wheel = [abs((hue + turn) % 6 - 3) - 1 for turn in (0, 4, 2)]
    pure = np.stack(wheel, axis=-1).clip(0, 1)[None]
    height = (np.arange(HEIGHT) / HEIGHT * 2)[:, None, None]
    lit = np.where(height < 1, 1 - height * (1 - pure), pure * (2 - height))
    return (lit * 255).round().astype("u1")


async def by_writer(picture: Array, path: Path) -> None:
    async with ffmpeg.Writer(path, SIZE, 30, quality="high") as film:
        await film.send(picture)


def by_ffmpeg_alone(picture: Array, path: Path) -> None:
    """As most programs pipe frames to FFmpeg: without colour options."""
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{WIDTH}x{HEIGHT}", "-i", "-"]
    encode = ["-c:v", "libx264", "-crf", "17", "-pix_fmt", "yuv420p"]
    command = ["ffmpeg", "-v", "error", *raw, *encode, str(path)]
    subprocess.run(command, input=picture.tobytes(), check=True)


async def shown(path: Path) -> Array:
    """The first picture, by the film's tags or as players guess without them."""
    async with ffmpeg.Reader(path, copy=True) as film:
        return await film.receive()


def save(picture: Array, name: str) -> None:
    height, width, _ = picture.shape
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-i", "-"]
    png = ["-frames:v", "1", "-update", "1", "-pred", "mixed", str(PAGES / name)]
    command = ["ffmpeg", "-v", "error", "-y", *raw, *png]
    subprocess.run(command, input=picture.tobytes(), check=True)


def below_each_other(pictures: list[Array]) -> Array:
    gap = np.full((GAP, pictures[0].shape[1], 3), 255, "u1")
    rows = [row for picture in pictures for row in (picture, gap)]
    return np.concatenate(rows[:-1])


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        results = []
        for number, picture in enumerate((flat(), rainbow())):
            ours, theirs = (Path(folder, f"{name}{number}.mp4") for name in "ab")
            await by_writer(picture, ours)
            by_ffmpeg_alone(picture, theirs)
            results.append((picture, await shown(ours), await shown(theirs)))
    columns, hues = results
    save(below_each_other([one[:STRIP, ::2] for one in columns]), "colours-flat.png")
    drawn, right, wrong = (one[::8, ::4] for one in hues)
    off = np.abs(wrong.astype(int) - drawn)
    pictures = [drawn, right, wrong, (off * 4).clip(0, 255).astype("u1")]
    save(below_each_other(pictures), "colours-hues.png")
    at = np.arange(len(COLOURS)) * (WIDTH // len(COLOURS)) + 80
    for colours in zip(*(one[360, at].tolist() for one in columns), strict=True):
        print("|", " | ".join(", ".join(map(str, colour)) for colour in colours), "|")
    print("hues, mean and most:", off.mean().round(1), off.max())
    print("with tags:", np.abs(right.astype(int) - drawn).mean().round(2))


anyio.run(main)
