"""Progress bars: rich's where it is installed and somebody looks, else a line."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class Tick(Protocol):
    """One frame more; ``lane`` is how it went."""

    def __call__(self, lane: str = "") -> None: ...


def _quiet(lane: str = "") -> None:
    """Nobody looks."""


@contextmanager
def frames_bar(title: str, frames: int, frame_bytes: int) -> Iterator[Tick]:
    """Shows frames, frames a second, bytes a second and the lane."""
    try:
        from rich import progress
    except ModuleNotFoundError:
        print(title, flush=True)
        yield _quiet
        return
    if not sys.stdout.isatty():
        print(title, flush=True)
        yield _quiet
        return
    columns = (
        progress.TextColumn("{task.description:<38}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[rate]}"),
        progress.TextColumn("{task.fields[lane]}"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns) as bars:
        bar = bars.add_task(title, total=frames, rate="", lane="")

        def tick(lane: str = "") -> None:
            speed = bars.tasks[bar].speed or 0.0
            rate = f"{speed:,.0f} fps {speed * frame_bytes / 1e9:.2f} GB/s"
            bars.update(bar, advance=1, rate=rate, lane=lane)

        yield tick
