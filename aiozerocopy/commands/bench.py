"""``aiozerocopy bench``: how fast it is here, beside others."""

from __future__ import annotations

import importlib
import json
import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiozerocopy.bench import (
    changes,
    chart,
    everything,
    machine,
    outcome,
    report,
    summary,
    tables,
)
from aiozerocopy.bench.everything import gather
from aiozerocopy.bench.feeding import Lab
from aiozerocopy.bench.racing import Lacking, Options, run_race
from aiozerocopy.commands import ending
from aiozerocopy.commands.options import (
    Parser,
    check_place,
    count,
    earlier,
    file,
    picture,
    results,
    size,
)
from aiozerocopy.commands.progress import looking, races_bar

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

    from aiozerocopy.bench.outcome import Outcome
    from aiozerocopy.bench.racing import Race, Result

BENCHES = {
    "sockets": "big and small messages over sockets; and asyncio, uvloop, C",
    "pipes": "raw video frames into a child's stdin; and asyncio, uvloop, C",
    "ffmpeg": "raw frames to FFmpeg; and TurboPipe, asyncio, uvloop, C",
    "encode": "NumPy frames to x264, and a scene; and TurboPipe, imageio-ffmpeg, PyAV",
    "decode": "a film to NumPy frames; and FFmpeg's pipe, imageio-ffmpeg, PyAV",
    "render": "an OpenGL scene to x264; and TurboPipe, PyAV",
    "capture": "the screen of an X server; and python-mss",
    "ring": "small messages by a ring; and pipes, UNIX sockets, Tachyon, pyzmq",
    "dask": "arrays between two workers of a cluster: azc://; and tcp://",
    "fanout": "one frame to many clients; and websockets, aiohttp; 1080p60 to one",
    "transport": "asyncio's transports, one way and back; and asyncio, uvloop",
    "relay": "a file to TCP, a pipe to a pipe; and a C loop, sendfile, copyfileobj",
}
STDOUT = Path("-")
ROUNDS = 5  # of one bench


def main(argv: Sequence[str]) -> int:
    """Run one bench or all and show the results; the exit status is 0 if all ran."""
    arguments = parser().parse_args(argv)
    check(arguments)
    usual = everything.ROUNDS if arguments.bench is None else ROUNDS
    options = Options(
        rounds=arguments.rounds or (1 if arguments.quick else usual),
        quick=arguments.quick,
        frames=arguments.frames,
        size=arguments.size,
    )
    if arguments.of is not None:
        return show_all(arguments, arguments.of)
    if arguments.bench is None:
        return run_all(arguments, options)
    return run_one(arguments, options)


def check(arguments: Namespace) -> None:
    """Say what is wrong before the races, not after."""
    of_films = arguments.bench in ("encode", "decode")
    if not of_films and (arguments.frames or arguments.size):
        parser().error("--frames and --size are for encode and decode")
    if arguments.bench and arguments.of:
        parser().error(f"--from: nothing is run, so leave out {arguments.bench}")
    if arguments.fail_if_slower and not arguments.compare:
        parser().error("--fail-if-slower: slower than what? --compare FILE says it")
    if arguments.compare and arguments.json == STDOUT:
        parser().error("--compare: give --json the name of a file, too")
    for path in filter(None, (arguments.markdown, arguments.chart, arguments.json)):
        if path != STDOUT:
            check_place(path)
    if arguments.chart:
        importlib.import_module("matplotlib")


# ---- one of them --------------------------------------------------------------------


def run_one(arguments: Namespace, options: Options) -> int:
    facts = machine.facts()
    with Lab() as lab:
        done: list[Result] = []
        for race in wanted(races_of(arguments.bench, lab, options), arguments.only):
            done.append(run_race(race, options))
            if arguments.json != STDOUT:
                report.show(done[-1])
    told = outcome.as_json(facts, done)
    keep(arguments.json, told)
    if arguments.json != STDOUT:
        print(f"\n{report.LEGEND}")
    if arguments.markdown:
        arguments.markdown.write_text(report.markdown(facts, done), encoding="utf-8")
    if arguments.chart:
        chart.draw(done, arguments.chart)
    return compared(arguments, outcome.from_json(told))


def races_of(bench: str, lab: Lab, options: Options) -> list[Race]:
    """All that can run here.

    Raises:
        Lacking: none can.
    """
    found: list[Race] = []
    try:
        found.extend(gather(bench, lab, options))
    except Lacking as lack:
        if not found:
            raise
        print(f"left out: {lack}", file=sys.stderr)
    return found


