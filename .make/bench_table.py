"""Usage: bench_table.py RESULTS.json ROOT

Puts the results of `aiozerocopy bench --json RESULTS.json` into the README and the page
on benchmarks, between the comments that say so, and beside that page the file itself
and a picture.  No figure there is typed by hand: tests/bench/test_pages.py compares.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from aiozerocopy.bench import chart, machine, summary
from aiozerocopy.bench.outcome import Outcome, parse

PAGES = Path("docs", "pages")
FROM, UNTIL = "<!-- from benchmarks.json -->\n", "<!-- until here -->"
BLOCK = re.compile(f"(?<={FROM}).*(?={UNTIL})", re.DOTALL)


def main(results: Path, root: Path) -> None:
    text = results.read_text(encoding="utf-8")
    outcome = parse(text)
    fill(root / "README.md", in_readme(outcome))
    fill(root / PAGES / "benchmarks.md", on_page(outcome))
    (root / PAGES / "benchmarks.json").write_text(text, encoding="utf-8")
    chart.draw_summary(outcome, root / PAGES / "benchmarks.png")


def fill(page: Path, block: str) -> None:
    text = page.read_text(encoding="utf-8")
    # (the function, since the block may have backslashes)
    filled, times = BLOCK.subn(lambda _: block, text)
    if times != 1:
        raise SystemExit(f"{page}: where is the table to be?")
    page.write_text(filled, encoding="utf-8")


def in_readme(outcome: Outcome) -> str:
    """Without empty lines at its ends, since the README is to be short."""
    where = machine.where_and_when(outcome.machine)
    sentence = f"Our rate divided by the rival's, in turn on one machine ({where})."
    return f"{sentence}\n\n{summary.front_table(outcome)}\n"


def on_page(outcome: Outcome) -> str:
    return f"\n{summary.markdown(outcome)}\n"


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
