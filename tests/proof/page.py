"""Write the page of a proof from its JSON alone: no figure is typed by hand."""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from .results import Json
from .table import ROOT, SLICES

PAGES = ROOT / "docs" / "pages"
JSON = PAGES / "proof.json"
PAGE = PAGES / "proof.md"

HEAD = """\
# Proof

`make proof` runs what follows and writes this page; nothing on it is typed by hand.
Each part can be repeated by itself, with `make proof SLICES="NAME"` or, in `tests/` of
a checkout after `make venv`, with the part's command.
"""


def write(results: Json, folder: Path = PAGES) -> None:
    """Replace the last proof's proof.json and proof.md."""
    today = {each.name: each for each in SLICES}  # the commands that exist now
    for each in results["slices"]:
        if now := today.get(each["name"]):
            each |= {"shows": now.shows, "command": now.command}
    text = json.dumps(results, indent=1, ensure_ascii=False)
    (folder / JSON.name).write_text(text + "\n")
    (folder / PAGE.name).write_text(render(results))


# ---- Markdown -----------------------------------------------------------------------


def render(results: Json) -> str:
    """Return the page as Markdown."""
    facts = {**results["machine"], "it took": f"{results['minutes']:g} minutes"}
    parts = [HEAD, table(("", ""), facts.items())]
    zeros = (
        (each["what"], number(each["found"]), among(each)) for each in results["zeros"]
    )
    parts += ["## What must be zero\n", table(("", "found", "in"), zeros)]
    head = ("", "", "tests", "left out", "minutes")
    parts += ["## Slices\n", table(head, map(overview, results["slices"]))]
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
    """Return the text on one line, with Markdown's special characters escaped."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))
