"""The summary of all benches: one table, for a terminal and as Markdown."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from aiozerocopy.bench import machine, tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozerocopy.bench.outcome import Missed, Outcome, Row

HEADER = ("work", "against", "ratio", "range", "CPU", "our rate")
LEGEND = (
    "ratio: our rate divided by the rival's, in turn on the same machine: the median "
    "of the rounds, and their range. Above 1 we are faster. CPU: our CPU time for the "
    "same bytes divided by the rival's; below 1 we need less."
)


def cells(row: Row) -> tuple[str, ...]:
    lowest, highest = min(row.ratios), max(row.ratios)
    return (
        row.work,
        row.against,
        number(row.ratio),
        f"{number(lowest)} to {number(highest)}" if len(row.ratios) > 1 else "",
        "" if row.cpu_ratio is None else number(row.cpu_ratio),
        rate(row),
    )


def number(value: float) -> str:
    """With two or three digits that count."""
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{decimals}f}"


def rate(row: Row) -> str:
    for letter, factor in (("M", 1e6), ("k", 1e3)):
        if row.rate >= max(factor, 10_000):
            return f"{number(row.rate / factor)} {letter} {row.unit}/s"
    digits = number(row.rate) if row.unit == "GB" else f"{row.rate:,.0f}"
    return f"{digits} {row.unit}/s"


def groups(rows: Sequence[Row]) -> list[tuple[str, list[tuple[str, ...]]]]:
    return [
        (bench, [cells(row) for row in some])
        for bench, some in itertools.groupby(rows, key=lambda row: row.bench)
    ]


def show(outcome: Outcome) -> None:
    if outcome.rows:
        tables.show(HEADER, groups(outcome.rows))
    tables.say(*remarks(outcome))


def remarks(outcome: Outcome) -> list[str]:
    """What is not in the table: for each reason one line."""
    reasons: dict[str, list[Missed]] = {}
    for one in outcome.left_out:
        reasons.setdefault(one.why, []).append(one)
    said = [f"failed: {one}" for one in outcome.failed]
    for why, missed in reasons.items():
        benches = ", ".join(dict.fromkeys(one.bench for one in missed))
        alone = len(missed) == 1
        said.append(
            f"left out: {missed[0]}" if alone else f"left out in {benches}: {why}"
        )
    return said


# ---- for files ----------------------------------------------------------------------


def markdown(outcome: Outcome) -> str:
    parts = [machine.sentence(outcome.machine), LEGEND, whole_table(outcome)]
    parts += ["\n".join(f"- {line}" for line in remarks(outcome))]
    return "\n\n".join(filter(None, parts)) + "\n"


def whole_table(outcome: Outcome) -> str:
    return tables.in_markdown(HEADER, [cells(row) for row in outcome.rows])


def front_table(outcome: Outcome) -> str:
    """The few rows that the README shows, without our rate."""
    rows = [cells(row)[:-1] for row in outcome.rows if row.front]
    return tables.in_markdown(HEADER[:-1], rows)
