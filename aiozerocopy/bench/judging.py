"""Who is compared with whom, and what came out.

Ratios are taken within each round, and their median is the result: what else the
machine did in a round has hit both sides.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Comparison:
    """Ours against the best rival: the fastest, or the one with the least CPU time."""

    ours: str
    rivals: Sequence[str]
    by_cpu: bool = False
    cpu_of_both: bool = False  # not the sender's alone: where they share the work
    other: str = "FFmpeg"  # the other of both


@dataclass(frozen=True)
class Headline(Comparison):
    """A row of the summary, for who has never seen the bench that it is from."""

    work: str = field(kw_only=True)
    against: str = ""  # what the rival is called there, if not by its name
    unit: str = "GB"  # of our rate; any other word counts messages
    front: bool = False  # one of the few that the README shows


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
    ratios: Sequence[float] = ()  # round by round
    cpu_ratios: Sequence[float] = ()
    rivals: Sequence[str] = ()
    headline: Headline | None = None


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(ours, theirs, strict=True) if a and b]


def spread(values: Sequence[float]) -> tuple[float, float] | None:
    """The range of the middle half of the values; None if they are too few."""
    if len(values) < 4:
        return None
    low, _, high = statistics.quantiles(values)
    return low, high
