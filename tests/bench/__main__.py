"""``python -m bench [BENCH]``: run the races, and show what came out."""

import argparse
import importlib
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench import race, results
from bench.processes import ENVIRONMENT, Lab
from bench.race import Contender, Lacking, Race, Run, Work
from bench.results import Outcome

BENCHES = {
    "sockets": "big and small messages over sockets, beside asyncio, uvloop, C",
    "receive": "messages of a known size, beside asyncio, uvloop, aiofastnet, C",
    "pipes": "raw video frames into a child's stdin, beside asyncio, uvloop, C",
    "ffmpeg": "raw frames to FFmpeg, beside TurboPipe, asyncio, uvloop, C",
    "encode": "NumPy frames to x264, beside TurboPipe, imageio-ffmpeg, PyAV",
    "decode": "a film to NumPy frames, beside FFmpeg's pipe, imageio-ffmpeg, PyAV",
    "render": "an OpenGL scene to x264, beside TurboPipe, PyAV",
    "ring": "small messages by a ring, beside pipes, UNIX sockets, pyzmq",
    "dask": "arrays between two workers of a cluster: azc://, beside tcp://",
    "fanout": "one frame to many clients, beside websockets, aiohttp, C",
    "transport": "asyncio's transports, one way and echo: ours beside others'",
    "relay": "a file to TCP, a pipe to a pipe, beside a C loop, sendfile, copyfileobj",
    "viewer": "a picture's age when it is painted, beside aiortc, MSE, multipart JPEG",
}
SECONDS = 570.0  # ten minutes, less what the last race may run over


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 1 if a race failed, 130 after Ctrl-C."""
    arguments = parser().parse_args(argv)
    outcome = Outcome(results.machine())
    status = 0
    try:
        run(outcome, arguments)
    except KeyboardInterrupt:
        status = 130
    if arguments.json:
        arguments.json.write_text(outcome.to_json(), encoding="utf-8")
    print(outcome.text())
    return status or int(bool(outcome.failed))


def run(outcome: Outcome, arguments: argparse.Namespace) -> None:
    """Run all that is in the table, or one bench, and note the results in `outcome`."""
    everything, quick = arguments.bench is None, arguments.quick
    began = time.monotonic()
    end = began + SECONDS if everything and not arguments.rounds else math.inf
    rounds = 0 if quick else arguments.rounds or (9 if everything else 5)
    wanted = re.compile(arguments.who).search
    with Lab() as lab:
        planned = [
            (one.in_table() if everything else one).among(wanted)
            for name in ([*BENCHES] if everything else [arguments.bench])
            for one in plan(name, lab, quick, outcome)
            if arguments.only in one.title and not (one.extra and everything)
        ]
        planned = [one for one in planned if one.contenders]
        if not planned and not outcome.failed and (arguments.only or arguments.who):
            parser().error(
                f"no race matches --only {arguments.only!r} --who {arguments.who!r}"
            )
        if arguments.beside:
            planned = [
                one.beside(partial(elsewhere, arguments.beside)) for one in planned
            ]
        for number, one in enumerate(planned):
            now = time.monotonic()
            rest = sum(len(other.contenders) for other in planned[number:])
            until = now + (end - now) * len(one.contenders) / rest
            run_one(outcome, one, rounds, until, show=not everything)


def elsewhere(folder: str, ours: Contender) -> Contender:
    """Return the contender with the package of another folder."""

    def run(work: Work, check: bool) -> Run:
        path = ENVIRONMENT["PYTHONPATH"]
        ENVIRONMENT["PYTHONPATH"] = os.pathsep.join((os.path.abspath(folder), path))
        try:
            return ours.run(work, check)
        finally:
            ENVIRONMENT["PYTHONPATH"] = path

    return replace(ours, name=f"{ours.name}, in {folder}", run=run)


def run_one(
    outcome: Outcome, one: Race, rounds: int, until: float, *, show: bool
) -> None:
    """Run a race; what it lacks, or why it failed, is noted in `outcome`."""
    for contender in one.contenders:
        if contender.missing:
            why = race.not_installed(contender.missing)
            outcome.left_out.append(f"{one.bench}, {contender.name}: {why}")
    try:
        if time.monotonic() >= until:
            raise Lacking("there was no time left for this race")
        tell = partial(progress, f"{one.bench}: {one.title}")
        result = race.run_race(one, rounds, tell, until)
    except Exception as error:
        note(outcome, f"{one.bench}, {one.title}", error)
    else:
        outcome.results.append(result)
        if show:
            print(f"{results.rates(result)}\n", flush=True)
    finally:
        progress("", "")


def plan(name: str, lab: Lab, quick: bool, outcome: Outcome) -> Iterator[Race]:
    """Yield the races of a bench, until it says that no more can run here."""
    try:
        yield from importlib.import_module(f"bench.{name}").races(lab, quick)
    except Exception as error:
        note(outcome, name, error)


def note(outcome: Outcome, what: str, error: Exception) -> None:
    """Note a race, or a whole bench, that cannot run or has failed."""
    if isinstance(error, Lacking):
        outcome.left_out.append(f"{what}: {error}")
    else:
        # (of a process that failed, the last line of its stderr)
        *_, last = str(error).strip().splitlines() or [""]
        outcome.failed.append(f"{what}: {type(error).__name__}: {last.strip()}")


def progress(title: str, what: str) -> None:
    """Show a line on a terminal; without a title, clear it."""
    if sys.stderr.isatty():
        room = shutil.get_terminal_size().columns - 1
        line = f"{title}, {what}"[:room] if title else ""
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m bench",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Run all that is in the table (ten minutes), or one bench.",
        epilog="\n".join(f"  {name:<10}{text}" for name, text in BENCHES.items()),
    )
    add = result.add_argument
    add("bench", nargs="?", choices=BENCHES, metavar="BENCH", help="one of those below")
    add("--rounds", type=int, metavar="N", help="rounds of a race (5; all benches: 9)")
    add("--quick", action="store_true", help="only check every byte, with little work")
    add("--only", default="", metavar="TEXT", help="only races whose title contains it")
    add("--who", default="", metavar="REGEX", help="only contenders whose names match")
    add("--beside", metavar="DIR", help="also race ours against that checkout's")
    add("--json", type=Path, metavar="FILE", help="write every round to a file")
    return result


if __name__ == "__main__":
    sys.exit(main())
