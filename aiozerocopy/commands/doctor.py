"""Say what this machine offers, what is missing, what that costs and how to get it."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING

from aiozerocopy.commands.options import Parser
from aiozerocopy.commands.probes import PROBES, Finding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

UNLIMITED = sys.maxsize  # columns of a file
WIDE = 80  # columns of a terminal that has room for a table


def examine(probe: Callable[[], Finding]) -> Finding:
    """Run one probe; make a finding of its failure, too."""
    try:
        return probe()
    except Exception as error:
        name = probe.__name__.replace("_", " ")
        text = f"the probe failed: {type(error).__name__}: {error}"
        return Finding(name, text, "unknown")


def _parser() -> Parser:
    parser = Parser(prog="aiozerocopy doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print what each probe finds as soon as it is known, or all of it as JSON."""
    if _parser().parse_args(argv).json:
        print(json.dumps([asdict(examine(probe)) for probe in PROBES], indent=2))
        return 0
    width = max(len(probe.__name__) for probe in PROBES)
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else UNLIMITED
    for probe in PROBES:
        print(as_text(examine(probe), width, columns), flush=True)
    return 0


def as_text(finding: Finding, width: int, columns: int) -> str:
    """Return lines of aligned text, or a paragraph for a narrow terminal.

    A remedy stays in one line, to be copied.
    """
    indent = " " * (width + 11 if columns >= WIDE else 2)
    head = f"{finding.verdict:<7}  {finding.name:<{width}}  "
    lines = []
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
