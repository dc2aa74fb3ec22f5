"""Shows how far a proof is: a table where a terminal is, else a line for each event."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .slices import LOG

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from .running import Run, Runs

REFRESH = 0.5  # seconds
STILL = 60.0  # seconds between two lines that say what still runs
COLOURS = {"passed": "green", "failed": "bold red", "hung": "bold red", "runs": "cyan"}


async def show(runs: Runs, console: Console) -> None:
    """Until it is cancelled, or all are over."""
    await (show_table if console.is_terminal else show_lines)(runs, console)


async def show_table(runs: Runs, console: Console) -> None:
    from rich.live import Live

    with Live(table(runs), console=console, refresh_per_second=4) as live:
        try:
            while not all(run.over for run in runs.all):
                await asyncio.sleep(REFRESH)
                live.update(table(runs))
        finally:
            live.update(table(runs))


def table(runs: Runs) -> Table:
    from rich.table import Table

    drawn = Table("slice", "", "minutes", "of", "last line of its log", expand=True)
    for run in runs.all:
        colour = COLOURS.get(run.verdict, "dim")
        last = last_line(run.folder / LOG) if run.verdict == "runs" else ""
        drawn.add_row(
            run.slice.name,
            f"[{colour}]{run.verdict}[/]",
            f"{run.so_far / 60:.1f}" if run.verdict != "waits" else "",
            f"{run.slice.minutes:g}",
            last.replace("[", r"\["),
        )
    return drawn


def last_line(path: Path) -> str:
    if not path.exists():
        return ""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - 500))
        text = file.read().decode(errors="replace").rstrip()
    return text.splitlines()[-1][-100:] if text else ""


async def show_lines(runs: Runs, console: Console) -> None:
    said = {run.slice.name: "waits" for run in runs.all}
    since = 0.0
    while True:
        for run in runs.all:
            if said[run.slice.name] != run.verdict:
                said[run.slice.name] = run.verdict
                say(run, console)
                since = 0.0
        if since >= STILL:
            since = 0.0
            for run in runs.all:
                if run.verdict == "runs":
                    say(run, console)
        if all(run.over for run in runs.all):
            return
        await asyncio.sleep(REFRESH)
        since += REFRESH


def say(run: Run, console: Console) -> None:
    minutes = f"{run.so_far / 60:5.1f} of {run.slice.minutes:g} minutes"
    console.print(f"{run.slice.name:16} {run.verdict:8} {minutes}", highlight=False)
