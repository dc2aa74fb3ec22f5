"""The machine that a bench runs on, as far as its figures depend on it."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RIVALS = (
    "uvloop",
    "turbopipe",
    "av",
    "imageio-ffmpeg",
    "mss",
    "vidgear",
    "websockets",
    "aiohttp",
    "distributed",
    "tachyon-ipc",
    "pyzmq",
)
BUSY = 0.5  # of its cores: what else runs makes the figures worse


def facts() -> dict[str, Any]:
    """All that is known of it, to be asked before the races."""
    names = ("aiozerocopy", *RIVALS)
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_model(),
        "cpus": os.cpu_count() or 1,
        "load": os.getloadavg()[0],  # of the last minute, before the races
        "versions": {name: number for name in names if (number := installed(name))},
    }


def cpu_model() -> str:
    """As the kernel calls it; on Arm it often does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2] for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine()).strip()


def installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:  # not installed, or run without installing
        return None


def is_busy(facts: dict[str, Any]) -> bool:
    """Was there other work before the races began?"""
    return bool(facts["load"] > BUSY * facts["cpus"])


def sentence(facts: dict[str, Any]) -> str:
    """All of it but the hour."""
    versions = ", ".join(
        f"{name} {number}" for name, number in facts["versions"].items()
    )
    cpus = f"{facts['cpus']} CPUs ({facts['cpu']})"
    busy = ", beside other work" if is_busy(facts) else ""
    where = f"{cpus}, {facts['system']}, Python {facts['python']}"
    return f"{facts['date'][:10]}{busy}: {where}, {versions}."


def where_and_when(facts: dict[str, Any]) -> str:
    """In half a line."""
    kernel = ".".join(" ".join(facts["system"].split()[:2]).split(".")[:2])
    python = ".".join(facts["python"].split(".")[:2])
    month = datetime.fromisoformat(facts["date"]).strftime("%B %Y")
    busy = ", beside other work" if is_busy(facts) else ""
    return f"{facts['cpus']} cores, {kernel}, Python {python}, {month}{busy}"
