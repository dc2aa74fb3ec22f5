"""A render loop in a plain thread, encoded with FFmpeg: no event loop anywhere.

    python render_thread.py film.mp4 600 1920x1080

Ctrl-C ends the film early; the frames drawn until then can be played.
"""

import sys

import numpy as np

import aiozerocopy as azc


def main(output: str = "film.mp4", frames: str = "300", size: str = "1280x720") -> None:
    width, height = map(int, size.split("x"))
    y, x = np.mgrid[0:height, 0:width].astype("u1")
    picture = np.zeros((height, width, 3), "u1")
    with azc.sync.ffmpeg.Writer(output, (width, height)) as film:
        for number in range(int(frames)):
            picture[..., 0] = x + np.uint8(number % 256)
            picture[..., 1] = y - np.uint8(number % 256)
            film.send(picture)  # when this returns, the picture may be drawn again
    print(f"{film.frames_written} frames in {film.written_to}")


if __name__ == "__main__":
    main(*sys.argv[1:])
