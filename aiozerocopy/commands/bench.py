"""``aiozerocopy bench``: how fast it is here, beside others."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING

from aiozerocopy.bench import chart, report
from aiozerocopy.bench.feeding import Lab
from aiozerocopy.bench.racing import Options, run_race
from aiozerocopy.commands.options import (
    Parser,
    check_place,
    count,
    file,
    picture,
    size,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozerocopy.bench.racing import Race

BENCHES = {
    "sockets": "big and small messages over sockets; and asyncio, uvloop, C",
    "pipes": "raw video frames into a child's stdin; and asyncio, uvloop, C",
    "ffmpeg": "raw frames to FFmpeg; and TurboPipe, asyncio, uvloop, C",
    "encode": "NumPy frames to x264, and a scene; and TurboPipe, imageio-ffmpeg, PyAV",
    "render": "an OpenGL scene to x264; and TurboPipe, PyAV",
    "capture": "the screen of an X server; and python-mss",
    "ring": "small messages by a ring; and pipes, UNIX sockets, Tachyon, pyzmq",
    "dask": "arrays between two workers of a cluster: azc://; and tcp://",
    "fanout": "one frame to many clients; and websockets, aiohttp; 1080p60 to one",
    "transport": "asyncio's transports, one way and back; and asyncio, uvloop",
    "relay": "a file to TCP, a pipe to a pipe; and a C loop, sendfile, copyfileobj",
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
    for path in filter(None, (arguments.markdown, arguments.chart)):
        check_place(path)
    if arguments.chart:
        importlib.import_module("matplotlib")  # said before the races, not after
    bench = importlib.import_module(f"aiozerocopy.bench.{arguments.bench}")
    with Lab() as lab:
        races = wanted([*bench.races(lab, options)], arguments.only)
        results = []
        for race in races:
            results.append(run_race(race, options))
            if not arguments.json:
                report.show(results[-1])
    if arguments.json:
        print(json.dumps(report.as_json(results), indent=2))
    else:
        print(f"\n{report.LEGEND}")
    if arguments.markdown:
        arguments.markdown.write_text(report.markdown(results), encoding="utf-8")
    if arguments.chart:
        chart.draw(results, arguments.chart)
    return 0


def wanted(races: Sequence[Race], text: str) -> list[Race]:
    """Those whose title has the text in it; there must be some."""
    found = [race for race in races if text in race.title]
    if not found:
        titles = ", ".join(repr(race.title) for race in races)
        parser().error(f"--only: no title has {text!r} in it; there are {titles}")
    return found


def parser() -> Parser:
    result = Parser(
        prog="aiozerocopy bench",
        description=(
            "The contestants do the same work one after the other, round by round.\n"
            "Rates and ratios are medians of the rounds; every byte is checked once."
        ),
        epilog="\n".join(f"  {name:<10}{text}" for name, text in BENCHES.items()),
    )
    result.add_argument(
        "bench", choices=BENCHES, metavar="BENCH", help=", ".join(BENCHES)
    )
    result.add_argument(
        "--rounds",
        type=count,
        metavar="N",
        help="how often each contestant runs (default: 5; eight times that if it is "
        "short)",
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
        "--markdown", type=file, metavar="FILE", help="the tables, to a file"
    )
    result.add_argument(
        "--chart",
        type=picture,
        metavar="FILE",
        help="a picture of the rates, as PNG, SVG or PDF (needs matplotlib)",
    )
    return result
