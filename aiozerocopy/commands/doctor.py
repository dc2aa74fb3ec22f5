"""What this machine offers, what is missing, what that costs and how to get it."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from aiozerocopy.commands.options import Parser
from aiozerocopy.commands.probes import PROBES, Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def report() -> list[Finding]:
    """Run all probes, in the order of the table."""
    return [examine(probe) for probe in PROBES]


def examine(probe: Callable[[], Finding]) -> Finding:
    """Run one probe; a probe that fails is a finding as well."""
    try:
        return probe()
    except Exception as error:
        name = probe.__name__.replace("_", " ")
        text = f"the probe failed: {type(error).__name__}: {error}"
        return Finding(name, text, "unknown")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the report, as a table or as JSON."""
    parser = Parser(prog="aiozerocopy doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    as_json = parser.parse_args(argv).json
    findings = report()
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    elif sys.stdout.isatty() and importlib.util.find_spec("rich"):
        print_table(findings)
    else:
        print(as_text(findings))
    return 0


def as_text(findings: Sequence[Finding]) -> str:
    """Lay the report out as aligned text."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.verdict:<7}  {finding.name:<{width}}  {finding.value}")
        notes = {"costs": finding.cost, "get it": finding.remedy}
        lines += [
            f"{'':<{width + 9}}  {label}: {note}"
            for label, note in notes.items()
            if note
        ]
    return "\n".join(lines)


def print_table(findings: Sequence[Finding]) -> None:
    """Print the report as a table in colours."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {"ok": "green", "limited": "yellow", "missing": "red", "unknown": "red"}
    table = Table("", "")
    table.add_column("here", overflow="fold")  # whole paths, to copy
    table.add_column("what it costs")
    table.add_column("how to get it")
    for finding in findings:
        table.add_row(
            Text(finding.verdict, style=colours[finding.verdict]),
            # Text, because rich would take square brackets for its markup.
            *map(Text, (finding.name, finding.value, finding.cost, finding.remedy)),
        )
    Console().print(table)