# ---- all of them --------------------------------------------------------------------


def run_all(arguments: Namespace, options: Options) -> int:
    began = time.monotonic()
    done = everything.Everything(machine.facts())
    with Lab() as lab:
        with looking("looking what can run here"):
            found = done.races([*BENCHES], lab, options)
        races = wanted(found, arguments.only)
        gone = time.monotonic() - began
        seconds = math.inf if arguments.rounds else everything.SECONDS - gone
        try:
            with races_bar(len(races), seconds) as tell:
                done.run(races, options, tell, seconds)
        except ending.INTERRUPTS:
            if arguments.json != STDOUT:
                summary.show(outcome.from_json(done.as_json()))
            ending.last_words.append(f"{len(done.results)} of {len(races)} races")
            raise
    told = done.as_json()
    keep(arguments.json, told)
    return show_all(arguments, outcome.from_json(told))


def show_all(arguments: Namespace, done: Outcome) -> int:
    """The summary, of this run or of an earlier one."""
    if arguments.json != STDOUT:
        summary.show(done)
        print()
        tables.say(summary.LEGEND)
    if arguments.markdown:
        arguments.markdown.write_text(summary.markdown(done), encoding="utf-8")
    if arguments.chart:
        chart.draw_summary(done, arguments.chart)
    return compared(arguments, done) or int(bool(done.failed))


# ---- what they share ----------------------------------------------------------------


def keep(place: Path | None, told: dict[str, Any]) -> None:
    text = json.dumps(told, indent=1)
    if place == STDOUT:
        print(text)
    elif place is not None:
        place.write_text(f"{text}\n", encoding="utf-8")


def compared(arguments: Namespace, now: Outcome) -> int:
    """The exit status: 1 if something is slower, and that was asked for."""
    if arguments.compare is None:
        return 0
    found = changes.show(arguments.compare, now)
    print()
    tables.say(changes.LEGEND)
    return int(arguments.fail_if_slower and any(one.is_slower for one in found))


def wanted(races: Sequence[Race], text: str) -> list[Race]:
    """Those whose title has the text in it; there must be some."""
    found = [race for race in races if text in race.title]
    if not found and text:
        titles = ", ".join(repr(race.title) for race in races)
        parser().error(f"--only: no title has {text!r} in it; there are {titles}")
    return found


def parser() -> Parser:
    result = Parser(
        prog="aiozerocopy bench",
        description=(
            "The contestants do the same work one after the other, round by round.\n"
            "Rates and ratios are medians of the rounds; every byte is checked once.\n"
            "Without a name, all benches run in brief: ten minutes, and one table."
        ),
        epilog="\n".join(f"  {name:<10}{text}" for name, text in BENCHES.items()),
    )
    result.add_argument(
        "bench", nargs="?", choices=BENCHES, metavar="BENCH", help=", ".join(BENCHES)
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
        "--frames", type=count, metavar="N", help="how many, of encode and decode"
    )
    result.add_argument(
        "--size", type=size, metavar="WxH", help="of the frames, of encode and decode"
    )
    result.add_argument(
        "--only", default="", metavar="TEXT", help="races whose title contains it"
    )
    add_files(result)
    return result


def add_files(result: Parser) -> None:
    """Where the results go, and with which they are compared."""
    result.add_argument(
        "--json",
        type=results,
        nargs="?",
        const=STDOUT,
        metavar="FILE.json",
        help="every number, to a file, or to stdout instead of the tables",
    )
    result.add_argument(
        "--markdown", type=file, metavar="FILE", help="the tables, to a file"
    )
    result.add_argument(
        "--chart",
        type=picture,
        metavar="FILE",
        help="a picture of the rates, or without a BENCH of the ratios, as PNG, SVG or "
        "PDF (needs matplotlib)",
    )
    result.add_argument(
        "--compare",
        type=earlier,
        metavar="FILE.json",
        help="say what is faster, slower or the same since that run",
    )
    result.add_argument(
        "--fail-if-slower",
        action="store_true",
        help="exit status 1 if something is slower than in the run to --compare with",
    )
    result.add_argument(
        "--from",
        dest="of",
        type=earlier,
        metavar="FILE.json",
        help="run nothing: show the results that are in a file",
    )
