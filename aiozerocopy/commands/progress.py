"""Progress bars: rich's where it is installed and somebody looks, else lines."""

from __future__ import annotations

import importlib.util
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDE = 80  # columns of a terminal, for all that there is to show
EVERY = 5.0  # seconds between two lines


class Tick(Protocol):
    """One frame more; ``lane`` is how it went."""

    def __call__(self, lane: str = "") -> None: ...


@contextmanager
def frames_bar(title: str, frames: int, frame_bytes: int) -> Iterator[Tick]:
    """Shows frames, frames a second and, where there is room, bytes and the lane."""
    if not sys.stdout.isatty() or not importlib.util.find_spec("rich"):
        print(title, flush=True)
        yield _Lines(title, frames)
        return
    from rich import console, progress

    room = console.Console().width
    has_room = room >= WIDE
    columns: list[str | progress.ProgressColumn] = ["{task.description}"]
    if has_room:
        columns += [
            progress.BarColumn(min(40, room - 72)),
            progress.MofNCompleteColumn(),
            "{task.fields[rate]} {task.fields[lane]}",
            progress.TimeRemainingColumn(),
        ]
    else:
        columns += [progress.BarColumn(8), progress.TaskProgressColumn()]
        columns += ["{task.fields[rate]}"]
    with progress.Progress(*columns) as bars:
        name = shortened(title, 24 if has_room else 12)
        name = name.replace("[", "\\[")  # rich has brackets for its markup
        bar = bars.add_task(name, total=frames, rate="", lane="")

        def tick(lane: str = "") -> None:
            speed = bars.tasks[bar].speed or 0.0
            rate = f"{speed:,.0f} fps"
            if has_room:
                rate += f" {speed * frame_bytes / 1e9:.2f} GB/s"
            bars.update(bar, advance=1, rate=rate, lane=lane)

        yield tick


class _Lines:
    """A line now and then, for a log."""

    def __init__(self, title: str, frames: int) -> None:
        self._title = title
        self._frames = frames
        self._drawn = 0
        self._begun = self._said = time.monotonic()

    def __call__(self, lane: str = "") -> None:
        self._drawn += 1
        now = time.monotonic()
        if now - self._said < EVERY:
            return
        self._said = now
        rate = self._drawn / (now - self._begun)
        drawn = f"{self._drawn:,} of {counted(self._frames)}"
        print(f"{self._title}: {drawn}, {rate:,.1f} fps", flush=True)


def counted(frames: int) -> str:
    """``1 frame``, ``2,000 frames``."""
    return f"{frames:,} frame{'s' * (frames != 1)}"


def shortened(title: str, most: int) -> str:
    """The end of it, which tells films apart."""
    return title if len(title) <= most else f"…{title[1 - most :]}"
