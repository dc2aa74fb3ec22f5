"""Results as a picture: a bar for each contestant, a panel for each race."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aiozerocopy.bench.kit import Result

WIDTH, BAR, HEAD = 9.0, 0.28, 0.8  # inches
COLUMNS = 2


def draw(results: Sequence[Result], path: Path) -> None:
    """Write a PNG.  Needs matplotlib."""
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(results))
    rows = -(-len(results) // columns)
    most = max(len(result.entries) for result in results)
    height = rows * (most * BAR + HEAD)
    figure = Figure(figsize=(WIDTH * columns, height), layout="constrained")
    panels = [*figure.subplots(rows, columns, squeeze=False).flat]
    for empty in panels[len(results) :]:
        empty.set_visible(False)
    for panel, result in zip(panels[: len(results)], results, strict=True):
        entries = sorted(result.entries, key=lambda entry: entry.rate)
        ours = {verdict.goal.ours for verdict in result.verdicts}
        rates = [entry.messages_per_second for entry in entries]
        colors = ["tab:green" if entry.name in ours else "0.6" for entry in entries]
        bars = panel.barh([entry.name for entry in entries], rates, color=colors)
        panel.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=3)
        panel.set_title(f"{result.race.title}, messages/s", fontsize=10, loc="left")
        panel.margins(x=0.12)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
