"""Results as a picture: bars for each race, or lines where the races are a series."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from aiozerocopy.bench.racing import Result

WIDTH, BAR, HEAD = 9.0, 0.28, 0.8  # inches
LINES = (9.0, 5.0)
COLUMNS = 2
OTHERS = ("tab:blue", "tab:orange", "tab:red", "tab:purple")


def draw(results: Sequence[Result], path: Path) -> None:
    """Write a PNG, SVG or PDF.  Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(layout="constrained")
    series = [result for result in results if result.race.count is not None]
    if series:
        draw_lines(figure, series)
    else:
        draw_bars(figure, results)
    figure.savefig(path, dpi=110)


def ours(results: Sequence[Result]) -> set[str]:
    return {verdict.ours for result in results for verdict in result.verdicts}


# ---- a bar for each contestant, a panel for each race --------------------------------


def draw_bars(figure: Any, results: Sequence[Result]) -> None:
    columns = min(COLUMNS, len(results))
    rows = -(-len(results) // columns)
    most = max(len(result.entries) for result in results)
    figure.set_size_inches(WIDTH * columns, rows * (most * BAR + HEAD))
    panels = [*figure.subplots(rows, columns, squeeze=False).flat]
    for empty in panels[len(results) :]:
        empty.set_visible(False)
    for panel, result in zip(panels[: len(results)], results, strict=True):
        draw_panel(panel, result)


def draw_panel(panel: Any, result: Result) -> None:
    entries = sorted(result.entries, key=lambda entry: entry.rate)
    rates = [entry.messages_per_second for entry in entries]
    green = ours([result])
    colors = ["tab:green" if entry.name in green else "0.6" for entry in entries]
    bars = panel.barh([entry.name for entry in entries], rates, color=colors)
    panel.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=3)
    panel.set_title(f"{result.race.title}, messages/s", fontsize=10, loc="left")
    panel.margins(x=0.12)
    panel.spines[["top", "right"]].set_visible(False)


# ---- a line for each contestant ------------------------------------------------------


def draw_lines(figure: Any, series: Sequence[Result]) -> None:
    """CPU time for each message, as the count grows."""
    figure.set_size_inches(LINES)
    panel = figure.subplots()
    lines = costs(series)
    colors = colors_of(lines, ours(series))
    for name, points in lines.items():
        style = "--" if name.endswith("uvloop") else "-"
        color = colors[library(name)]
        panel.plot(
            *zip(*points, strict=True), style, marker="o", label=name, color=color
        )
    size = series[0].race.work.size
    panel.set_title(
        f"CPU of the sender for each client's {size // 1000:,} KB message, µs",
        fontsize=10,
        loc="left",
    )
    panel.set_xscale("log")
    counts = [result.race.count for result in series]
    panel.set_xticks(counts, [f"{count:,}" for count in counts])
    panel.minorticks_off()
    panel.set_xlabel("clients")
    panel.set_ylim(bottom=0)
    panel.grid(axis="y", color="0.9")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False, fontsize=9)


def costs(series: Sequence[Result]) -> dict[str, list[tuple[int, float]]]:
    """For each contestant: the count, and microseconds of CPU for each message."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for result in sorted(series, key=lambda result: result.race.count or 0):
        for entry in result.entries:
            cost = entry.sender_cpu * entry.work.size / 1e3  # s/GB to us
            lines.setdefault(entry.name, []).append((result.race.count or 0, cost))
    return lines


def library(name: str) -> str:
    """The name without the loop: all loops of a library share a color."""
    return name.partition(",")[0]


def colors_of(names: Iterable[str], green: set[str]) -> dict[str, str]:
    mine = {library(name) for name in green}
    others = [name for name in dict.fromkeys(map(library, names)) if name not in mine]
    return dict.fromkeys(mine, "tab:green") | dict(
        zip(others, cycle(OTHERS), strict=False)
    )
