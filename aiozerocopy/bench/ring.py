"""Small messages between two processes: a ring, beside pipes, sockets, Tachyon, ZeroMQ.

First vectors from C into NumPy, and their means; then messages of any size one way;
then round trips, in C and in Python.  What the two processes of a run do is in
`ring_peers`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from array import array
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from aiozerocopy._core.binding import PORTABLE
from aiozerocopy.bench.feeding import Crew
from aiozerocopy.bench.frames import percentile
from aiozerocopy.bench.network import command
from aiozerocopy.bench.racing import (
    Comparison,
    Headline,
    Lacking,
    Race,
    Run,
    Work,
    WrongBytes,
    need,
)
from aiozerocopy.bench.ring_peers import Job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozerocopy.bench.feeding import Lab
    from aiozerocopy.bench.racing import Entry, Options

VECTOR = 1024  # bytes: 256 floats
SIZES = {
    **{"32 B": 32, "1 KiB": 1 << 10, "32 KiB": 32 << 10},
    **{"1 MiB": 1 << 20, "8 MiB": 8 << 20},
}
TACHYON_MOST = 32 << 10  # bytes; in Tachyon 0.5.1 messages of 1 MiB never arrive
TRIP = 64  # bytes
SPIN_US = 50
SPINS = 10_000  # in C: Tachyon's default


def races(lab: Lab, options: Options) -> list[Race]:
    """Raises: Lacking: this is the portable build, or NumPy is not there."""
    if PORTABLE:
        raise Lacking("rings need Linux, and this is the portable build")
    need("numpy")
    sizes = {"1 KiB": SIZES["1 KiB"]} if options.quick else SIZES
    return [
        vectors(lab, options),
        *(one_way(lab, options, name, size) for name, size in sizes.items()),
        trips(lab, options),
    ]


# ---- one way -------------------------------------------------------------------------


def vectors(lab: Lab, options: Options) -> Race:
    pair = partial(Pair, lab=lab, means=True)
    ours = pair("ring", way="ring")
    rivals = [pair("Tachyon", way="tachyon", needs=("tachyon",))]
    others = [pair("pipe, batches", way="pipe"), pair("UNIX, batches", way="unix")]
    messages = 5_000 if options.quick else 500_000
    return Race(
        "float32[256] from C, means in NumPy",
        Work(VECTOR, messages, warm=512 if options.quick else 20_000, buffers=256),
        [ours, *rivals, *others],
        [Comparison(ours.name, [rival.name for rival in rivals])],
        headlines=[
            Headline(
                ours.name,
                [rival],
                work="vectors of 1 KiB from C, their means in NumPy: a ring",
                against=against,
                unit="vectors",
            )
            for rival, against in (
                ("Tachyon", ""),
                ("pipe, batches", "a pipe, in batches"),
            )
        ],
        brief=200_000,
    )


def one_way(lab: Lab, options: Options, name: str, size: int) -> Race:
    pair = partial(Pair, lab=lab)
    ours = pair("ring", way="ring")
    others = [pair("pipe, batches", way="pipe"), pair("UNIX, batches", way="unix")]
    if size <= TACHYON_MOST:
        others.insert(0, pair("Tachyon", way="tachyon", needs=("tachyon",)))
    total = 5_000_000 if options.quick else 4_000_000_000
    messages = max(20, min(total // size, 2_000_000))
    work = Work(
        size, messages, warm=messages // 10, buffers=max(2, (256 << 10) // size)
    )
    return Race(
        f"{name} from C, one way",
        work,
        [ours, *others],
        [Comparison(ours.name, [other.name]) for other in others],
        headlines=[
            Headline(
                ours.name,
                [rival],
                work=f"records of {name} from C: a ring",
                against=against,
                unit="records",
            )
            for rival, against in (
                ("Tachyon", ""),
                ("UNIX, batches", "a UNIX socket, in batches"),
            )
            if size < 32 << 10
        ],
        brief=400_000,
    )


@dataclass(frozen=True)
class Pair:
    """A producer in C and a consumer in Python."""

    name: str
    lab: Lab
    way: str
    needs: Sequence[str] = ()
    loop: str = "asyncio"
    means: bool = False
    spin: int = 0
    roles: Sequence[str] = ("consume", "produce")

    def run(self, work: Work, check: bool) -> Run:
        folder = Path(tempfile.mkdtemp(dir=self.lab.path))
        try:
            return self._run(work, check, folder)
        finally:
            shutil.rmtree(folder)

    def count_calls(self, work: Work) -> float | None:
        return None

    def _run(self, work: Work, check: bool, folder: Path) -> Run:
        told = self._start(work, check, folder)
        sink, sender = told["sink"], told["sender"]
        total = work.warm + work.messages
        if sink["wrong"] >= 0 or sink["count"] != total:
            raise WrongBytes(
                f"{self.name}: {sink['count']:,} messages came and not {total:,}; the "
                f"first wrong one is number {sink['wrong']}"
            )
        return Run(sink["seconds"], sender["cpu"], sink["cpu"], None)

    def _start(
        self, work: Work, check: bool, folder: Path
    ) -> dict[str, dict[str, float]]:
        if "pipe" in self.way:
            for name in ("there", "back"):
                os.mkfifo(folder / name)
        with Crew(self.lab.path / "stderr") as crew:
            for role in self.roles:
                job = Job(
                    role,
                    self.way,
                    self.loop,
                    str(folder),
                    self.lab.library("ring_peer"),
                    pattern(self.lab, work),
                    work.size,
                    work.buffers,
                    work.warm,
                    work.messages,
                    self.means,
                    check,
                    self.spin,
                )
                crew.start(command("ring_peers", asdict(job)))
            return crew.finish()


def pattern(lab: Lab, work: Work) -> str:
    """The path of a file with all buffers: numbers, since means are made of them."""
    n = work.size * work.buffers
    path = lab.path / f"numbers-{n}"
    if not path.exists():
        path.write_bytes(array("f", (number % 1000 for number in range(n // 4))))
    return str(path)


# ---- there and back ------------------------------------------------------------------


def trips(lab: Lab, options: Options) -> Race:
    trip = partial(Trips, lab=lab, roles=("ask", "echo"))
    ours = trip("ring, asyncio", way="ring")
    in_c = trip("ring, C", way="c_ring", spin=SPINS)
    zmq = trip("pyzmq ipc, asyncio", way="zmq", needs=("zmq",))
    tachyon = trip("Tachyon, C", way="c_tachyon", needs=("tachyon",))
    others = [
        trip("ring, uvloop", way="ring", loop="uvloop", needs=("uvloop",)),
        trip(f"ring, asyncio, spin {SPIN_US} us", way="ring", spin=SPIN_US),
        trip("pipe, asyncio", way="pipe"),
        trip("UNIX, asyncio", way="unix"),
        trip("pyzmq ipc, blocking", way="blocking_zmq", needs=("zmq",)),
        trip("Tachyon, Python", way="blocking_tachyon", needs=("tachyon",)),
        trip("ring, C, no spin", way="c_ring"),
        trip("pipe, C", way="c_pipe"),
        trip("UNIX, C", way="c_unix"),
    ]
    messages = 500 if options.quick else 20_000
    return TripRace(
        "round trips of 64 B",
        Work(TRIP, messages, warm=messages // 10, buffers=1),
        [ours, zmq, in_c, tachyon, *others],
        [Comparison(ours.name, [zmq.name]), Comparison(in_c.name, [tachyon.name])],
        headlines=[
            Headline(
                ours.name,
                [zmq.name],
                work="64 B there and back, in asyncio: two rings",
                against="pyzmq over ipc",
                unit="turns",
            )
        ],
        brief=3_000,
    )


@dataclass(frozen=True)
class TripRun(Run):
    times: Sequence[int] = field(default_factory=list)  # ns, of each round trip


@dataclass(frozen=True)
class Trips(Pair):
    """Who asks, and who echoes: every answer is compared."""

    def _run(self, work: Work, check: bool, folder: Path) -> Run:
        told = self._start(work, check, folder)
        times = array("Q", (folder / "times").read_bytes())
        sink, sender = told["sink"], told["sender"]
        return TripRun(sink["seconds"], sender["cpu"], sink["cpu"], None, times)


class TripRace(Race):
    def remarks(self, entries: Sequence[Entry]) -> list[str]:
        return [
            f"{entry.name}: half of the round trips within {us[0]:.1f} us, 99 of 100 "
            f"within {us[1]:.1f}, 999 of 1,000 within {us[2]:.1f}"
            for entry in entries
            if (us := microseconds(entry))
        ]


def microseconds(entry: Entry) -> list[float]:
    """p50, p99 and p99.9, the medians of the rounds."""
    times: list[float] = [
        time for run in entry.runs if isinstance(run, TripRun) for time in run.times
    ]
    return [percentile(times, part) / 1e3 for part in (0.5, 0.99, 0.999)]
