"""The streams and rings of running programs that call azc.publish_stats(), live.

It reads counters only: streams are not slowed, and no data is shown.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from aiozerocopy.commands import ending
from aiozerocopy.commands.options import Parser, seconds
from aiozerocopy.commands.programs import Peers, Snapshot, ask_all, process_name
from aiozerocopy.commands.progress import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

COUNTED = ("bytes", "messages", "waits")  # of which there are rates
NOBODY = "no program publishes its stats: one that calls azc.publish_stats() is shown"
GAP = 2  # columns between two cells
SHORTEST = 0.1  # seconds between two looks
WIDE = 100  # columns of a terminal, in which names need not be short
NAMES = 16  # columns for one, where they are


def main(argv: Sequence[str]) -> int:
    """Show it until Ctrl-C; with --once, once."""
    arguments = _parser().parse_args(argv)
    if arguments.interval < SHORTEST:
        _parser().error(f"--interval: write {SHORTEST} seconds or more")
    watch = Watch()
    watch.look()
    if arguments.once:
        return show_once(watch, arguments.interval, as_json=arguments.json)
    if arguments.json:
        while True:
            time.sleep(arguments.interval)
            print(json.dumps(watch.look()), flush=True)
    show(watch, arguments.interval)


def show(watch: Watch, pause: float) -> NoReturn:
    """Print the table again and again; in a terminal each replaces the one before."""
    is_live, above = sys.stdout.isatty(), 0
    while True:
        if above or not is_live:
            time.sleep(pause)
        if not is_live:
            print("\n".join([*text(watch.look(), 0), ""]), flush=True)
            continue
        width, height = shutil.get_terminal_size()
        lines = [line[:width] for line in text(watch.look(), width)[: height - 1]]
        up = f"\x1b[{above}F\x1b[J" if above else ""
        print(up + "\n".join(lines), flush=True)
        above = len(lines)


def show_once(watch: Watch, pause: float, *, as_json: bool) -> int:
    time.sleep(pause)
    found = watch.look()
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    if not found:
        ending.complain("aiozerocopy top", NOBODY)
        return ending.FAILED
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    print("\n".join(text(found, width)))
    return 0


def _parser() -> Parser:
    result = Parser(prog="aiozerocopy top", description=__doc__)
    result.add_argument("--once", action="store_true", help="print one table, and exit")
    result.add_argument(
        "--json",
        action="store_true",
        help="print all counters as JSON, a line each time",
    )
    result.add_argument(
        "--interval",
        type=seconds,
        default=1.0,
        metavar="SECONDS",
        help="seconds between two readings",
    )
    return result


# ---- looking ------------------------------------------------------------------------


class Watch:
    """What the programs tell, with the rates since the last look."""

    def __init__(self) -> None:
        self._peers = Peers()
        self._before: dict[tuple[int, str, int], tuple[float, dict[str, Any]]] = {}

    def look(self) -> list[Snapshot]:
        """Ask all programs; each stream gets its "peer" and its "rates".

        Raises: as `ask_all`.
        """
        self._peers.refresh()
        found = ask_all()
        now: dict[tuple[int, str, int], tuple[float, dict[str, Any]]] = {}
        for program in found:
            for kind, one in every(program):
                key = program["pid"], kind, one["id"]
                now[key] = program["time"], one
                one["peer"] = (
                    process_name(one["peer_pid"])
                    if kind == "rings"
                    else self._peers.of(program["pid"], one["fd"])
                )
                one["rates"] = rates(self._before.get(key), now[key])
        self._before = now
        return found


def every(program: Snapshot) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a program has, and of which kind."""
    for kind in ("streams", "rings"):
        for one in program.get(kind, ()):
            yield kind, one


def rates(
    before: tuple[float, dict[str, Any]] | None, now: tuple[float, dict[str, Any]]
) -> dict[str, float | None]:
    """A second, by counter; None at the first look."""
    if before is None or now[0] <= before[0]:
        return dict.fromkeys(COUNTED)
    took = now[0] - before[0]
    return {name: (now[1][name] - before[1][name]) / took for name in COUNTED}


