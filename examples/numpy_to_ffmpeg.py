"""Draw with NumPy, encode with FFmpeg: one pool of frames, no copy in between.

    python numpy_to_ffmpeg.py film.mp4 600 1920x1080

Ctrl-C ends the film early; the frames drawn until then can be played.
"""

import sys
from functools import partial

import anyio
import numpy as np

import aiozerocopy as azc


def rings(width: int, height: int) -> np.ndarray:
    """How far each pixel is from the middle."""
    y, x = np.mgrid[0:height, 0:width].astype("f4")
    distance = np.hypot(x - width / 2, y - height / 2) * (256 / height)
    shades: np.ndarray = distance.astype("u1")[..., None]
    return shades


async def main(
    output: str = "film.mp4", frames: str = "300", size: str = "1280x720"
) -> None:
    width, height = map(int, size.split("x"))
    still, colours = rings(width, height), np.array((0, 85, 170), "u1")
    async with azc.ffmpeg.Writer(output, (width, height)) as film:
        with azc.FramePool(film.layout.shape, film.layout.dtype, slots=3) as pool:
            for number in range(int(frames)):
                with await pool.acquire() as frame:  # waits until a slot is free
                    phases = colours - np.uint8(number * 3 % 256)
                    np.add(still, phases, out=frame.array)
                    await film.put(frame)
    print(f"{film.frames_written} frames in {film.written_to}")


if __name__ == "__main__":
    anyio.run(partial(main, *sys.argv[1:]))
