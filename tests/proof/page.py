"""The page of a proof, written from its JSON alone: nothing is typed by hand.

Its curves are pictures, one for each plot, with a line for each curve that is named
"PLOT: LINE".  A picture says in its own text which data it was drawn from, so that a
test can tell whether it is the one.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING

from .table import ROOT, SLICES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from .results import Json

PAGES = ROOT / "docs" / "pages"
JSON = PAGES / "proof.json"
PAGE = PAGES / "proof.md"
RUNS = 10  # that the page remembers
TEXT = "Description"  # of the PNG: the digest of what was drawn

HEAD = """\
# Proof

`make proof` runs what follows and writes this page; nothing on it is typed by hand.
Each part can be repeated by itself, with `make proof SLICES="NAME"` or, in `tests/` of
a checkout after `make venv`, with the command that stands there.
"""


def write(results: Json, folder: Path = PAGES) -> None:
    """proof.json, proof.md and the pictures, in place of those of the last proof."""
    for old in folder.glob("proof-*.png"):
        old.unlink()
    today = {each.name: each.command for each in SLICES}  # what can be typed now
    for each in results["slices"]:
        each["command"] = today.get(each["name"], each["command"])
    text = json.dumps(results, indent=1, ensure_ascii=False)
    (folder / JSON.name).write_text(text + "\n")
    (folder / PAGE.name).write_text(render(results))
    for each in results["slices"]:
        for name, plot in plots(each).items():
            draw(name, plot, folder)


def with_earlier_runs(results: Json, folder: Path = PAGES) -> Json:
    """The results of a whole run, and in a line each those that the page had."""
    path = folder / JSON.name
    earlier = json.loads(path.read_text()).get("runs", []) if path.exists() else []
    slices = results["slices"]
    run = {
        "date": results["machine"]["date"],
        "commit": results["machine"]["commit"],
        "minutes": results["minutes"],
        "passed": sum(each["verdict"] == "passed" for each in slices),
        "slices": len(slices),
        "found": {each["what"]: each["found"] for each in results["zeros"]},
    }
    return {**results, "runs": [*earlier, run][-RUNS:]}


# ---- Markdown -----------------------------------------------------------------------


def render(results: Json) -> str:
    """The page as Markdown."""
    facts = {**results["machine"], "it took": f"{results['minutes']:g} minutes"}
    parts = [HEAD, table(("", ""), facts.items())]
    zeros = (
        (each["what"], number(each["found"]), among(each)) for each in results["zeros"]
    )
    parts += ["## What must be zero\n", table(("", "found", "in"), zeros)]
    head = ("", "", "tests", "left out", "minutes")
    parts += ["## Slices\n", table(head, map(overview, results["slices"]))]
    if "runs" in results:
        parts += ["## The last whole runs\n", earlier_runs(results)]
    parts += [section(each) for each in results["slices"]]
    return "\n".join(parts)


def among(zero: Json) -> str:
    if zero["looks"] == "bytes compared":
        return f"{number(zero['among'], 'B')} compared"
    return f"{number(zero['among'])} {zero['looks']}"


def overview(each: Json) -> tuple[str, ...]:
    skipped = sum(skip["tests"] for skip in each["skipped"])
    good = each["verdict"] == "passed"
    return (
        f"[{each['name']}](#{each['name']})",
        each["verdict"] if good else f"**{each['verdict']}**",
        number(each["tests"]) if each["tests"] else "",
        number(skipped) if skipped else "",
        f"{each['minutes']:g}",
    )


def earlier_runs(results: Json) -> str:
    """Whole runs only; what was changed in between, the commits tell."""
    rows = (
        (
            each["date"],
            each["commit"],
            f"{each['minutes']:g}",
            f"{each['passed']} of {each['slices']}",
            *map(number, each["found"].values()),
        )
        for each in reversed(results["runs"])
    )
    names = (each["what"] for each in results["zeros"])
    return table(("", "commit", "minutes", "slices that passed", *names), rows)


def section(each: Json) -> str:
    parts = [f"## {each['name']}\n", f"{each['shows']}\n"]
    parts.append(f"```console\n{each['command']}\n```\n")
    says = {"count": "", "worst": "at most"}
    rows = [
        (what, number(figure["value"], figure["unit"]), says[figure["kind"]])
        for what, figure in each["figures"].items()
        if figure["kind"] in says
    ]
    if rows:
        parts.append(table(("", "", ""), rows))
    parts += (f"![{name}]({file_name(name)})\n" for name in plots(each))
    if notes := list(remarks(each)):
        parts.append("\n".join(notes) + "\n")
    return "\n".join(parts)


def remarks(each: Json) -> Iterator[str]:
    for failed in each["failed"]:
        yield f"* **failed**: `{failed['test']}`"
    for what, figure in each["figures"].items():
        if figure["kind"] == "remark":
            for text in figure["value"]:
                yield f"* {escaped(what)}: {escaped(text)}"
    for skip in each["skipped"]:
        yield f"* left out, {number(skip['tests'])}: {escaped(skip['why'])}"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join("| " + " | ".join(row) + " |\n" for row in lines)


def number(value: float, unit: str = "") -> str:
    if unit in ("B", "bytes"):
        units = ["TB", "GB", "MB", "kB", "B"]
        while value >= 1000 and len(units) > 1:
            value /= 1000
            units.pop()
        unit = units[-1]
    if value == int(value):
        text = f"{int(value):,}"
    else:
        text = f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"
    return f"{text} {unit}".strip()


def escaped(text: str) -> str:
    """As text of one line, whatever Markdown could make of it."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))


# ---- pictures -----------------------------------------------------------------------


def plots(each: Json) -> dict[str, Json]:
    """The plots of a slice: by its name the curves of each, by their lines' names."""
    found: dict[str, Json] = {}
    for what, figure in each["figures"].items():
        if figure["kind"] == "curve":
            name, _, line = what.partition(": ")
            found.setdefault(name, {})[line] = figure
    return found


def file_name(plot: str) -> str:
    slug = re.sub(r"\W+", "-", plot.lower()).strip("-")
    return f"proof-{slug}.png"


def digest(plot: Json) -> str:
    return hashlib.sha256(json.dumps(plot, sort_keys=True).encode()).hexdigest()


def draw(name: str, plot: Json, folder: Path) -> None:
    """Needs matplotlib."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    drawing = Figure(figsize=(8, 3.6), layout="constrained")
    axes = drawing.subplots()
    for line, curve in plot.items():
        xs, ys = zip(*sorted(curve["value"]), strict=True)
        mark = "o" if curve["log"] else ""
        axes.plot(xs, ys, label=line, marker=mark, linewidth=1.6)
    axes.set(xlabel=curve["x"], ylabel=curve["y"])
    axes.set_title(name, loc="left", fontsize=11)
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)
    if curve["log"]:
        axes.set(xscale="log", yscale="log")
        axes.set_xticks(sorted({x for it in plot.values() for x, _ in it["value"]}))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.minorticks_off()
    else:
        axes.set_ylim(bottom=0)
    if any(plot):
        axes.legend(frameon=False, fontsize=9)
    drawing.savefig(folder / file_name(name), dpi=100, metadata={TEXT: digest(plot)})
