"""The results of one bench as tables (with rich if it is there), and as Markdown."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from aiozerocopy.bench import machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozerocopy.bench.racing import Entry, Result, Verdict

HEADER = ("", "GB/s", "messages/s", "CPU s/GB", "receiver s/GB", "calls/message")
LEGEND = (
    "CPU s/GB: CPU seconds of the sender for each GB; receiver s/GB: those of the "
    "receiver. calls/message: system calls of the sender for each message."
)


def cells(entry: Entry) -> tuple[str, ...]:
    calls = entry.calls_per_message
    return (
        entry.name,
        f"{entry.rate:.2f}",
        f"{entry.messages_per_second:,.0f}",
        f"{entry.sender_cpu:.3f}",
        f"{entry.sink_cpu:.3f}",
        "" if calls is None else f"{calls:.2f}",
    )


def sentence(verdict: Verdict) -> str:
    text = f"{verdict.ours}: {verdict.ratio:.2f} times the rate of {verdict.rival}"
    if verdict.spread is not None:
        text += " ({:.2f} to {:.2f} in half of the rounds)".format(*verdict.spread)
    if verdict.cpu_ratio is not None:
        text += f", for {verdict.cpu_ratio:.2f} times its CPU time"
        text += f", {verdict.other}'s included" if verdict.cpu_of_both else ""
    return text


def footnotes(result: Result) -> list[str]:
    notes = [sentence(verdict) for verdict in result.verdicts]
    notes += result.race.remarks(result.entries)
    if result.left_out:
        notes.append(f"not installed: {', '.join(result.left_out)}")
    return notes


def heading(result: Result) -> str:
    rounds = len(result.entries[0].runs)
    runs = f"medians of {rounds} rounds" if rounds > 1 else "one round"
    return f"{result.race.title}: {result.race.work.title}, {runs}"


# ---- for a terminal ---------------------------------------------------------------


def show(result: Result) -> None:
    rows = [cells(entry) for entry in result.entries]
    if find_spec("rich") is None:
        print(f"\n{heading(result)}")
        print("\n".join(plain_rows([HEADER, *rows])))
    else:
        show_rich(result, rows)
    for note in footnotes(result):
        print(f"  {note}", flush=True)


def show_rich(result: Result, rows: Sequence[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"\n{heading(result)}", title_justify="left", box=box.SIMPLE)
    for number, name in enumerate(HEADER):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    # (for a file or a pipe, rich would take 80 columns)
    Console(width=None if sys.stdout.isatty() else 110).print(table)


def plain_rows(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


# ---- for files --------------------------------------------------------------------


def markdown(facts: dict[str, Any], results: Sequence[Result]) -> str:
    parts = [machine.sentence(facts), LEGEND]
    for result in results:
        rows = [HEADER, ("---",) + ("--:",) * (len(HEADER) - 1)]
        rows += [cells(entry) for entry in result.entries]
        table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
        notes = "\n".join(f"- {note}" for note in footnotes(result))
        parts.append(f"### {heading(result)}\n\n{table}\n\n{notes}")
    return "\n\n".join(parts) + "\n"
