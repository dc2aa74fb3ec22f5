"""Progress bars: rich's where it is installed and somebody looks, else lines."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiozerocopy.bench.racing import Race

    Step = Callable[[int, Race, str], None]  # which one begins what


USUAL = 600.0  # seconds for all races, as long as none has shown how long it takes
WIDE = 80  # columns of a terminal, for all that there is to show


class Tick(Protocol):
    """One frame more; ``lane`` is how it went."""

    def __call__(self, lane: str = "") -> None: ...


def _quiet(lane: str = "") -> None:
    """Nobody looks."""


@contextmanager
def frames_bar(title: str, frames: int, frame_bytes: int) -> Iterator[Tick]:
    """Shows frames, frames a second and, where there is room, bytes and the lane."""
    try:
        from rich import console, progress
    except ModuleNotFoundError:
        print(title, flush=True)
        yield _quiet
        return
    if not sys.stdout.isatty():
        print(title, flush=True)
        yield _quiet
        return
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
        name = escaped(shortened(title, 24 if has_room else 12))
        bar = bars.add_task(name, total=frames, rate="", lane="")

        def tick(lane: str = "") -> None:
            speed = bars.tasks[bar].speed or 0.0
            rate = f"{speed:,.0f} fps"
            if has_room:
                rate += f" {speed * frame_bytes / 1e9:.2f} GB/s"
            bars.update(bar, advance=1, rate=rate, lane=lane)

        yield tick


# ---- many races ----------------------------------------------------------------------


@contextmanager
def races_bar(total: int, seconds: float) -> Iterator[Step]:
    """Shows which of so many races is run, and how long is left of so many seconds.

    On stderr, since the results may go to a file.
    """
    began = time.monotonic()

    def left(number: int) -> str:
        """As much for each that is to come as for those before; and never more."""
        gone = time.monotonic() - began
        whole = min(seconds, gone / number * total if number else USUAL)
        return minutes(max(0.0, whole - gone))

    try:
        from rich import console, progress
    except ModuleNotFoundError:
        yield _race_lines(total, left)
        return
    if not sys.stderr.isatty():
        yield _race_lines(total, left)
        return
    screen = console.Console(stderr=True)
    has_room = screen.width >= WIDE
    columns = (
        "{task.description}",
        progress.BarColumn(20 if has_room else 6),
        "{task.fields[number]}/{task.total}",
        "{task.fields[left]} left",
    )
    with progress.Progress(*columns, console=screen, transient=True) as bars:
        bar = bars.add_task("", total=total, number=1, left=left(0))

        def tell(number: int, race: Race, what: str) -> None:
            line = f"{race.bench}: {race.title}, {what}"
            name = begun(line, screen.width - 42) if has_room else race.bench
            bars.update(
                bar,
                description=escaped(name),
                completed=number,
                number=number + 1,
                left=left(number),
            )

        yield tell


@contextmanager
def looking(line: str) -> Iterator[None]:
    """Said on a terminal while it lasts."""
    if sys.stderr.isatty():
        print(line, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if sys.stderr.isatty():
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _race_lines(total: int, left: Callable[[int], str]) -> Step:
    said = -1

    def tell(number: int, race: Race, what: str) -> None:
        nonlocal said
        if number != said:
            said = number
            where = f"{number + 1}/{total} {race.bench}: {race.title}"
            print(f"{where} ({left(number)} left)", file=sys.stderr, flush=True)

    return tell


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def begun(text: str, most: int) -> str:
    """As much of its beginning as there is room for."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def shortened(title: str, most: int) -> str:
    """The end of it, which tells films apart."""
    return title if len(title) <= most else f"…{title[1 - most :]}"


def escaped(title: str) -> str:
    """For rich, which would take square brackets for its markup."""
    return title.replace("[", "\\[")
