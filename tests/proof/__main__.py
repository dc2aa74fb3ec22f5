"""Run the slices, or with ``page`` only write the page again."""

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from . import page, results, running
from .results import Json
from .table import MOST, SLICES, Slice

INTERRUPTED = 130


def main(words: Sequence[str]) -> int:
    if list(words) == ["page"]:
        page.write(json.loads(page.JSON.read_text()))
        return 0
    options = parsed(words)
    if options.list:
        for each in SLICES:
            print(f"{each.name:16} {each.minutes:4g} min  {each.shows}")
        return 0
    return prove(options.slices)


def parsed(words: Sequence[str]) -> argparse.Namespace:
    by_name = {each.name: each for each in SLICES}
    parser = argparse.ArgumentParser(prog="python -m proof", description=__doc__)
    parser.add_argument("slices", nargs="*", metavar="SLICE", help="; ".join(by_name))
    parser.add_argument("--list", action="store_true", help="only list the slices")
    options = parser.parse_args(words)
    names = " ".join(options.slices).replace(",", " ").split() or list(by_name)
    if unknown := [name for name in names if name not in by_name]:
        parser.error(f"no such slice: {', '.join(unknown)} (there are: {[*by_name]})")
    options.slices = [each for each in SLICES if each.name in names]
    return options


def prove(slices: Sequence[Slice]) -> int:
    folder = Path(tempfile.mkdtemp(prefix="aiozerocopy-proof-"))
    print(f"logs: {folder}", flush=True)
    signals: list[int] = []  # (an exception could lose a process that just began)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))
    began = time.monotonic()
    runs = running.run_all(slices, folder, 60 * MOST, lambda: signals)
    if signals:
        return INTERRUPTED
    found = results.gather(runs, time.monotonic() - began)
    tell(found)
    page.write(found, page.PAGES if len(slices) == len(SLICES) else folder)
    print(f"logs: {folder}")
    return 0 if results.succeeded(found) else 1


def tell(found: Json) -> None:
    """Print failures, skipped tests, and the zeros."""
    for each in found["slices"]:
        print(f"---- {each['name']}: {each['verdict']}")
        for test in each["failed"]:
            print(f"failed: {test['test']}\n{test['said']}")
        for skip in each["skipped"]:
            print(f"left out: {skip['tests']}: {skip['why']}")
    for each in found["zeros"]:
        print(f"{each['what']}: {each['found']:,} in {each['among']:,} {each['looks']}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
