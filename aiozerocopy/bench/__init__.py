"""`aiozerocopy bench`: how fast it is on this machine, compared with others.

Every bench is a module of its name with a function `races`.  They share `racing`
(rounds and ratios), `feeding` (the processes of a run) and `report`.
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
    "sockets": "big and small messages over sockets; and asyncio, uvloop, C",
    "pipes": "raw video frames into a child's stdin; and asyncio, uvloop, C",
    "ffmpeg": "raw frames to FFmpeg; and TurboPipe, asyncio, uvloop, C",
    "encode": "NumPy frames to x264, and a scene; and TurboPipe, imageio-ffmpeg, PyAV",
    "render": "an OpenGL scene to x264; and TurboPipe, PyAV",
    "fanout": "one frame to many clients; and websockets, aiohttp; 1080p60 to one",
}


def main(argv: Sequence[str]) -> int:
    """Run one bench and show its results; the exit status is 0 if it ran."""
    arguments = parser().parse_args(argv)
    if arguments.bench != "encode" and (arguments.frames or arguments.size):
        parser().error("--frames and --size are for encode")
    options = Options(
        rounds=arguments.rounds or (1 if arguments.quick else 5),
        quick=arguments.quick,
        frames=arguments.frames,
        size=arguments.size,
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
    else:
        print(f"\n{report.LEGEND}")
    if arguments.markdown:
        arguments.markdown.write_text(report.markdown(results), encoding="utf-8")
    if arguments.chart and results:
        chart.draw(results, arguments.chart)
    return 0


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="aiozerocopy bench",
        description=(
            "The contestants do the same work one after the other, round by round.\n"
            "Rates and ratios are medians of the rounds; every byte is checked once."
        ),
        epilog="\n".join(f"  {name:<9}{text}" for name, text in BENCHES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("bench", choices=BENCHES, help="see below")
    result.add_argument(
        "--rounds",
        type=int,
        help="how often each contestant runs (5; eight times that if it is short)",
    )
    result.add_argument(
        "--quick",
        action="store_true",
        help="one round of little work, to see that all of it runs",
    )
    result.add_argument(
        "--frames", type=count, metavar="N", help="how many each contestant encodes"
    )
    result.add_argument(
        "--size", type=size, metavar="WxH", help="of the frames that are encoded"
    )
    result.add_argument(
        "--only", default="", metavar="TEXT", help="races whose title contains it"
    )
    result.add_argument("--json", action="store_true", help="every number, to stdout")
    result.add_argument(
        "--markdown", type=Path, metavar="FILE", help="the tables, to a file"
    )
    result.add_argument(
        "--chart",
        type=Path,
        metavar="FILE",
        help="a picture of the rates, as PNG (needs matplotlib)",
    )
    return result


def count(text: str) -> int:
    if int(text) < 1:
        raise ValueError(text)
    return int(text)


def size(text: str) -> tuple[int, int]:
    """Of x264's 4:2:0, so even."""
    width, height = map(count, text.split("x"))
    if width % 2 or height % 2:
        raise argparse.ArgumentTypeError(f"{text}: both must be even")
    return width, height
