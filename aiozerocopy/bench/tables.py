"""Tables that fit: columns where there is room, else a few lines for each row.

A row begins with what was done and against whom; its other cells are numbers.  What was
done has a line of its own, above all whom it was done against.  Rows come in groups,
each with a name.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Cells = Sequence[str]
    Group = tuple[str, Sequence[Cells]]

TO_A_FILE = 110  # columns, where there is no terminal
GAP = "  "
INDENT = "   "  # of whom it was against
TOGETHER = "\N{NO-BREAK SPACE}"


def show(header: Cells, groups: Sequence[Group]) -> None:
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else TO_A_FILE
    print("\n".join(lines(header, groups, columns)), flush=True)


def say(*texts: str) -> None:
    """Sentences; on a terminal no word is broken."""
    for text in texts:
        columns = shutil.get_terminal_size().columns
        wrapped = textwrap.wrap(text, columns, subsequent_indent=" ")
        print("\n".join(wrapped) if sys.stdout.isatty() else text, flush=True)


def lines(header: Cells, groups: Sequence[Group], columns: int) -> list[str]:
    found = [*in_columns(header, groups, columns)]
    if max(map(len, found)) <= columns:
        return found
    return [*in_words(header, groups, columns)]


def in_columns(header: Cells, groups: Sequence[Group], columns: int) -> Iterator[str]:
    """Too wide, maybe."""
    rows = [header, *(row for _, some in groups for row in some)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][1:]

    def line(row: Cells) -> str:
        first, *numbers = zip(row[1:], widths, strict=True)
        cells = [first[0].ljust(first[1])]
        cells += [cell.rjust(width) for cell, width in numbers]
        return (INDENT + GAP.join(cells)).rstrip()

    yield line(header)
    for name, some in groups:
        yield name
        for work, against in itertools.groupby(some, key=lambda row: row[0]):
            yield from indented(work, columns, 1)
            yield from map(line, against)


def in_words(header: Cells, groups: Sequence[Group], columns: int) -> Iterator[str]:
    """Each number with the name of its column, and never parted from it."""
    for name, some in groups:
        yield name
        for work, against in itertools.groupby(some, key=lambda row: row[0]):
            yield from indented(work, columns, 1)
            for row in against:
                yield from indented(f"{header[1]} {row[1]}", columns, 2)
                told = (
                    f"{title} {cell}".strip().replace(" ", TOGETHER)
                    for title, cell in zip(header[2:], row[2:], strict=True)
                    if cell
                )
                yield from indented(", ".join(told), columns, 3)


def indented(text: str, columns: int, by: int) -> list[str]:
    wrapped = textwrap.wrap(
        text, columns, initial_indent=" " * by, subsequent_indent=" " * (by + 1)
    )
    return [line.replace(TOGETHER, " ") for line in wrapped]


def in_markdown(header: Cells, rows: Sequence[Cells]) -> str:
    rule = ["---", "---", *("--:" for _ in header[2:])]
    shown = [header, rule]
    for _, against in itertools.groupby(rows, key=lambda row: row[0]):
        first, *others = against
        shown += [first, *(("", *row[1:]) for row in others)]
    return "\n".join(
        f"| {' | '.join(cells)} |".replace("|  |", "| |") for cells in shown
    )
