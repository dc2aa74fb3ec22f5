"""A render loop in a plain thread, encoded with FFmpeg: no event loop anywhere.

    python render_thread.py film.mp4 --size 1920x1080 --frames 600

Ctrl-C ends the film early, and what was drawn until then can be played.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import aiozerocopy as azc


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", nargs="?", default="film.mp4")
    parser.add_argument("--size", default="1280x720")
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--fps", type=int, default=60)
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))

    y, x = np.mgrid[0:height, 0:width].astype("u1")
    picture = np.zeros((height, width, 3), "u1")
    start = time.perf_counter()
    with azc.sync.ffmpeg.Writer(options.output, (width, height), options.fps) as film:
        for number in range(options.frames):
            picture[..., 0] = x + np.uint8(number % 256)
            picture[..., 1] = y - np.uint8(number % 256)
            film.send(picture)  # when this returns, the picture may be drawn again
    rate = options.frames / (time.perf_counter() - start)
    print(f"{film.frames_written} frames in {film.written_to}, {rate:.0f} a second")


if __name__ == "__main__":
    main()
