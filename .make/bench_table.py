"""Usage: bench_table.py RESULTS.json ROOT

Puts the results of `make bench BENCH_ARGS="--json RESULTS.json"` into the README and
the page on benchmarks, between two comments, and copies the file beside that page, with
a plot.  No figure there is typed by hand: tests/bench/test_harness.py compares them.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from bench import plot, results

PAGES = Path("docs", "pages")
FROM, UNTIL = "<!-- from benchmarks.json -->\n", "<!-- until here -->"
BLOCK = re.compile(f"(?<={FROM}).*(?={UNTIL})", re.DOTALL)


def main(path: Path, root: Path) -> None:
    text = path.read_text(encoding="utf-8")
    outcome = results.from_json(text)
    where = results.where_and_when(outcome.machine)
    ours = "Our rate divided by the rival's, both measured in turn on one machine"
    sentence = f"{ours} ({where})."
    # (no empty lines at its ends, so that the README is shorter)
    fill(root / "README.md", f"{sentence}\n\n{outcome.front()}\n")
    fill(root / PAGES / "benchmarks.md", f"\n{outcome.markdown()}\n")
    (root / PAGES / "benchmarks.json").write_text(text, encoding="utf-8")
    drawn = plot.plot(outcome.rows)
    (root / PAGES / "benchmarks.svg").write_text(drawn, encoding="utf-8")


def fill(page: Path, block: str) -> None:
    text = page.read_text(encoding="utf-8")
    # (a function, since the block may have backslashes)
    filled, times = BLOCK.subn(lambda _: block, text)
    if times != 1:
        raise SystemExit(f"{page}: the two comments for the table must be there once")
    page.write_text(filled, encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
