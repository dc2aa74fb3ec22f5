"""`aiozerocopy bench`: how fast it is on this machine, beside others.

Every bench is a module of that name here with a function `races`.  What they share:
`racing` (rounds and ratios), `feeding` (the processes of a run), `report`.
"""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from aiozerocopy.bench import chart, report
from aiozerocopy.bench.feeding import Lab
from aiozerocopy.bench.racing import Options, run_race

if TYPE_CHECKING:
    from collections.abc import Sequence

BENCHES = {
    "sockets": "big and small messages over sockets, beside asyncio, uvloop and C",
    "pipes": "raw video frames into a child's stdin, beside asyncio, uvloop and C",
    "ffmpeg": "raw frames to FFmpeg, beside TurboPipe, asyncio, uvloop and C",
    "render": "an OpenGL scene to x264, beside TurboPipe and PyAV",
    "fanout": "one frame to many clients, beside websockets and aiohttp; 1080p60",
}


def main(argv: Sequence[str]) -> int:
    """Run one bench and show its results; the exit status is 0 if it ran."""
    arguments = parser().parse_args(argv)
    options = Options(
        rounds=arguments.rounds or (1 if arguments.quick else 5),
        quick=arguments.quick,
    )
    bench = importlib.import_module(f"aiozerocopy.bench.{arguments.bench}")
    results = []
    with Lab() as lab:
        for race in bench.races(lab, options):
            if arguments.only in race.title:
                results.append(run_race(race, options))
                if not arguments.json:
                    report.show(results[-1])
    if arguments.json:
        print(json.dumps(report.as_json(results), indent=2))
    if arguments.markdown:
        arguments.markdown.write_text(report.markdown(results), encoding="utf-8")
    if arguments.chart and results:
        chart.draw(results, arguments.chart)
    return 0


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="aiozerocopy bench",
        description="All contestants do the same work in turn; ratios are medians.",
        epilog="\n".join(f"  {name:<9}{text}" for name, text in BENCHES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("bench", choices=BENCHES, help="see below")
    result.add_argument(
        "--rounds",
        type=int,
        help="how often each has its turn (5; if short, eight times that)",
    )
    result.add_argument(
        "--quick",
        action="store_true",
        help="one round of tiny work: does it run at all?",
    )
    result.add_argument("--only", default="", metavar="TEXT", help="races named so")
    result.add_argument("--json", action="store_true", help="all numbers, on stdout")
    result.add_argument(
        "--markdown", type=Path, metavar="FILE", help="tables, to a file"
    )
    result.add_argument(
        "--chart",
        type=Path,
        metavar="FILE",
        help="bars, or lines for fanout, as PNG (needs matplotlib)",
    )
    return result