# ---- the table ----------------------------------------------------------------------


class Column(NamedTuple):
    title: str
    rank: int  # in a narrow terminal the columns of the highest rank are left out
    is_number: bool = False


COLUMNS = (
    Column("program", 0),
    Column("", 2),
    Column("peer", 1),
    Column("lane", 8),
    Column("age", 7, True),
    Column("MB/s", 0, True),
    Column("messages/s", 4, True),
    Column("waits/s", 6, True),
    Column("queued", 5, True),
    Column("full", 3, True),
    Column("error", 0),
)


Table = list[tuple[Column, list[str]]]  # the columns that are shown, and their cells


def table(found: Sequence[Snapshot], width: int) -> Table:
    """All streams, without empty columns.

    In a terminal of ``width`` columns those that matter least are left out; 0 is for
    any width.
    """
    rows = [
        cells(program, one, NAMES if 0 < width < WIDE else 2 * NAMES)
        for program in found
        for _, one in every(program)
        if not is_unused(program, one)
    ]
    made = [
        (column, [row[at] for row in rows])
        for at, column in enumerate(COLUMNS)
        if any(row[at] for row in rows)
    ]
    while (
        width and len(made) > 1 and sum(map(wide, made)) + GAP * len(made) - GAP > width
    ):
        made.remove(max(made, key=lambda each: each[0].rank))
    return made


def wide(column: tuple[Column, list[str]]) -> int:
    """How many characters it needs."""
    return max(map(len, (column[0].title, *column[1])))


def is_unused(program: Snapshot, one: dict[str, Any]) -> bool:
    """A socket's direction that was never used, while the other one is shown."""
    if one["bytes"] or one["calls"] or one["queued"]:
        return False
    return any(
        other is not one and other["fd"] == one["fd"] and other["calls"]
        for _, other in every(program)
    )


def cells(program: Snapshot, one: dict[str, Any], most: int) -> tuple[str, ...]:
    rate = one["rates"]
    said = (
        f"{shortened(program['name'], most)} {program['pid']}",
        one["direction"],
        shortened(one["peer"] or f"fd {one['fd']}", most),
        one["lane"],
        duration(one["age"]),
        number(rate["bytes"], 1e-6, ".1f"),
        number(rate["messages"]),
        number(rate["waits"]),
        size(one["queued_bytes"]),
        f"{one['unread'] / one['capacity']:.0%}" if one.get("capacity") else "",
        one["error"],
    )
    return tuple(map(printable, said))


def printable(text: str) -> str:
    """It without what would move the cursor, or worse."""
    return "".join(each if each.isprintable() else "?" for each in text)


def number(value: float | None, factor: float = 1, form: str = ".0f") -> str:
    return "" if value is None else f"{value * factor:,{form}}"


def duration(age: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if age >= 2 * length:
            return f"{age / length:.0f} {unit}"
    return f"{age:.0f} s"


def size(n: int) -> str:
    for unit, length in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n >= length:
            return f"{n / length:.1f} {unit}"
    return f"{n} B" if n else ""


def notes(found: Sequence[Snapshot]) -> list[str]:
    """What no row tells."""
    if not found:
        return [NOBODY]
    said = []
    for program in found:
        who = printable(f"{program['name']} {program['pid']}".strip())
        if program.get("odd"):
            said.append(f"{who} tells nothing that can be shown: another version's?")
        elif program.get("silent"):
            said.append(f"{who} does not answer: it is stopped, or very busy")
        elif not any(every(program)):
            said.append(f"{who} has no stream and no ring open")
    return said


def text(found: Sequence[Snapshot], width: int) -> list[str]:
    """The table and the notes as plain lines."""
    made = table(found, width)
    columns = [
        [
            cell.rjust(wide(each)) if each[0].is_number else cell.ljust(wide(each))
            for cell in (each[0].title, *each[1])
        ]
        for each in made
    ]
    lines = [(" " * GAP).join(row).rstrip() for row in zip(*columns, strict=True)]
    return [*lines, *notes(found)]
