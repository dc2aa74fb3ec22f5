"""Draw with NumPy, encode with FFmpeg: one pool of frames, no copy in between.

    python numpy_to_ffmpeg.py film.mp4 --size 1920x1080 --frames 600

Ctrl-C ends the film early, and what was drawn until then can be played.
"""

from __future__ import annotations

import argparse
import time

import anyio
import numpy as np

import aiozerocopy as azc
from aiozerocopy import ffmpeg


class Waves:
    """Rings that run outwards, in three colours."""

    def __init__(self, width: int, height: int) -> None:
        y, x = np.mgrid[0:height, 0:width].astype("f4")
        distance = np.hypot(x - width / 2, y - height / 2) * (256 / height)
        self._rings = distance.astype("u1")[..., None]
        self._phases = np.array((0, 85, 170), "u1")

    def draw(self, picture: np.ndarray, number: int) -> None:
        """Every byte of the picture, straight into the frame."""
        np.add(self._rings, self._phases - np.uint8(number * 3 % 256), out=picture)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", nargs="?", default="film.mp4")
    parser.add_argument("--size", default="1280x720")
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--fps", type=int, default=60)
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))

    scene = Waves(width, height)
    start = time.perf_counter()
    async with ffmpeg.Writer(options.output, (width, height), options.fps) as video:
        with azc.FramePool(video.layout.shape, video.layout.dtype, slots=3) as pool:
            for number in range(options.frames):
                with await pool.acquire() as frame:  # waits until FFmpeg has read one
                    scene.draw(frame.array, number)
                    await video.put(frame)
    rate = options.frames / (time.perf_counter() - start)
    print(f"{video.status.frames} frames in {options.output}, {rate:.0f} a second")


if __name__ == "__main__":
    anyio.run(main)
