"""Races: contenders that do the same fixed work in turn, round by round."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from statistics import median
from typing import Any, NamedTuple


@dataclass(frozen=True)
class Work:
    """Fixed work: a number of messages, after some to warm up."""

    size: int  # bytes of a message
    messages: int
    warm: int
    buffers: int  # that the sender sends in turn, over and over

    @property
    def total(self) -> int:
        """All bytes, including the warm-up."""
        return self.size * (self.warm + self.messages)

    @property
    def told(self) -> dict[str, Any]:
        """For a process that does the work."""
        return {**asdict(self), "total": self.total}


class Run(NamedTuple):
    """What it cost one contender to do the work once."""

    seconds: float
    cpu: float  # CPU seconds of the contender (the sender, if nothing else is said)
    sink_cpu: float  # and of the other end
    more: dict[str, float] | None = None  # by the name of its column


@dataclass(frozen=True)
class Contender:
    """One way to do the work."""

    name: str
    run: Callable[[Work, bool], Run]  # with True, raise WrongBytes if a byte is wrong
    needs: Sequence[str] = ()  # modules that must be installed

    @property
    def missing(self) -> str | None:
        return next((name for name in self.needs if find_spec(name) is None), None)


@dataclass(frozen=True)
class Duel:
    """A row of the table: one of ours beside a rival, or the fastest of `among`."""

    ours: str
    rival: str
    work: str
    against: str = ""  # what the table calls the rival, if not by its name
    unit: str = "GB"  # of our rate; any other unit counts messages
    both: bool = False  # count the other end's CPU time, too: they share the work
    front: bool = False  # one of the few rows that the README shows
    among: Sequence[str] = ()  # until they have raced; then `rival` is the fastest

    def settled(self, runs: dict[str, list[Run]]) -> Duel:
        """Return the duel with the rival of the best median, even if that is luck."""
        if not (found := [name for name in self.among if name in runs]):
            return self
        seconds = {name: median(run.seconds for run in runs[name]) for name in found}
        return replace(self, rival=min(found, key=seconds.__getitem__), among=())


@dataclass(frozen=True)
class Race:
    bench: str
    title: str
    work: Work
    contenders: Sequence[Contender]
    duels: Sequence[Duel]
    extra: bool = False  # not in the table: only run if its bench is named

    def in_table(self) -> Race:
        """Return the race with only the contenders of the table."""
        names = {name for one in self.duels for name in (one.ours, one.rival)}
        return self.among(names.union(*(one.among for one in self.duels)).__contains__)

    def among(self, is_wanted: Callable[[str], Any]) -> Race:
        """Return the race with only the contenders whose names are wanted."""
        found = [one for one in self.contenders if is_wanted(one.name)]
        return replace(self, contenders=found)

    def beside(self, other: Callable[[Contender], Contender]) -> Race:
        """Return the race with another build of each of ours that has a duel."""
        field, duels = [*self.contenders], [*self.duels]
        for one in self.contenders:
            if any(duel.ours == one.name for duel in self.duels):
                twin = other(one)
                field.insert(field.index(one) + 1, twin)
                duels.append(Duel(one.name, twin.name, f"{self.title}: {one.name}"))
        return replace(self, contenders=field, duels=duels)


@dataclass(frozen=True)
class Result:
    """What came out of a race."""

    bench: str
    title: str
    size: int
    messages: int
    duels: Sequence[Duel]
    runs: dict[str, list[Run]]  # by the contender's name, round by round


class WrongBytes(Exception):
    """The receiver did not get what was sent."""


class Lacking(Exception):
    """This machine lacks what a race needs; the text says how to get it."""


def need(*modules: str) -> None:
    """Raises: Lacking: one of them is not installed."""
    for name in modules:
        if find_spec(name) is None:
            raise Lacking(not_installed(name))


def not_installed(name: str) -> str:
    return f"{name} is not installed: make bench installs it"


def best_of(
    ours: str, rivals: Sequence[Contender], work: str, front: bool = False, **more: Any
) -> Duel:
    """One of ours, in the loop that its name contains, beside its fastest rival."""
    among = [one.name for one in rivals]
    if loop := re.search("asyncio|uvloop", ours):
        work = f"{work}, {loop[0]}"
    return Duel(ours, "", work, "the best: {}", front=front, among=among, **more)


def duels(
    ours: str, rivals: dict[str, str], work: str, front: str = "", **more: Any
) -> list[Duel]:
    """One of ours beside each rival; ``rivals`` has what the table calls them."""
    return [
        Duel(ours, rival, work, called, front=rival == front, **more)
        for rival, called in rivals.items()
    ]


# ---- running -------------------------------------------------------------------------

Tell = Callable[[str], None]


def run_race(race: Race, rounds: int, tell: Tell, until: float = math.inf) -> Result:
    """Check, then race: `rounds` times (0: only check), or as time allows."""
    present = [one for one in race.contenders if not one.missing]
    runs: dict[str, list[Run]] = {}
    for number in range(rounds + 1):
        if number <= 1:  # (the round that checks does not count)
            runs = {one.name: [] for one in present}
        began = time.monotonic()
        for one in present:
            what = f"round {number} of {rounds}" if number else "checking"
            tell(f"{what}, {one.name}")
            runs[one.name].append(one.run(race.work, number == 0))
        now = time.monotonic()
        if number and now + (now - began) > until:
            break
    duels = [one.settled(runs) for one in race.duels]
    duels = [one for one in duels if {one.ours, one.rival} <= {*runs}]
    work = race.work
    return Result(race.bench, race.title, work.size, work.messages, duels, runs)
