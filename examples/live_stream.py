"""Stream live to an RTMP or SRT URL, picture and sound, until Ctrl-C.

    python live_stream.py rtmp://localhost/live/stream
    python live_stream.py "srt://localhost:9000?mode=caller" --seconds 60

To try it without a server, watch the second stream by
ffplay -f mpegts "srt://localhost:9000?mode=listener", or write to a path that ends in
.flv or .ts, which takes as long as a live stream.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
from typing import TYPE_CHECKING

import anyio
import numpy as np

from aiozerocopy import ffmpeg

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

WIDTH, HEIGHT, FPS, RATE = 640, 360, 30, 48_000
SAMPLES = RATE // FPS

CODECS = [
    *("-c:v", "libx264", "-preset", "veryfast", "-tune", "zerolatency"),
    *("-pix_fmt", "yuv420p", "-g", str(2 * FPS), "-c:a", "aac"),
]


def container(url: str) -> list[str]:
    """FFmpeg's output arguments for a server at this URL."""
    is_flash = url.startswith("rtmp") or url.endswith(".flv")
    return ["-f", "flv" if is_flash else "mpegts", url]


def draw(picture: np.ndarray, number: int) -> None:
    """A bar that crosses a blue picture in two seconds."""
    picture[:] = (20, 30, 80)
    left = number * (WIDTH // (2 * FPS)) % WIDTH
    picture[:, left : left + 20] = 255


def tone(number: int) -> np.ndarray:
    """A quiet 440 Hz for the time of one frame, on both channels."""
    times = (np.arange(SAMPLES) + number * SAMPLES) / RATE
    wave = (np.sin(2 * np.pi * 440 * times) * 1000).astype("i2")
    return np.repeat(wave[:, None], 2, axis=1)


async def send_pictures(video: ffmpeg.Writer, numbers: Iterable[int]) -> None:
    picture = np.empty((HEIGHT, WIDTH, 3), "u1")
    start = anyio.current_time()
    for number in numbers:
        await anyio.sleep_until(start + number / FPS)  # live, not faster
        draw(picture, number)
        await video.send(picture)  # then the picture is ours again
        if number % FPS == 0:
            kbits = (video.status.bitrate or 0) / 1000
            print(f"\r{number // FPS} s, {kbits:.0f} kbit/s", end="", flush=True)


async def send_sound(video: ffmpeg.Writer, numbers: Iterable[int]) -> None:
    start = anyio.current_time()
    for number in numbers:
        await anyio.sleep_until(start + number / FPS)
        await video.send_audio(tone(number))
    await video.close_audio()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=math.inf)
    options = parser.parse_args()
    count = options.seconds * FPS

    def numbers() -> Iterator[int]:
        return itertools.takewhile(lambda number: number < count, itertools.count())

    video = ffmpeg.Writer(
        container(options.url),
        (WIDTH, HEIGHT),
        FPS,
        audio=ffmpeg.Audio("s16le", RATE, channels=2),
        options=CODECS,
        timeout=10,  # a server that takes nothing for that long is gone
    )
    # Two tasks, because FFmpeg waits now for pictures, now for sound.
    async with video, anyio.create_task_group() as tasks:
        tasks.start_soon(send_sound, video, numbers())
        await send_pictures(video, numbers())
    print(f"\n{video.status.frames} frames sent")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        anyio.run(main)
