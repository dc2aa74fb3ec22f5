"""What a proof has found, as proof.json keeps it: from logs, reports and figures."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from .slices import FIGURES, REPORT, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from .running import Run

Json = dict[str, Any]

# What must never happen: how a failed test tells it, and the figure that says how often
# it was looked for.  A figure with the name itself is one that was found.
ZEROS = {
    "wrong bytes": (
        r"(poison|canary|wrong) byte|more arrived than|not a prefix",
        "bytes compared",
    ),
    "leaks": (r"left behind:", "looks for leaks"),
    "busy loops": (r"busy loop", "looks for busy loops"),
    "hangs": (r"Timeout >|Timeout \(>", "tests and programs with a limit"),
}
LIMITED = ZEROS["hangs"][1]


def gather(runs: Sequence[Run], seconds: float) -> Json:
    """Everything that the page shows."""
    slices = [of_slice(run) for run in runs]
    return {
        "machine": machine(),
        "minutes": round(seconds / 60, 1),
        "slices": slices,
        "zeros": [zero(name, slices) for name in ZEROS],
    }


def summary(results: Json) -> Json:
    """One whole run in a line."""
    passed = sum(each["verdict"] == "passed" for each in results["slices"])
    return {
        "date": results["machine"]["date"],
        "commit": results["machine"]["commit"],
        "minutes": results["minutes"],
        "passed": passed,
        "slices": len(results["slices"]),
        "found": {each["what"]: each["found"] for each in results["zeros"]},
    }


def succeeded(results: Json) -> bool:
    passed = all(each["verdict"] == "passed" for each in results["slices"])
    return passed and not any(each["found"] for each in results["zeros"])


def of_slice(run: Run) -> Json:
    tests, failed, skipped = report(run.folder / REPORT)
    verdict = run.verdict
    if verdict == "passed" and run.slice.tests and not tests:
        verdict = "failed"  # it has not tested anything
    return {
        "name": run.slice.name,
        "shows": run.slice.shows,
        "command": run.slice.as_typed(),
        "alone": run.slice.alone,
        "verdict": verdict,
        "minutes": round(run.seconds / 60, 1),
        "tests": tests,
        "failed": failed,
        "skipped": skipped,
        "figures": figures(run.folder / FIGURES),
    }


def zero(name: str, slices: Sequence[Json]) -> Json:
    """How often it was found, and among how many looks."""
    pattern, looks = ZEROS[name]
    found = sum(each["figures"].get(name, {}).get("value", 0) for each in slices)
    among = sum(each["figures"].get(looks, {}).get("value", 0) for each in slices)
    for each in slices:
        found += sum(bool(re.search(pattern, test["said"])) for test in each["failed"])
        if looks == LIMITED:
            found += each["verdict"] == "hung"
            among += 1 + each["tests"]
    return {"what": name, "found": found, "looks": looks, "among": among}


# ---- of one slice -------------------------------------------------------------------


def report(path: Path) -> tuple[int, list[Json], list[Json]]:
    """From pytest's report: how many ran, which failed, why others were skipped."""
    if not path.exists():
        return 0, [], []
    cases = list(ElementTree.parse(path).iter("testcase"))
    failed = []
    for case in cases:
        for bad in (*case.findall("failure"), *case.findall("error")):
            said = plain(f"{bad.get('message', '')}\n{bad.text or ''}")
            failed.append({"test": name_of(case), "said": said[-4000:]})
    reasons = Counter(
        plain(skip.get("message", ""))
        for case in cases
        for skip in case.findall("skipped")
    )
    skipped = [{"why": why, "tests": n} for why, n in sorted(reasons.items())]
    return len(cases) - reasons.total(), failed, skipped


def name_of(case: ElementTree.Element) -> str:
    module = case.get("classname", "").removeprefix("tests.").replace(".", "/")
    return f"{module}::{case.get('name', '')}"


def figures(path: Path) -> Json:
    """Counts are added, of worst the largest stays, remarks and curves are kept once.

    Each is {"kind", "value", "unit"}; a curve's value is its points.
    """
    found: Json = {}
    for line in lines(path):
        what, kind, value = line.pop("what"), line["kind"], line["value"]
        old = found.setdefault(what, line)
        if old is line:
            if kind == "remark":
                old["value"] = [plain(value)]
        elif kind == "count":
            old["value"] += value
        elif kind == "worst":
            old["value"] = max(old["value"], value)
        elif kind == "curve":
            old["value"] += value
        elif plain(value) not in old["value"]:
            old["value"].append(plain(value))
    return found


def lines(path: Path) -> Iterator[Json]:
    if path.exists():
        yield from map(json.loads, path.read_text().splitlines())


def plain(text: str) -> str:
    """Without this machine's folders and terminals' colours."""
    text = re.sub(r"\x1b\[[\d;]*m", "", text)
    for folder, word in ((str(ROOT), "."), (tempfile.gettempdir(), "TMP")):
        text = text.replace(folder, word)
    return text


# ---- of the machine -----------------------------------------------------------------


def machine() -> Json:
    """Where it was, without the machine's name."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "kernel": f"{platform.system()} {platform.release()}",
        "processor": f"{processor()}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{memory / (1 << 30):.1f} GiB",
        "python": f"{platform.python_implementation()} {sys.version.split()[0]}",
        "C library": " ".join(platform.libc_ver()),
    }


def processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = re.findall(r"^model name\s*: (.*)$", file.read(), re.MULTILINE)
    except OSError:
        names = []
    return str(names[0]) if names else platform.machine()


def commit() -> str:
    """The short name of the commit, and whether something was changed since."""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        changes = git("status", "--porcelain", "--", ".", ":!docs/pages/proof*")
        return git("rev-parse", "--short", "HEAD") + (" and changes" if changes else "")
    except (OSError, subprocess.CalledProcessError):
        return "no repository"
