"""The results of a proof, as in proof.json: from logs, reports and figures."""

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from .running import FIGURES, REPORT, Run
from .table import ROOT

Json = dict[str, Any]

# Things that must never happen: how a failed test reports one, and the figure that
# counts how often it was looked for.  A figure of the same name counts how often it was
# found.
ZEROS = {
    "wrong bytes": (
        r"(poison|canary|wrong) byte|more arrived than",
        "bytes compared",
    ),
    "leaks": (r"left behind:", "looks for leaks"),
    "busy loops": (r"busy loop", "looks for busy loops"),
    "hangs": (r"Timeout >|Timeout \(>", "tests and programs with a limit"),
}


def gather(runs: Sequence[Run], seconds: float) -> Json:
    """Collect everything that the page shows."""
    slices = [of_slice(run) for run in runs]
    return {
        "machine": machine(),
        "minutes": round(seconds / 60, 1),
        "slices": slices,
        "zeros": [zero(name, slices) for name in ZEROS],
    }


def succeeded(results: Json) -> bool:
    passed = all(each["verdict"] == "passed" for each in results["slices"])
    return passed and not any(each["found"] for each in results["zeros"])


def of_slice(run: Run) -> Json:
    tests, failed, skipped = report(run.folder / REPORT)
    # (If all tests were skipped, nothing has been shown.)
    nothing = run.verdict == "passed" and run.slice.is_pytest and not tests
    return {
        "name": run.slice.name,
        "shows": run.slice.shows,
        "command": run.slice.command,
        "alone": run.slice.alone,
        "verdict": "failed" if nothing else run.verdict,
        "minutes": round(run.seconds / 60, 1),
        "tests": tests,
        "failed": failed,
        "skipped": skipped,
        "figures": figures(run.folder / FIGURES),
    }


def zero(name: str, slices: Sequence[Json]) -> Json:
    """Return how often it was found, and in how many looks."""
    pattern, looks = ZEROS[name]
    found = among = 0
    for each in slices:
        found += each["figures"].get(name, {}).get("value", 0)
        found += sum(bool(re.search(pattern, test["said"])) for test in each["failed"])
        among += each["figures"].get(looks, {}).get("value", 0)
        if name == "hangs":
            found += each["verdict"] == "hung"
            among += 1 + each["tests"]
    return {"what": name, "found": found, "looks": looks, "among": among}


# ---- of one slice -------------------------------------------------------------------


def report(path: Path) -> tuple[int, list[Json], list[Json]]:
    """Read pytest's report: how many tests ran, failures, and reasons for skips."""
    if not path.exists():
        return 0, [], []
    cases = list(ElementTree.parse(path).iter("testcase"))
    failed, reasons = [], Counter[str]()
    for case in cases:
        module = case.get("classname", "").removeprefix("tests.").replace(".", "/")
        for bad in (*case.findall("failure"), *case.findall("error")):
            said = plain(f"{bad.get('message', '')}\n{bad.text or ''}")[-4000:]
            failed.append({"test": f"{module}::{case.get('name', '')}", "said": said})
        reasons.update(plain(it.get("message", "")) for it in case.findall("skipped"))
    skipped = [{"why": why, "tests": n} for why, n in sorted(reasons.items())]
    return len(cases) - sum(reasons.values()), failed, skipped


def figures(path: Path) -> Json:
    """Merge figures: add up counts, keep the largest worst one, and remarks once.

    Each figure is {"kind", "value", "unit"}.
    """
    found: Json = {}
    for text in path.read_text().splitlines() if path.exists() else ():
        line = json.loads(text)
        if line["kind"] == "remark":
            line["value"] = [plain(line["value"])]
        what, value = line.pop("what"), line["value"]
        old = found.setdefault(what, line)
        if old is line:
            continue
        if old["kind"] == "worst":
            old["value"] = max(old["value"], value)
        elif old["kind"] != "remark" or value[0] not in old["value"]:
            old["value"] += value
    return found


def plain(text: str) -> str:
    """Remove this machine's folders and a terminal's colours."""
    text = re.sub(r"\x1b\[[\d;]*m", "", text)
    return text.replace(str(ROOT), ".").replace(tempfile.gettempdir(), "TMP")


# ---- of the machine -----------------------------------------------------------------


def machine() -> Json:
    """Describe the machine, without its name."""
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
    """Return the kernel's name for the processor; on Arm it often has none."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    found = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def commit() -> str:
    """Return the short name of the commit, and whether files were changed since."""

    def git(*words: str) -> str:
        return subprocess.check_output(["git", *words], cwd=ROOT, text=True).strip()

    try:
        changes = git("status", "--porcelain", "--", ".", ":!docs/pages/proof*")
        return git("rev-parse", "--short", "HEAD") + (" and changes" if changes else "")
    except (OSError, subprocess.CalledProcessError):
        return "no repository"
