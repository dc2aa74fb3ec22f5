"""Record the screen into a film: python screen_recorder.py screen.mp4 --seconds 10

The X server copies each picture straight into a slot of a pool, and from there it goes
to FFmpeg.  A late picture is also sent for each time that was missed, so the film keeps
its pace.
"""

from __future__ import annotations

import argparse

import anyio

import aiozerocopy as azc


async def record(path: str, display: str | None, rate: int, seconds: float) -> int:
    """Record for ``seconds``; return how many frames the film has."""
    wanted = max(1, round(rate * seconds))
    async with azc.capture.X11Screen(display) as screen:
        film = azc.ffmpeg.Writer(path, screen.size, rate, screen.pix_fmt)
        async with film:
            written = 0
            async for picture in screen.frames(rate):
                with picture:
                    while written < min(picture.number + 1, wanted):
                        await film.send(picture)
                        written += 1
                if written == wanted:
                    break
    return film.frames_written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", help="the film to write, such as screen.mp4")
    parser.add_argument("--display", help="an X display, such as :0 (default: DISPLAY)")
    parser.add_argument("--rate", type=int, default=30, help="frames a second")
    parser.add_argument("--seconds", type=float, default=10)
    given = parser.parse_args()
    frames = anyio.run(record, given.path, given.display, given.rate, given.seconds)
    print(f"{frames} frames in {given.path}")


if __name__ == "__main__":
    main()
