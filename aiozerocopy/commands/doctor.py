"""What this machine offers, what is missing, what that costs and how to get it."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING

from aiozerocopy.commands.options import Parser
from aiozerocopy.commands.probes import PROBES, Finding
from aiozerocopy.commands.progress import WIDE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

UNLIMITED = sys.maxsize  # columns of a file


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
        return 0
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED
    print(as_text(findings, columns))
    return 0


def as_text(findings: Sequence[Finding], columns: int) -> str:
    """Lay the report out as aligned text, or in a narrow terminal as paragraphs.

    What gets something stays in one line, to be copied.
    """
    width = max(len(finding.name) for finding in findings)
    indent = " " * (width + 11 if columns >= WIDE else 2)
    lines = []
    for finding in findings:
        head = f"{finding.verdict:<7}  {finding.name:<{width}}  "
        if columns < WIDE:
            lines.append(head.rstrip())
            head = indent
        texts = {head: finding.value}
        if finding.cost:
            texts[f"{indent}costs: "] = finding.cost
        for first, text in texts.items():
            lines += textwrap.wrap(
                text, columns, initial_indent=first, subsequent_indent=indent
            )
        if finding.remedy:
            lines.append(f"{indent}get it: {finding.remedy}")
    return "\n".join(lines)
