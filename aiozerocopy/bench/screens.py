"""What the contestants of `capture` do: one process each, which this module runs.

Before each picture a window moves, so that there is something new on the screen; that
is the same work for all, and the X server has done it before the picture is asked for.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiozerocopy.bench.frames import cpu
from aiozerocopy.bench.network import run_on, tell
from aiozerocopy.bench.racing import WrongBytes
from aiozerocopy.bench.xvfb import Painter

if TYPE_CHECKING:
    from collections.abc import Callable

BACKGROUND, WINDOW = 0x204060, 0xFAC80A


@dataclass
class Job:
    """What a process is told."""

    way: str
    loop: str
    display: str
    server: int  # the X server's process
    size: tuple[int, int]
    warm: int
    pictures: int
    check: bool

    def __post_init__(self) -> None:
        width, height = self.size
        self._painter = Painter(self.display)
        self._painter.window(BACKGROUND, 0, 0, width, height)
        self.window_size: tuple[int, int] = width // 4, height // 4
        self._window = self._painter.window(WINDOW, 0, 0, *self.window_size)
        self.at: tuple[int, int] = 0, 0
        self._started = self._cpu = self._server_cpu = 0.0

    def draw(self, number: int) -> None:
        """Move the window; and begin to measure after the warm-up."""
        if number == self.warm:
            self._started, self._cpu = time.perf_counter(), cpu()
            self._server_cpu = cpu_of(self.server)
        width, height = self.size
        wide, high = self.window_size
        self.at = 8 * number % (width - wide), 4 * number % (height - high)
        self._painter.move(self._window, *self.at)

    def look(self, picture: Any) -> None:
        """Compare every pixel, in the round that checks."""
        if not self.check:
            return
        import numpy as np

        (x, y), (wide, high) = self.at, self.window_size
        expected = np.full(self.size[::-1], BACKGROUND, "u4")
        expected[y : y + high, x : x + wide] = WINDOW
        given = np.frombuffer(picture, "u4").reshape(expected.shape) & 0xFFFFFF
        if not (given == expected).all():
            raise WrongBytes(f"{self.way}: {(given != expected).sum():,} pixels")

    def report(self) -> None:
        tell(
            {
                "who": "sender",
                "seconds": time.perf_counter() - self._started,
                "cpu": cpu() - self._cpu,
                "server_cpu": cpu_of(self.server) - self._server_cpu,
            }
        )
        self.close()

    def close(self) -> None:
        self._painter.close()


def cpu_of(process: int) -> float:
    """CPU seconds so far of another process, whose one thread does all the work."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9


async def grab(job: Job) -> None:
    from aiozerocopy.capture import X11Screen

    async with X11Screen(job.display) as screen:
        for number in range(job.warm + job.pictures):
            job.draw(number)
            with await screen.grab() as picture:
                job.look(picture.view)
    job.report()


async def damage(job: Job) -> None:
    from aiozerocopy.capture import X11Screen

    async with X11Screen(job.display) as screen:
        pictures = screen.frames(damage=True)
        for number in range(job.warm + job.pictures):
            job.draw(number)
            with await anext(pictures) as picture:
                job.look(picture.view)
    job.report()


async def mss(job: Job) -> None:
    """As its documentation has it; ``raw`` is what it has read."""
    from mss import mss as open_mss

    with open_mss(display=job.display) as screen:
        everything = screen.monitors[0]
        for number in range(job.warm + job.pictures):
            job.draw(number)
            job.look(screen.grab(everything).raw)
    job.report()


async def mss_in_thread(job: Job) -> None:
    """As an asyncio program has to use it, so that its loop goes on."""
    from mss import mss as open_mss

    loop = asyncio.get_running_loop()
    with open_mss(display=job.display) as screen:
        everything = screen.monitors[0]
        for number in range(job.warm + job.pictures):
            job.draw(number)
            shot = await loop.run_in_executor(None, screen.grab, everything)
            job.look(shot.raw)
    job.report()


WAYS: dict[str, Callable[[Job], Any]] = {
    "grab": grab,
    "damage": damage,
    "mss": mss,
    "mss_in_thread": mss_in_thread,
}

if __name__ == "__main__":
    job: Job = Job(**json.loads(sys.argv[1]))
    run_on(job.loop, WAYS[job.way](job))
