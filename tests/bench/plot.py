"""The table as a picture: the range of each ratio, on an axis that doubles."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Iterator
from html import escape

from bench.results import Row

LEFT, WIDTH, RIGHT = 360, 380, 20
TOP, LINE = 34, 17
LEAST, MOST = 0.25, 16.0

STYLE = """
  svg { background: #fff; }
  text { font: 12px system-ui, sans-serif; fill: #222; }
  .rival, .axis { fill: #666; }
  line { stroke: #ddd; }
  .one { stroke: #888; }
  .faster { fill: #2a8f4f; }
  .slower { fill: #c2482e; }
  .same { fill: #8a8a8a; }
  @media (prefers-color-scheme: dark) {
    svg { background: #1e2129; }
    text { fill: #e0e0e0; }
    .rival, .axis { fill: #a0a0a0; }
    line { stroke: #444; }
    .faster { fill: #4cc27a; }
    .slower { fill: #ee7b60; }
  }
"""


def plot(rows: Iterable[Row]) -> str:
    """Return an SVG."""
    shown: list[str] = []
    y = TOP
    for work, group in itertools.groupby(rows, key=lambda row: row.duel.work):
        y += LINE + 6
        shown.append(f'<text x="0" y="{y}">{escape(work)}</text>')
        for row in group:
            y += LINE
            shown += _bar(row, y)
    axis = list(_axis(y + 8))
    width, height = LEFT + WIDTH + RIGHT, y + 12
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">'
    title = "<title>Our rate divided by the rival's: range and median</title>"
    return "\n".join(
        [head, title, f"<style>{STYLE}</style>", *axis, *shown, "</svg>\n"]
    )


def _at(ratio: float) -> float:
    inside = min(max(ratio, LEAST), MOST)
    return round(LEFT + WIDTH * math.log(inside / LEAST) / math.log(MOST / LEAST), 1)


def _bar(row: Row, y: int) -> Iterator[str]:
    ratios = row.ratios
    least, median, most = min(ratios), statistics.median(ratios), max(ratios)
    kind = "faster" if least > 1 else "slower" if most < 1 else "same"
    against = escape(row.duel.against.format(row.duel.rival) or row.duel.rival)
    begin, width = _at(least), max(_at(most) - _at(least), 2)
    yield f'<text class="rival" x="12" y="{y}">{against}</text>'
    box = f'x="{begin}" y="{y - 8}" width="{width:.1f}" height="6" rx="3"'
    yield f'<rect class="{kind}" opacity="0.5" {box}/>'
    yield f'<circle class="{kind}" cx="{_at(median)}" cy="{y - 5}" r="4"/>'


def _axis(bottom: int) -> Iterator[str]:
    """Lines at each doubling, with what they mean above."""
    for power in range(round(math.log2(LEAST)), round(math.log2(MOST)) + 1):
        ratio = 2.0**power
        x = _at(ratio)
        kind = ' class="one"' if ratio == 1 else ""
        yield f'<line{kind} x1="{x}" x2="{x}" y1="{TOP}" y2="{bottom}"/>'
        middle = f'text-anchor="middle" x="{x}" y="{TOP - 6}"'
        yield f'<text class="axis" {middle}>{ratio:g}</text>'
    for ratio, said in ((0.5, "we are slower"), (4, "we are faster")):
        middle = f'text-anchor="middle" x="{_at(ratio)}" y="12"'
        yield f'<text class="axis" {middle}>{said}</text>'
