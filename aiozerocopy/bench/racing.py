"""What all benches share: contestants, rounds, ratios.

A bench is a list of races.  In a race all contestants do the same fixed work, one after
the other (A B C, A B C, ...), so that other load on the machine hits all alike.  Ratios
are taken within each round, and their median is the result.  In a round before these,
which does not count, the receiver checks every byte.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import time
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

from aiozerocopy._core import extras
from aiozerocopy.bench.judging import Comparison as Comparison
from aiozerocopy.bench.judging import Headline as Headline
from aiozerocopy.bench.judging import Verdict as Verdict
from aiozerocopy.bench.judging import ratios, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Tell = Callable[["Race", str], None]


@dataclass(frozen=True)
class Work:
    """Fixed work: so many messages, after some to warm up."""

    size: int  # bytes of a message
    messages: int
    warm: int
    buffers: int  # that the sender sends one after the other, again and again

    @property
    def bytes(self) -> int:
        return self.size * self.messages

    @property
    def gigabytes(self) -> float:
        return self.bytes / 1e9

    @property
    def title(self) -> str:
        return f"{self.messages:,} messages of {self.size:,} bytes"


@dataclass(frozen=True)
class Run:
    """What it cost one contestant to do the work once."""

    seconds: float
    sender_cpu: float  # CPU seconds
    sink_cpu: float
    calls: int | None  # system calls that the sender itself counted


class Contestant(Protocol):
    """One way to do the work, in a process of its own."""

    @property
    def name(self) -> str: ...

    @property
    def needs(self) -> Sequence[str]:
        """Modules that must be installed."""

    def run(self, work: Work, check: bool) -> Run:
        """Do the work; with check, raise WrongBytes unless every byte is right."""

    def count_calls(self, work: Work) -> float | None:
        """System calls of the sender for each message, or None if unknown."""


class WrongBytes(Exception):
    """The receiver did not get what was sent."""


BY_HAND = {"tachyon": "it has to be built, as Benchmarks in the documentation says"}


class Lacking(FileNotFoundError):
    """This machine lacks what a race needs; the text says how to get it."""


def need(*modules: str) -> None:
    """Raises: Lacking: one of them is not installed."""
    for name in modules:
        if find_spec(name) is None:
            raise Lacking(how_to_get(name))


def how_to_get(name: str) -> str:
    """What is to be said of a module that is not installed."""
    how = BY_HAND.get(name) or extras.command_for_one("bench", name)
    return f"{name} is not installed: {how}"


@dataclass(frozen=True)
class Race:
    title: str
    work: Work
    contestants: Sequence[Contestant]
    comparisons: Sequence[Comparison]
    # Only the best of these is in the race, by its median over some rounds.
    candidates: Sequence[Contestant] = ()
    rounds: int | None = None  # instead of the number that was asked for
    count: int | None = None  # of clients, where races differ in nothing else
    # In the summary of all benches: its rows, and how many messages are enough for it.
    headlines: Sequence[Headline] = ()
    brief: int = 0
    bench: str = ""  # that it is of

    def remarks(self, entries: Sequence[Entry]) -> list[str]:
        """Results besides the rates, a sentence each."""
        return []


@dataclass(frozen=True)
class Options:
    rounds: int = 5
    quick: bool = False  # run only the round that checks, with little work
    frames: int | None = None  # of video, instead of the usual number
    size: tuple[int, int] | None = None  # of the frames, instead of the usual ones


@dataclass
class Entry:
    """A contestant and its runs so far."""

    contestant: Contestant
    work: Work
    runs: list[Run] = field(default_factory=list)
    verified: bool = False
    calls_per_message: float | None = None

    @property
    def name(self) -> str:
        return self.contestant.name

    @property
    def rates(self) -> list[float]:
        """GB/s, round by round."""
        return [self.work.gigabytes / run.seconds for run in self.runs]

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)

    @property
    def messages_per_second(self) -> float:
        return self.rate * 1e9 / self.work.size

    @property
    def sender_cpus(self) -> list[float]:
        """CPU seconds per GB, round by round."""
        return [run.sender_cpu / self.work.gigabytes for run in self.runs]

    @property
    def sender_cpu(self) -> float:
        return statistics.median(self.sender_cpus)

    @property
    def cpus(self) -> list[float]:
        """The same of sender and receiver together."""
        return [
            (run.sender_cpu + run.sink_cpu) / self.work.gigabytes for run in self.runs
        ]

    @property
    def cpu(self) -> float:
        return statistics.median(self.cpus)

    @property
    def sink_cpu(self) -> float:
        return statistics.median(run.sink_cpu for run in self.runs) / (
            self.work.gigabytes
        )


@dataclass(frozen=True)
class Result:
    race: Race
    entries: list[Entry]
    verdicts: list[Verdict]
    left_out: list[str]  # what is not installed


def in_brief(race: Race) -> Race:
    """The part of a race that makes its rows of the summary."""
    names = {name for one in race.headlines for name in (one.ours, *one.rivals)}
    most = race.brief or race.work.messages
    return replace(
        race,
        work=replace(race.work, messages=min(race.work.messages, most)),
        contestants=[one for one in race.contestants if one.name in names],
        comparisons=race.headlines,
        rounds=None,
    )


def tell(race: Race, what: str) -> None:
    """Show the progress on a terminal; an empty line wipes it."""
    if sys.stderr.isatty():
        room = shutil.get_terminal_size().columns - 1
        line = f"{race.title}: {what}"[:room] if what else ""
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


def run_race(
    race: Race, options: Options, tell: Tell = tell, until: float | None = None
) -> Result:
    """Check, count, then race; with a time to end at, calls are not counted."""
    watched = partial(tell, race)
    present = [c for c in race.contestants if not missing(c)]
    left_out = [c.name for c in race.contestants if missing(c)]
    if race.candidates:
        present.append(champion(race, options, watched))
    entries = [Entry(contestant, race.work) for contestant in present]
    in_turn(entries, 1, watched, check=True)
    if not options.quick:
        for entry in entries:
            if until is None:
                watched(f"counting calls, {entry.name}")
                entry.calls_per_message = entry.contestant.count_calls(race.work)
            entry.runs.clear()
        in_turn(entries, race.rounds or options.rounds, watched, until=until)
    watched("")
    verdicts = [
        verdict
        for comparison in race.comparisons
        if (verdict := judge(comparison, entries)) is not None
    ]
    return Result(race, entries, verdicts, left_out)


def in_turn(
    entries: Sequence[Entry],
    rounds: int,
    tell: Callable[[str], None],
    check: bool = False,
    until: float | None = None,
) -> None:
    """So many rounds, or as many as end in time, but one at least."""
    what = "checking" if check else "round"
    for number in range(rounds):
        began = time.monotonic()
        for entry in entries:
            tell(f"{what} {number + 1} of {rounds}, {entry.name}")
            entry.runs.append(entry.contestant.run(entry.work, check))
            entry.verified = entry.verified or check
        now = time.monotonic()
        if until is not None and now + (now - began) > until:
            return


def champion(race: Race, options: Options, tell: Callable[[str], None]) -> Contestant:
    entries = [Entry(contestant, race.work) for contestant in race.candidates]
    rounds = 1 if options.quick else max(3, (race.rounds or 0) // 4)
    in_turn(entries, rounds, tell)
    return max(entries, key=lambda entry: entry.rate).contestant


def judge(comparison: Comparison, entries: Sequence[Entry]) -> Verdict | None:
    """None if ours, or every rival, is not in the race."""
    ours = next((entry for entry in entries if entry.name == comparison.ours), None)
    rivals = [entry for entry in entries if entry.name in comparison.rivals]
    if ours is None or not rivals:
        return None
    if comparison.by_cpu:
        best = min(rivals, key=lambda entry: entry.sender_cpu)
    else:
        best = max(rivals, key=lambda entry: entry.rate)
    if comparison.cpu_of_both:
        by_cpu = ratios(ours.cpus, best.cpus)
    else:
        by_cpu = ratios(ours.sender_cpus, best.sender_cpus)
    by_rate = ratios(ours.rates, best.rates)
    return Verdict(
        ours.name,
        best.name,
        statistics.median(by_rate),
        statistics.median(by_cpu) if by_cpu else None,
        spread(by_rate),
        comparison.cpu_of_both,
        comparison.other,
        by_rate,
        by_cpu,
        comparison.rivals,
        comparison if isinstance(comparison, Headline) else None,
    )


def missing(contestant: Contestant) -> bool:
    return any(find_spec(name) is None for name in contestant.needs)
