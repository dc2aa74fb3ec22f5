"""Decode with one FFmpeg, change the pictures with NumPy, encode with another.

    python decode_process_encode.py in.mp4 out.mp4

The frames arrive in a pool, are changed there, and are sent from there.  The sound is
copied from the first file.  Without arguments it makes a film of a test pattern.
"""

from __future__ import annotations

import argparse

import anyio
import numpy as np

from aiozerocopy import ffmpeg

PATTERN = ["-f", "lavfi", "-i", "testsrc2=size=640x360:rate=30:duration=2"]


def process(picture: np.ndarray) -> None:
    """Invert the left half, in place."""
    left = picture[:, : picture.shape[1] // 2]
    np.invert(left, out=left)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?")
    parser.add_argument("output", nargs="?", default="film.mp4")
    parser.add_argument("--fps", help="for a source whose frames come at no fixed rate")
    options = parser.parse_args()

    arguments = []
    if options.source:  # copy its sound, if it has any ("?")
        arguments = ["-map", "0:v", "-map", "1:a?", "-c:a", "copy"]

    source = options.source or PATTERN
    async with ffmpeg.Reader(source, fps=options.fps, slots=4) as before:
        after = ffmpeg.Writer(
            options.output,
            before.size,
            before.fps or 30,
            audio=options.source,
            options=arguments,
        )
        async with after:
            async for frame in before:
                with frame:
                    process(frame.array)
                    await after.put(frame)
    print(f"{after.status.frames} frames of {before.size} in {options.output}")


if __name__ == "__main__":
    anyio.run(main)
