"""Results as a picture: bars for each race, or lines where the races are a series.

The summary's picture has the range of each ratio.
"""

from __future__ import annotations

import itertools
from itertools import cycle
from typing import TYPE_CHECKING, Any

from aiozerocopy.bench import machine
from aiozerocopy.bench.summary import number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from aiozerocopy.bench.outcome import Outcome, Row
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


# ---- the summary: a range for each ratio ---------------------------------------------

LINE = 0.27  # inches
MARGINS = {"left": 5.9, "right": 0.3, "top": 0.6, "bottom": 0.6}  # inches
PLOT = 5.5
BETTER, WORSE = "#2a7f3f", "#b3541e"  # told apart by those who see no colours, too
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)


def draw_summary(outcome: Outcome, path: Path) -> None:
    """Write a PNG, SVG or PDF.  Needs matplotlib.

    Raises:
        ValueError: there is no row.
    """
    from matplotlib.figure import Figure

    rows = outcome.rows
    if not rows:
        raise ValueError("no race has run: there is nothing to draw")
    figure = Figure(facecolor="white")
    panel = figure.add_axes(place_of_plot(figure, len(rows) * LINE))
    panel.set_xscale("log")
    for place, row in enumerate(rows):
        draw_range(panel, place, row)
    panel.axvline(1, color="0.4", linewidth=1, zorder=1)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    name_rows(panel, rows)
    scale_ratios(panel, rows)
    figure.text(
        0.01,
        1 - 0.1 / figure.get_figheight(),
        "Our rate divided by the rival's: the median of the rounds, and their range\n"
        f"{machine.where_and_when(outcome.machine)}",
        fontsize=10,
        va="top",
    )
    panel.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(path, dpi=110)


def place_of_plot(figure: Any, height: float) -> tuple[float, float, float, float]:
    """Make the figure as large as needed, and say where in it the plot is."""
    whole = (
        MARGINS["left"] + PLOT + MARGINS["right"],
        MARGINS["top"] + height + MARGINS["bottom"],
    )
    figure.set_size_inches(whole)
    left, bottom = MARGINS["left"] / whole[0], MARGINS["bottom"] / whole[1]
    return left, bottom, PLOT / whole[0], height / whole[1]


def name_rows(panel: Any, rows: Sequence[Row]) -> None:
    """The rival beside its bar; left of that the work, once for all its rivals."""
    panel.set_yticks(range(len(rows)), [row.against for row in rows], fontsize=8)
    panel.tick_params(axis="y", length=0)
    edge = 0.15 - MARGINS["left"]
    for place, (last, row) in enumerate(itertools.pairwise([None, *rows])):
        assert row is not None
        if last is None or row.work != last.work:
            begin = (edge / PLOT, place)
            panel.text(
                *begin, row.work, transform=panel.get_yaxis_transform(), **WORK_FONT
            )
        if last is not None and row.bench != last.bench:
            panel.plot(
                [edge / PLOT, 1],
                [place - 0.5] * 2,
                transform=panel.get_yaxis_transform(),
                color="0.85",
                linewidth=0.8,
                clip_on=False,
            )


WORK_FONT: dict[str, Any] = {"fontsize": 8, "va": "center"}


def draw_range(panel: Any, place: int, row: Row) -> None:
    lowest, highest = min(row.ratios), max(row.ratios)
    color = BETTER if row.ratio >= 1 else WORSE
    panel.hlines(place, lowest, highest, color=color, linewidth=5, alpha=0.45, zorder=3)
    panel.plot([row.ratio], [place], "o", color=color, markersize=5, zorder=4)
    panel.annotate(
        number(row.ratio),
        (highest, place),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        color=color,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
    )


def scale_ratios(panel: Any, rows: Sequence[Row]) -> None:
    every = [ratio for row in rows for ratio in row.ratios] or [1.0]
    lowest, highest = min(0.5, *every) / 1.1, max(2.0, *every) * 1.4
    panel.set_xlim(lowest, highest)
    ticks = [tick for tick in TICKS if lowest <= tick <= highest]
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.grid(axis="x", color="0.92")
    panel.set_axisbelow(True)
    panel.set_xlabel("ratio; above 1 we are faster", fontsize=9)
