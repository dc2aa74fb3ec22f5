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
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


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


@dataclass(frozen=True)
class Comparison:
    """Ours against the best rival: the fastest, or the one with the least CPU time."""

    ours: str
    rivals: Sequence[str]
    by_cpu: bool = False
    cpu_of_both: bool = False  # not the sender's alone: where they share the work
    other: str = "FFmpeg"  # the other of both


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
class Verdict:
    """The result of a comparison."""

    ours: str
    rival: str  # the best of them
    ratio: float  # of the rates
    cpu_ratio: float | None  # None: too little CPU time was used to tell
    spread: tuple[float, float] | None = None  # of the ratio, in half of the rounds
    cpu_of_both: bool = False  # the other's CPU time is in cpu_ratio too
    other: str = "FFmpeg"


@dataclass(frozen=True)
class Result:
    race: Race
    entries: list[Entry]
    verdicts: list[Verdict]
    left_out: list[str]  # what is not installed


def run_race(race: Race, options: Options) -> Result:
    """Check, count, then race."""
    present = [c for c in race.contestants if not missing(c)]
    left_out = [c.name for c in race.contestants if missing(c)]
    if race.candidates:
        present.append(champion(race, options))
    entries = [Entry(contestant, race.work) for contestant in present]
    in_turn(race, entries, 1, check=True)
    if not options.quick:
        for entry in entries:
            tell(f"{race.title}: counting calls, {entry.name}")
            entry.calls_per_message = entry.contestant.count_calls(race.work)
            entry.runs.clear()
        in_turn(race, entries, race.rounds or options.rounds)
    verdicts = [
        verdict
        for comparison in race.comparisons
        if (verdict := judge(comparison, entries)) is not None
    ]
    return Result(race, entries, verdicts, left_out)


def in_turn(
    race: Race, entries: Sequence[Entry], rounds: int, check: bool = False
) -> None:
    what = "checking" if check else "round"
    for number in range(rounds):
        for entry in entries:
            tell(f"{race.title}: {what} {number + 1} of {rounds}, {entry.name}")
            entry.runs.append(entry.contestant.run(race.work, check))
            entry.verified = entry.verified or check
    tell("")


def champion(race: Race, options: Options) -> Contestant:
    entries = [Entry(contestant, race.work) for contestant in race.candidates]
    in_turn(race, entries, 1 if options.quick else max(3, (race.rounds or 0) // 4))
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
        statistics.median(by_cpu) if best.sender_cpu else None,
        spread(by_rate),
        comparison.cpu_of_both,
        comparison.other,
    )


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(ours, theirs, strict=True) if b]


def spread(values: Sequence[float]) -> tuple[float, float] | None:
    """The range of the middle half of the values; None if they are too few."""
    if len(values) < 4:
        return None
    low, _, high = statistics.quantiles(values)
    return low, high


def missing(contestant: Contestant) -> bool:
    return any(find_spec(name) is None for name in contestant.needs)


def tell(line: str) -> None:
    """Show the progress on a terminal; an empty line wipes it."""
    if sys.stderr.isatty():
        room = shutil.get_terminal_size().columns - 1
        print(f"\r\x1b[K{line[:room]}", end="", file=sys.stderr, flush=True)
