"""The page of a proof, written from its JSON alone: nothing is typed by hand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from . import plots
from .results import summary
from .slices import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from .results import Json

PAGES = ROOT / "docs" / "pages"
JSON = PAGES / "proof.json"
PAGE = PAGES / "proof.md"
RUNS = 10  # that the page remembers

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
    text = json.dumps(results, indent=1, ensure_ascii=False)
    (folder / JSON.name).write_text(text + "\n")
    (folder / PAGE.name).write_text(render(results))
    for each in results["slices"]:
        for name, plot in plots.plots(each["figures"]).items():
            plots.draw(name, plot, folder)


def with_earlier_runs(results: Json, folder: Path = PAGES) -> Json:
    """The results of a whole run, and in a line each those that the page had."""
    path = folder / JSON.name
    earlier = json.loads(path.read_text()).get("runs", []) if path.exists() else []
    return {**results, "runs": [*earlier, summary(results)][-RUNS:]}


def render(results: Json) -> str:
    """The page as Markdown."""
    parts = [HEAD, about(results), zeros(results), overview(results)]
    parts += [runs(results)] if "runs" in results else []
    parts += [section(each) for each in results["slices"]]
    return "\n".join(parts)


def about(results: Json) -> str:
    facts = {**results["machine"], "it took": f"{results['minutes']:g} minutes"}
    return table(("", ""), facts.items())


def zeros(results: Json) -> str:
    rows = (
        (each["what"], number(each["found"]), among(each["looks"], each["among"]))
        for each in results["zeros"]
    )
    return "## What must be zero\n\n" + table(("", "found", "in"), rows)


def among(looks: str, many: float) -> str:
    if looks.startswith("bytes "):
        return f"{number(many, 'B')}{looks.removeprefix('bytes')}"
    return f"{number(many)} {looks}"


def overview(results: Json) -> str:
    rows = (
        (
            f"[{each['name']}](#{each['name']})",
            verdict(each),
            number(each["tests"]) if each["tests"] else "",
            number(skips(each)) if skips(each) else "",
            f"{each['minutes']:g}",
        )
        for each in results["slices"]
    )
    return "## Slices\n\n" + table(("", "", "tests", "left out", "minutes"), rows)


def runs(results: Json) -> str:
    """Whole runs only; what was changed in between, the commits tell."""
    rows = (
        (
            each["date"],
            each["commit"],
            f"{each['minutes']:g}",
            f"{each['passed']} of {each['slices']}",
            *(number(found) for found in each["found"].values()),
        )
        for each in reversed(results["runs"])
    )
    names = (each["what"] for each in results["zeros"])
    head = ("", "commit", "minutes", "slices that passed", *names)
    return "## The last whole runs\n\n" + table(head, rows)


def verdict(each: Json) -> str:
    return (
        str(each["verdict"])
        if each["verdict"] == "passed"
        else f"**{each['verdict']}**"
    )


def skips(each: Json) -> int:
    return sum(skip["tests"] for skip in each["skipped"])


def section(each: Json) -> str:
    parts = [f"## {each['name']}\n", f"{each['shows']}\n"]
    parts.append(f"```console\n{each['command']}\n```\n")
    rows = [
        (what, number(figure["value"], figure["unit"]), worst(figure))
        for what, figure in each["figures"].items()
        if figure["kind"] in ("count", "worst")
    ]
    if rows:
        parts.append(table(("", "", ""), rows))
    parts += (
        f"![{name}]({plots.file_name(name)})\n" for name in plots.plots(each["figures"])
    )
    if notes := list(remarks(each)):
        parts.append("\n".join(notes) + "\n")
    return "\n".join(parts)


def worst(figure: Json) -> str:
    return "at most" if figure["kind"] == "worst" else ""


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
        return bytes_as_said(value)
    if value == int(value):
        text = f"{int(value):,}"
    else:
        text = f"{value:,.1f}" if abs(value) >= 10 else f"{value:.3g}"
    return f"{text} {unit}".strip()


def bytes_as_said(value: float) -> str:
    units = ["TB", "GB", "MB", "kB", "B"]
    while value >= 1000 and len(units) > 1:
        value /= 1000
        units.pop()
    return f"{number(value)} {units[-1]}"


def escaped(text: str) -> str:
    """As text of one line, whatever Markdown could make of it."""
    words = " ".join(text.split())
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#" else char for char in words)
