"""What came out of a bench, as a file of JSON: written here, and read again.

The summary, its picture, the tables of the documentation and the comparison with an
earlier run are all made from such a file, or from what would be in it.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozerocopy.bench.racing import Entry, Result, Verdict

FOREIGN = "it is not what aiozerocopy bench --json writes"
FAULTS = (
    *(ArithmeticError, AttributeError, LookupError, RecursionError),
    *(TypeError, ValueError),
)


@dataclass(frozen=True)
class Missed:
    """What is not in the results, and why."""

    bench: str
    what: str
    why: str

    def __str__(self) -> str:
        where = ", ".join(filter(None, (self.bench, self.what)))
        return f"{where}: {self.why}"


@dataclass(frozen=True)
class Row:
    """One comparison: ours beside the best of some rivals."""

    bench: str
    title: str
    messages: int
    ours: str
    rivals: tuple[str, ...]
    rival: str
    work: str  # for a reader of the summary
    against: str
    ratios: tuple[float, ...]  # of the rates, round by round
    cpu_ratios: tuple[float, ...]
    rate: float  # ours: so many units a second
    unit: str
    front: bool

    @property
    def key(self) -> tuple[str, str, tuple[str, ...]]:
        """The same in every run."""
        return self.title, self.ours, self.rivals

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def cpu_ratio(self) -> float | None:
        return statistics.median(self.cpu_ratios) if self.cpu_ratios else None


@dataclass(frozen=True)
class Outcome:
    """All that a summary shows."""

    machine: dict[str, Any]
    rows: Sequence[Row]
    left_out: Sequence[Missed] = ()
    failed: Sequence[Missed] = ()


# ---- to JSON ------------------------------------------------------------------------


def as_json(
    machine: dict[str, Any],
    results: Sequence[Result],
    left_out: Sequence[Missed] = (),
    failed: Sequence[Missed] = (),
) -> dict[str, Any]:
    return {
        "machine": machine,
        "races": [race_as_json(result) for result in results],
        "left_out": [asdict(one) for one in left_out],
        "failed": [asdict(one) for one in failed],
    }


def race_as_json(result: Result) -> dict[str, Any]:
    entries = {entry.name: entry for entry in result.entries}
    race = result.race
    return {
        "bench": race.bench,
        "title": race.title,
        "size": race.work.size,
        "messages": race.work.messages,
        "contestants": [entry_as_json(entry) for entry in result.entries],
        "comparisons": [
            verdict_as_json(verdict, race.title, entries[verdict.ours])
            for verdict in result.verdicts
        ],
        "remarks": race.remarks(result.entries),
        "not_installed": result.left_out,
    }


def entry_as_json(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "verified": entry.verified,
        "gb_per_s": entry.rates,
        "median_gb_per_s": entry.rate,
        "cpu_s_per_gb": entry.sender_cpu,
        "sink_cpu_s_per_gb": entry.sink_cpu,
        "calls_per_message": entry.calls_per_message,
        "rounds": [
            {
                "seconds": run.seconds,
                "cpu_s": run.sender_cpu,
                "sink_cpu_s": run.sink_cpu,
            }
            for run in entry.runs
        ],
    }


def verdict_as_json(verdict: Verdict, title: str, ours: Entry) -> dict[str, Any]:
    headline = verdict.headline
    counts = headline is not None and headline.unit != "GB"
    return {
        "ours": verdict.ours,
        "rivals": list(verdict.rivals),
        "rival": verdict.rival,
        "ratio": verdict.ratio,
        "cpu_ratio": verdict.cpu_ratio,
        "cpu_of_both": verdict.cpu_of_both,
        "spread": verdict.spread,
        "ratios": list(verdict.ratios),
        "cpu_ratios": list(verdict.cpu_ratios),
        "rate": ours.messages_per_second if counts else ours.rate,
        "unit": headline.unit if headline else "GB",
        "work": headline.work if headline else f"{title}: {verdict.ours}",
        "against": (headline and headline.against) or verdict.rival,
        "front": headline is not None and headline.front,
    }


# ---- from JSON ----------------------------------------------------------------------


def parse(text: str) -> Outcome:
    """Raises: ValueError: it is something else."""
    try:
        return from_json(json.loads(text))
    except FAULTS:
        raise ValueError(FOREIGN) from None


def from_json(told: dict[str, Any]) -> Outcome:
    """Raises: one of the `FAULTS`: it is something else."""
    return Outcome(
        machine_from_json(told["machine"]),
        [
            row_from_json(race, comparison)
            for race in told["races"]
            for comparison in race["comparisons"]
        ],
        [missed_from_json(one) for one in told["left_out"]],
        [missed_from_json(one) for one in told["failed"]],
    )


def machine_from_json(told: dict[str, Any]) -> dict[str, Any]:
    datetime.fromisoformat(told["date"])  # or it is no date
    words = ("date", "python", "system", "cpu")
    return {name: word(told[name]) for name in words} | {
        "cpus": int(told["cpus"]),
        "load": float(told["load"]),
        "versions": {word(k): word(v) for k, v in told["versions"].items()},
    }


def row_from_json(race: dict[str, Any], told: dict[str, Any]) -> Row:
    ratios, [rate] = numbers(told["ratios"]), numbers([told["rate"]])
    if not ratios:
        raise ValueError("no round at all")
    return Row(
        word(race["bench"]),
        word(race["title"]),
        int(race["messages"]),
        word(told["ours"]),
        tuple(map(word, told["rivals"])),
        word(told["rival"]),
        word(told["work"]),
        word(told["against"]),
        ratios,
        numbers(told["cpu_ratios"]),
        rate,
        word(told["unit"]),
        bool(told["front"]),
    )


def missed_from_json(told: dict[str, Any]) -> Missed:
    return Missed(*(word(told[name]) for name in ("bench", "what", "why")))


def word(told: object) -> str:
    if not isinstance(told, str):
        raise TypeError(told)
    return told


def numbers(told: Sequence[object]) -> tuple[float, ...]:
    """Rates and ratios: finite, and more than nothing."""
    found = tuple(one for one in told if isinstance(one, int | float))
    if len(found) != len(told) or not all(0 < one < math.inf for one in found):
        raise ValueError(told)
    return found
