"""Show a program's frames in any browser: run it, and open the address.

    python examples/web_viewer.py --port 8000

Needs numpy, h11 and wsproto; simplejpeg or Pillow for JPEG, and PyAV or ffmpeg for
H.264.
"""

from __future__ import annotations

import argparse
import itertools
import math
from typing import TYPE_CHECKING

import anyio
import numpy as np

import aiozerocopy as azc
from aiozerocopy import web
from aiozerocopy.broadcast import Broadcast

if TYPE_CHECKING:
    from numpy.typing import NDArray

HEIGHT, WIDTH = 540, 960


class Sea:
    """A sun that rises and sets over waves."""

    def __init__(self) -> None:
        self._y, self._x = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float32)
        height = self._y[:, :1] / HEIGHT
        colors = np.array([[18, 24, 62], [122, 66, 120], [255, 150, 92]], np.float32)
        at = [0.0, 0.35, 0.62]
        sky = [np.interp(height[:, 0], at, color) for color in colors.T]
        self._sky = np.stack(sky, axis=-1)[:, None, :]

    def draw(self, frame: NDArray[np.uint8], seconds: float) -> None:
        horizon = int(HEIGHT * 0.62)
        sun_x = WIDTH * (0.5 + 0.25 * math.sin(seconds / 4))
        sun_y = HEIGHT * (0.42 - 0.12 * math.cos(seconds / 4))
        y, x = self._y[:horizon], self._x[:horizon]
        distance = np.hypot(x - sun_x, y - sun_y)
        glow = np.exp(-distance / 130)[:, :, None] * np.array([150, 95, 40])
        sun = np.clip(62 - distance, 0, 1)[:, :, None] * np.array([255, 220, 150])
        frame[:horizon] = np.clip(self._sky[:horizon] + glow + sun, 0, 255)
        depth = (self._y[horizon:] - horizon + 4) / 40
        wave = np.sin(self._x[horizon:] / (9 * depth) + 3 * np.sin(seconds + 9 / depth))
        path = np.exp(-np.abs(self._x[horizon:] - sun_x) / (60 + 60 * depth))
        light = (0.25 + 0.75 * path) * (0.55 + 0.45 * wave)
        water = np.array([20, 38, 84]) + light[:, :, None] * np.array([190, 110, 70])
        frame[horizon:] = np.clip(water, 0, 255)


async def main(port: int, rate: float, frames: int | None) -> None:
    sea = Sea()
    numbers = range(frames) if frames else itertools.count()
    async with (
        Broadcast() as hub,
        web.serve(hub, port=port, title="Sunset at sea") as server,
        azc.FramePool((HEIGHT, WIDTH, 3), "uint8", slots=4) as pool,
    ):
        print(f"Watch at {server.url}", flush=True)
        begin = anyio.current_time()
        for number in numbers:
            with await pool.acquire() as frame:
                sea.draw(frame.array, number / rate)
                await hub.publish(frame, pixel_format="rgb24")
            await anyio.sleep_until(begin + (number + 1) / rate)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--rate", type=float, default=30, help="frames a second")
    parser.add_argument("--frames", type=int, help="how many (else until Ctrl-C)")
    options = parser.parse_args()
    anyio.run(main, options.port, options.rate, options.frames)
