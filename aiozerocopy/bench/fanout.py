"""One frame to many clients, beside websockets' broadcast, aiohttp and a C loop.

All serve the same frames over TCP loopback, or UNIX sockets, to the same clients, which
read them and throw them away.  A contestant is a process of `fan_servers` that serves
in one of its `WAYS`, and starts the process of the `clients`.  The comparison is by the
server's CPU seconds for each GB delivered.

The server notes when it published each frame and the clients when it had arrived, by
the same clock, so the frames need no timestamps.  They are sent as fast as possible, so
their age is the time they spent in buffers, the kernel's included: the faster a server,
the fuller they are.  So there are races with a number of frames a second too, which all
of them can send.  There the age tells how long a frame takes, and the CPU what it
costs.  (In `rate`, it is sixty great ones to one client.)
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aiozerocopy.bench import rate
from aiozerocopy.bench.clients import PREFIX
from aiozerocopy.bench.fan_servers import Job
from aiozerocopy.bench.feeding import Crew, Lab
from aiozerocopy.bench.network import age_sentence, command
from aiozerocopy.bench.racing import (
    Comparison,
    Headline,
    Options,
    Race,
    Run,
    Work,
    WrongBytes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozerocopy.bench.racing import Entry

FRAME = 100_000
_DELIVERED = 1_000_000_000  # bytes in one round


@dataclass(frozen=True)
class Crowd:
    """Who is served, how, and how often."""

    clients: int
    link: str = "tcp"  # or "unix"
    fps: float = 0  # frames a second; 0: as fast as possible

    @property
    def title(self) -> str:
        title = f"{FRAME // 1000} KB to {self.clients:,} client"
        title += "s" if self.clients > 1 else ""
        title += " over UNIX sockets" if self.link == "unix" else ""
        return title + (f", {self.fps} times a second" if self.fps else "")

    @property
    def is_usual(self) -> bool:
        return self.link == "tcp" and not self.fps


QUICK = Crowd(100)
CROWDS = (
    *map(Crowd, (1, 10, 100, 1000)),
    *(Crowd(clients, "unix") for clients in (100, 1000)),
    *(  # 300 MB/s
        Crowd(clients, link, fps)
        for link in ("tcp", "unix")
        for clients, fps in ((100, 30), (1000, 3))
    ),
)


def races(lab: Lab, options: Options) -> list[Race]:
    crowds = (QUICK,) if options.quick else CROWDS
    return [
        *(race(lab, options, crowd) for crowd in crowds),
        rate.race(lab, options),
    ]


def race(lab: Lab, options: Options, crowd: Crowd) -> Race:
    clients = crowd.clients
    frames = (0 if options.quick else _DELIVERED) // FRAME // clients
    work = Work(FRAME, clients * max(frames, 2), warm=2 * clients, buffers=1)
    ours, *peers = (
        [
            Fan(f"{name}, {loop}", lab, way, crowd, loop)
            for loop in ("asyncio", "uvloop")
        ]
        for way, name in (
            ("broadcast", "Broadcast"),
            ("websockets", "websockets"),
            ("aiohttp", "aiohttp"),
        )
    )
    limit = Fan("C loop", lab, "c_loop", crowd)
    comparisons = [
        Comparison(one.name, [rival.name for rival in peer], by_cpu=True)
        for one in ours
        for peer in (*peers, [limit])
    ]
    in_summary = crowd.is_usual and clients == 100
    return FanRace(
        crowd.title,
        work,
        [*ours, *itertools.chain(*peers), limit],
        comparisons,
        count=clients if crowd.is_usual else None,
        headlines=headlines(crowd.title, limit) if in_summary else [],
        brief=40 * clients,
    )


def headlines(title: str, limit: Fan) -> list[Headline]:
    return [
        Headline(
            "Broadcast, uvloop",
            [rival],
            work=f"a frame of {title}: Broadcast",
            against=against,
            front=rival.startswith("websockets"),
        )
        for rival, against in (
            ("websockets, uvloop", "websockets on uvloop"),
            ("aiohttp, uvloop", "aiohttp on uvloop"),
            (limit.name, "a C loop of send"),
        )
    ]


@dataclass(frozen=True)
class FanRun(Run):
    """A run that also tells what a client costs, and what it gets."""

    memory: float  # of the server at its peak, in bytes for each client
    ages: Sequence[float]  # seconds, of every frame at every client


@dataclass(frozen=True)
class FanRace(Race):
    def remarks(self, entries: Sequence[Entry]) -> list[str]:
        return [remark(entry) for entry in entries]


def remark(entry: Entry) -> str:
    runs = [run for run in entry.runs if isinstance(run, FanRun)]
    memory = statistics.median(run.memory for run in runs)
    ages = [age for run in runs for age in run.ages]
    return (
        f"{entry.name}: {memory / 1e3:,.0f} KB of memory for each client, "
        f"{age_sentence(ages)}"
    )


@dataclass(frozen=True)
class Fan:
    """A server process in one of the `WAYS`, and its sink."""

    name: str
    lab: Lab
    way: str
    crowd: Crowd
    loop: str = "asyncio"

    @property
    def needs(self) -> Sequence[str]:
        return [*({self.way, self.loop} - {"broadcast", "c_loop", "asyncio"})]

    def run(self, work: Work, check: bool) -> FanRun:
        job = Job(
            self.way,
            self.loop,
            self.crowd.clients,
            self.crowd.link,
            work.size,
            work.warm // self.crowd.clients,
            work.messages // self.crowd.clients,
            self.crowd.fps,
            self.lab.pattern(work),
            check,
            str(self.lab.path),
        )
        if self.way == "c_loop":
            self.lab.library("fan")
        with Crew(self.lab.path / "stderr") as crew:
            crew.start(command("fan_servers", job.__dict__))
            told = crew.finish()
        sink, sender = told["sink"], told["sender"]
        expected = (work.size + PREFIX[job.framing]) * (work.warm + work.messages)
        if sink["bytes"] != expected or sink["wrong"]:
            raise WrongBytes(
                f"{self.name}: {sink['bytes']:,} bytes came and not {expected:,}; "
                f"{sink['wrong']} clients got wrong ones"
            )
        return FanRun(
            sender["seconds"],
            sender["cpu"],
            sink["cpu"],
            None,
            sender["memory"] / self.crowd.clients,
            job.ages(),
        )

    def count_calls(self, work: Work) -> float | None:
        return None
