"""Runs slices: two beside each other, then those that need the machine for themselves.

A line says what begins and ends, and each minute what still runs.  Whatever ends a
slice ends every process that it has started: all of them have its folder in their
environment, also those whose parents have gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .table import SLACK, TESTS, Slice

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SIDE_BY_SIDE = 2
TIDY = 10.0  # seconds for a slice that was asked to end
STILL = 60.0  # seconds between two lines that say what still runs
FOLDER = "AZC_PROOF"  # names the slice's folder to all that it starts
PATIENCE = "AZC_PATIENCE"  # conftest.py multiplies the time that a test has with it
# Files in a slice's folder
FIGURES = "figures.jsonl"
REPORT = "report.xml"
LOG = "log.txt"


@dataclass
class Run:
    """One slice, and how far it is."""

    slice: Slice
    folder: Path
    verdict: Literal["waits", "runs", "passed", "failed", "hung", "not run"] = "waits"
    began: float = 0.0
    limit: float = 0.0  # seconds
    seconds: float = 0.0
    process: subprocess.Popen[bytes] | None = None

    def say(self) -> None:
        minutes = f"{self.seconds / 60:5.1f} of {self.slice.minutes:g} minutes"
        print(f"{self.slice.name:16} {self.verdict:8} {minutes}", flush=True)


def in_order(slices: Sequence[Slice]) -> list[Slice]:
    """Those that take longest begin first, those that are to be alone come last."""
    return sorted(slices, key=lambda it: (it.alone, 0 if it.alone else -it.minutes))


def run_all(slices: Sequence[Slice], folder: Path, most: float) -> list[Run]:
    """Return when all are over, after so many seconds at most.

    An exception, as Ctrl-C makes it, ends those that run.
    """
    runs = [Run(each, folder / each.name) for each in in_order(slices)]
    said = time.monotonic()
    deadline = said + most
    try:
        while waiting := [run for run in runs if run.verdict in ("waits", "runs")]:
            running = [run for run in waiting if run.verdict == "runs"]
            for run in running:
                look_at(run)
            if time.monotonic() - said >= STILL:
                said = time.monotonic()
                for run in running:
                    run.say()
            new = next((run for run in waiting if run.verdict == "waits"), None)
            room = 0 if any(run.slice.alone for run in running) else SIDE_BY_SIDE
            if new and len(running) < (1 if new.slice.alone else room):
                begin(new, deadline)
            else:
                time.sleep(0.05)
    finally:
        with contextlib.ExitStack() as each_of_them:  # whatever becomes of the others
            for run in runs:
                if run.verdict == "runs":
                    ask_to_end(run, signal.SIGINT)
                    each_of_them.callback(finish, run, "not run")
    return runs


def begin(run: Run, deadline: float) -> None:
    run.began = time.monotonic()
    run.limit = min(run.slice.limit, deadline - run.began)
    if run.limit <= 0:
        run.verdict = "not run"
        return
    run.folder.mkdir(parents=True)
    run.verdict = "runs"
    run.say()
    numbers, words = run.slice.parsed()
    # (What a user has set for pytest is not to choose what is shown here.)
    ours = {
        "AZC_FIGURES": str(run.folder / FIGURES),
        FOLDER: str(run.folder),
        "PYTEST_ADDOPTS": "",
    }
    if run.slice.is_pytest:
        ours[PATIENCE] = f"{SLACK:g}"
        words += ["-v", "--no-header", "--color=no", "-p", "no:randomly"]
        words += ["-o", f"cache_dir={run.folder / 'cache'}"]
        words += [f"--junitxml={run.folder / REPORT}"]
    with open(run.folder / LOG, "wb") as log:
        run.process = subprocess.Popen(
            [sys.executable, *words],
            cwd=TESTS,
            env=os.environ | ours | numbers,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def look_at(run: Run) -> None:
    assert run.process is not None
    run.seconds = time.monotonic() - run.began
    if run.process.poll() is not None:
        finish(run, "failed" if run.process.returncode else "passed")
    elif run.seconds > run.limit:
        ask_to_end(run, signal.SIGABRT)  # (pytest says then where each thread is)
        finish(run, "hung")


def ask_to_end(run: Run, word: signal.Signals) -> None:
    if run.process is not None:
        run.process.send_signal(word)


def finish(run: Run, verdict: Literal["passed", "failed", "hung", "not run"]) -> None:
    """Wait for it for a while, and kill what is left of it and of its children."""
    try:
        if run.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.process.wait(TIDY)
    finally:
        while left := list(started_by(run.folder)):
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        if run.process is not None:
            run.process.wait()
        run.verdict = verdict
        run.say()


def started_by(folder: Path) -> Iterator[int]:
    """The processes of the slice with this folder."""
    word = f"{FOLDER}={folder}".encode()
    for name in filter(str.isdigit, os.listdir("/proc")):
        # (Of one that has ended nothing is left there, and others' we may not read.)
        with contextlib.suppress(OSError):
            if word in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                yield int(name)
