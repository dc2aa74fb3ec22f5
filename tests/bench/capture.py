"""The screen of an X server as pictures in memory, beside python-mss.

All contenders take pictures of the same Xvfb, one after the other, as fast as they can;
none does anything with them.  Before each picture a window moves, so that there is
something new on the screen; that is the same work for all, and the X server has done it
before the picture is asked for.  The X server's CPU time counts, too, since it is the
server that copies: in the table it is the receiver's.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.processes import SUPPORT, Lab, worker
from bench.race import Contender, Lacking, Race, Run, Work, WrongBytes, duels, need
from bench.worker import Job

SIZE = (1920, 1080)
WARM = 8  # pictures: every slot was written to once
CHECKED = 10  # pictures, in the round that checks
BACKGROUND, WINDOW = 0x204060, 0xFAC80A


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    need("numpy")
    more: Any = {"unit": "pictures", "both": True}
    mss, what = {"mss": "python-mss"}, "pictures of a 1080p screen"
    yield Race(
        "capture",
        "1080p screen, a window moves",
        Work(SIZE[0] * SIZE[1] * 4, CHECKED if quick else 120, WARM, buffers=1),
        [
            Contender(name, partial(take_pictures, lab, way), needs)
            for name, way in GIVEN.items()
            for needs in [["mss"] if name == "mss" else []]
        ],
        duels("X11Screen", mss, what, **more)
        + duels("X11Screen, damage", mss, f"{what}, by damage", **more),
    )


def take_pictures(lab: Lab, way: Callable[..., Any], work: Work, check: bool) -> Run:
    if SUPPORT not in sys.path:
        sys.path.append(SUPPORT)
    from xvfb import x_server

    try:
        server = lab.once(x_server, size=SIZE)
    except FileNotFoundError as error:
        raise Lacking(str(error)) from None
    if check:
        work = replace(work, messages=min(work.messages, CHECKED))
    told = {"display": server.name, "server": server.process.pid, "check": check}
    sender = lab.reports(worker(way, **told, **work.told))["sender"]
    return Run(sender["seconds"], sender["cpu"], sender["server_cpu"])


# ---- what the contenders do ----------------------------------------------------------


class Desk:
    """What is on the screen: a window that moves."""

    def __init__(self, job: Job) -> None:
        from xvfb import Painter

        self._job = job
        self._painter = Painter(job.display)
        width, height = SIZE
        self._painter.window(BACKGROUND, 0, 0, width, height)
        self._window_size = width // 4, height // 4
        self._window = self._painter.window(WINDOW, 0, 0, *self._window_size)
        self._at = 0, 0
        self._server_cpu = 0.0

    def draw(self) -> Iterator[None]:
        """Move the window once for each picture, and measure after the warm-up."""
        (width, height), (wide, high) = SIZE, self._window_size
        for numbers in self._job.numbers():
            self._server_cpu = cpu_of(self._job.server)
            for number in numbers:
                self._at = 8 * number % (width - wide), 4 * number % (height - high)
                self._painter.move(self._window, *self._at)
                yield
        self._job.end()
        self._server_cpu = cpu_of(self._job.server) - self._server_cpu
        self._painter.close()

    def look(self, picture: Any) -> None:
        """Compare every pixel, in the round that checks."""
        if not self._job.check:
            return
        import numpy as np

        (x, y), (wide, high) = self._at, self._window_size
        expected = np.full(SIZE[::-1], BACKGROUND, "u4")
        expected[y : y + high, x : x + wide] = WINDOW
        given = np.frombuffer(picture, "u4").reshape(expected.shape) & 0xFFFFFF
        if not (given == expected).all():
            raise WrongBytes(f"{(given != expected).sum():,} pixels are others")

    def told(self) -> dict[str, Any]:
        return {"server_cpu": self._server_cpu}


def cpu_of(process: int) -> float:
    """CPU seconds so far of another process, whose one thread does all the work."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9


async def grab(job: Job) -> dict[str, Any]:
    from aiozerocopy.capture import X11Screen

    desk = Desk(job)
    async with X11Screen(job.display) as screen:
        for _ in desk.draw():
            with await screen.grab() as picture:
                desk.look(picture.view)
    return desk.told()


async def damage(job: Job) -> dict[str, Any]:
    from aiozerocopy.capture import X11Screen

    desk = Desk(job)
    async with X11Screen(job.display) as screen:
        pictures = screen.frames(damage=True)
        for _ in desk.draw():
            with await anext(pictures) as picture:
                desk.look(picture.view)
    return desk.told()


async def mss(job: Job) -> dict[str, Any]:
    """As its documentation has it; ``raw`` is what it has read."""
    from mss import mss as open_mss

    desk = Desk(job)
    with open_mss(display=job.display) as screen:
        everything = screen.monitors[0]
        for _ in desk.draw():
            desk.look(screen.grab(everything).raw)
    return desk.told()


GIVEN = {"X11Screen": grab, "X11Screen, damage": damage, "mss": mss}
