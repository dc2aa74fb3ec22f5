"""asyncio's transports, ours and others': messages one way, and there and back.

One way the C sink takes them.  There and back a plain socket asks, and the contestant
answers with what it got; its CPU time is told.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from aiozerocopy.bench.echoing import Job
from aiozerocopy.bench.feeding import Crew, Feeder, in_python, tcp_link
from aiozerocopy.bench.network import command
from aiozerocopy.bench.racing import Comparison, Headline, Race, Run, Work, WrongBytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiozerocopy.bench.feeding import Lab
    from aiozerocopy.bench.racing import Contestant, Options

SIZES = {"1 KiB": 1 << 10, "64 KiB": 64 << 10, "6 MB": 6_000_000}
BYTES = {1 << 10: 150_000_000, 64 << 10: 2_000_000_000, 6_000_000: 3_000_000_000}
MOST = 40_000  # messages there and back
FACES = {"Protocol": "protocol", "streams": "streams"}


def races(lab: Lab, options: Options) -> list[Race]:
    sizes = {"64 KiB": SIZES["64 KiB"]} if options.quick else SIZES
    return [
        kind(lab, options, f"{name}, {face}", size, FACES[face])
        for kind in (one_way, echo)
        for face in FACES
        for name, size in sizes.items()
    ]


def contestants(
    make: Callable[[str, str, bool, Sequence[str]], Contestant],
) -> tuple[list[Contestant], list[Comparison]]:
    """Ours and theirs on each loop; and what is compared."""
    names = {
        (is_ours, loop): f"{'ours, ' if is_ours else ''}{loop}"
        for is_ours in (True, False)
        for loop in ("asyncio", "uvloop")
    }
    made = [
        make(name, loop, is_ours, ("uvloop",) if loop == "uvloop" else ())
        for (is_ours, loop), name in names.items()
    ]
    return made, [
        Comparison(names[True, loop], [names[False, loop]])
        for loop in ("asyncio", "uvloop")
    ]


def work_of(size: int, most: int, options: Options) -> Work:
    messages = min(BYTES[size] // size, most)
    messages = max(8, messages // (200 if options.quick else 1))
    messages -= messages % 4
    return Work(size, messages, warm=max(4, messages // 40 * 4), buffers=4)


def one_way(lab: Lab, options: Options, title: str, size: int, face: str) -> Race:
    way = "protocol_write" if face == "protocol" else "write_and_drain"

    def make(name: str, loop: str, is_ours: bool, needs: Sequence[str]) -> Feeder:
        ways = in_python(way, loop, is_ours=is_ours)
        return Feeder(name, lab, ways, tcp_link, needs)

    return Race(
        f"{title}, one way",
        work_of(size, 200_000, options),
        *contestants(make),
        headlines=headlines(title, face, "") * (size < 1 << 20),
        brief=40_000 if size < MOST else 4_000,
    )


def echo(lab: Lab, options: Options, title: str, size: int, face: str) -> Race:
    make = partial(Echoer, lab=lab, face=face)
    return Race(
        f"{title}, echo",
        work_of(size, MOST, options),
        *contestants(lambda *one: make(*one)),
        headlines=headlines(title, face, " there and back") * (size < MOST),
        brief=8_000,
    )


def headlines(title: str, face: str, where: str) -> list[Headline]:
    if face != "protocol":
        return []
    return [
        Headline(
            f"ours, {loop}",
            [loop],
            work=f"{title.partition(',')[0]} messages{where}: azc.transport",
            against=f"{loop}'s transport",
            unit="messages",
        )
        for loop in ("asyncio", "uvloop")
    ]


@dataclass(frozen=True)
class Echoer:
    """A process that answers, and one that asks it."""

    name: str
    loop: str
    is_ours: bool
    needs: Sequence[str]
    lab: Lab
    face: str

    def run(self, work: Work, check: bool) -> Run:
        ours, theirs = tcp_link()
        plan: dict[str, Any] = {
            "size": work.size,
            "warm": work.warm,
            "messages": work.messages,
            "pattern": self.lab.pattern(work),
            "face": self.face,
            "loop": self.loop,
            "is_ours": self.is_ours,
        }
        asks = Job("ask", theirs, check=check, **plan)
        answers = Job("answer", ours, **plan)
        with Crew(self.lab.path / "stderr") as crew:
            try:
                for job in (answers, asks):
                    crew.start(command("echoing", asdict(job)), keep=(job.fd,))
            finally:
                os.close(ours)
                os.close(theirs)
            told = crew.finish()
        asked, answered = told["sink"], told["sender"]
        if asked["wrong"] >= 0:
            raise WrongBytes(f"{self.name}: answer {asked['wrong']} is another")
        return Run(asked["seconds"], answered["cpu"], asked["cpu"], None)

    def count_calls(self, work: Work) -> float | None:
        return None
