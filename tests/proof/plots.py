"""The curves of a proof as pictures: one for each plot, a line for each curve in it.

A curve is named "PLOT: LINE".  A picture says in its own text which data it was drawn
from, so that a test can tell whether it is the one.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from .results import Json

Plot = dict[str, Any]  # the name of a line: its curve

SIZE = (8.0, 3.6)  # inches
DPI = 100
TEXT = "Description"  # of the PNG: the digest of what was drawn
COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")


def plots(figures: Json) -> dict[str, Plot]:
    """The plots of a slice, by their names."""
    found: dict[str, Plot] = {}
    for what, figure in figures.items():
        if figure["kind"] == "curve":
            name, _, line = what.partition(": ")
            found.setdefault(name, {})[line] = figure
    return found


def file_name(name: str) -> str:
    slug = re.sub(r"\W+", "-", name.lower()).strip("-")
    return f"proof-{slug}.png"


def digest(plot: Mapping[str, Json]) -> str:
    return hashlib.sha256(json.dumps(plot, sort_keys=True).encode()).hexdigest()


def draw(name: str, plot: Mapping[str, Json], folder: Path) -> None:
    """Needs matplotlib."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    drawing = Figure(figsize=SIZE, layout="constrained")
    axes = drawing.subplots()
    for number, (line, curve) in enumerate(plot.items()):
        xs, ys = zip(*sorted(curve["value"]), strict=True)
        colour = COLOURS[number % len(COLOURS)]
        mark = "o" if curve["log"] else ""
        axes.plot(xs, ys, label=line, color=colour, marker=mark, linewidth=1.6)
    some = next(iter(plot.values()))
    axes.set_xlabel(some["x"])
    axes.set_ylabel(some["y"])
    axes.set_title(name, loc="left", fontsize=11)
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    if some["log"]:
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(
            sorted({x for curve in plot.values() for x, _ in curve["value"]})
        )
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.minorticks_off()
    else:
        axes.set_ylim(bottom=0)
    if any(plot):
        axes.legend(frameon=False, fontsize=9)
    drawing.savefig(folder / file_name(name), dpi=DPI, metadata={TEXT: digest(plot)})
