"""Run the slices, or with ``page [FILE [FOLDER]]`` only write the page again."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from . import page, progress, results
from .running import Runs
from .table import MOST, SLICES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .results import Json
    from .slices import Slice

INTERRUPTED = 130


def main(words: Sequence[str]) -> int:
    if words[:1] == ["page"]:
        return write_again(words[1:])
    options = parsed(words)
    if options.list:
        for each in SLICES:
            print(f"{each.name:16} {each.minutes:4g} min  {each.shows}")
        return 0
    chosen = [
        each for each in SLICES if each.name in options.slices or not options.slices
    ]
    return prove(chosen, options.logs, options.pages)


def parsed(words: Sequence[str]) -> argparse.Namespace:
    names = [each.name for each in SLICES]
    parser = argparse.ArgumentParser(prog="python -m proof", description=__doc__)
    parser.add_argument("slices", nargs="*", metavar="SLICE", help="; ".join(names))
    parser.add_argument("--list", action="store_true", help="only say what there is")
    parser.add_argument(
        "--logs", type=Path, help="an empty folder for logs and figures"
    )
    parser.add_argument(
        "--pages", type=Path, help="where the page goes (docs/pages, for all slices)"
    )
    options = parser.parse_args(words)
    options.slices = " ".join(options.slices).replace(",", " ").split()
    if unknown := [name for name in options.slices if name not in names]:
        parser.error(f"no such slice: {', '.join(unknown)} (there are: {names})")
    return options


def prove(slices: Sequence[Slice], logs: Path | None, pages: Path | None) -> int:
    console = Console()
    folder = (logs or Path(tempfile.mkdtemp(prefix="aiozerocopy-proof-"))).absolute()
    runs = Runs(slices, folder, 60 * MOST)
    began = time.monotonic()
    try:
        asyncio.run(run_and_show(runs, console))
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print(f"interrupted; logs in {folder}")
        return INTERRUPTED
    found = results.gather(runs.all, time.monotonic() - began)
    tell(found, console)
    folder.mkdir(exist_ok=True)
    (folder / page.JSON.name).write_text(json.dumps(found, indent=1))
    if len(slices) == len(SLICES):
        pages = pages or page.PAGES
        found = page.with_earlier_runs(found, pages)
    if pages is not None:
        page.write(found, pages)
        console.print(f"page: {pages / page.PAGE.name}")
    console.print(f"logs: {folder}")
    return 0 if results.succeeded(found) else 1


async def run_and_show(runs: Runs, console: Console) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    shown = asyncio.create_task(progress.show(runs, console))
    try:
        await runs.run()
        await shown
    finally:
        shown.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await shown


def tell(found: Json, console: Console) -> None:
    """What failed and what was left out, and the zeros."""
    for each in found["slices"]:
        console.rule(f"{each['name']}: {each['verdict']}")
        for test in each["failed"]:
            console.print(f"failed: {test['test']}\n{test['said']}", markup=False)
        for skip in each["skipped"]:
            console.print(f"left out: {skip['tests']}: {skip['why']}", markup=False)
    for each in found["zeros"]:
        console.print(
            f"{each['what']}: {each['found']:,} in {each['among']:,} {each['looks']}"
        )


def write_again(words: Sequence[str]) -> int:
    """Write the page of these results, or of those that are kept, once more."""
    path = Path(words[0]) if words else page.JSON
    page.write(
        json.loads(path.read_text()), Path(words[1]) if words[1:] else page.PAGES
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
