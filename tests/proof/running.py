"""Run slices: two at once, and then one by one those that need the whole machine.

Print a line when a slice begins or ends.  Each slice is a session of processes,
which ends with the slice in any case.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from .table import SLACK, TESTS, Slice

SIDE_BY_SIDE = 2
TIDY = 10.0  # seconds for a slice to end after a signal
PATIENCE = "AZC_PATIENCE"  # conftest.py multiplies each test's time limit by this
# Files in a slice's folder.
FIGURES = "figures.jsonl"
REPORT = "report.xml"
LOG = "log.txt"


@dataclass
class Run:
    """A slice and its verdict: "passed", "failed", "hung" or "not run"."""

    slice: Slice
    folder: Path
    verdict: str = "not run"
    seconds: float = 0.0
    process: subprocess.Popen[bytes] | None = None

    def say(self, what: str) -> None:
        minutes = f"{self.seconds / 60:5.1f} of {self.slice.minutes:g} minutes"
        line = f"{self.slice.name:16} {what:8} {minutes}\n"
        print(line, end="", flush=True)  # (in one call, as two threads print)

    def end(self, word: signal.Signals) -> None:
        """Send a signal, and kill the rest of the session after a while."""
        if self.process is not None:
            self.process.send_signal(word)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(TIDY)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def in_order(slices: Sequence[Slice]) -> list[Slice]:
    """Put the longest first, and those that must run alone last."""
    return sorted(slices, key=lambda it: (it.alone, 0 if it.alone else -it.minutes))


def run_all(
    slices: Sequence[Slice],
    folder: Path,
    most: float,
    is_stopped: Callable[[], object] = bool,
) -> list[Run]:
    """Return when all have ended, after this many seconds at most.

    Once `is_stopped` is true, end the running slices and begin no others.
    """
    runs = [Run(each, folder / each.name) for each in in_order(slices)]
    deadline = time.monotonic() + most
    for at_once, alone in ((SIDE_BY_SIDE, False), (1, True)):
        mine = [run for run in runs if run.slice.alone == alone]
        with ThreadPoolExecutor(at_once) as pool:
            futures = [pool.submit(run_one, run, deadline, is_stopped) for run in mine]
            while wait(futures, timeout=0.1).not_done:
                if is_stopped():
                    for run in mine:
                        run.end(signal.SIGINT)
            for future in futures:
                future.result()
    return runs


def run_one(run: Run, deadline: float, is_stopped: Callable[[], object]) -> None:
    began = time.monotonic()
    limit = min(run.slice.limit, deadline - began)
    if limit <= 0 or is_stopped():
        return
    run.folder.mkdir(parents=True)
    numbers, words = run.slice.parsed()
    # (A user's options for pytest must not choose what is shown.)
    ours = {"AZC_FIGURES": str(run.folder / FIGURES), "PYTEST_ADDOPTS": ""}
    if run.slice.is_pytest:
        ours[PATIENCE] = f"{SLACK:g}"
        words += ["-v", "--no-header", "--color=no", "-p", "no:randomly"]
        words += ["-o", f"cache_dir={run.folder / 'cache'}"]
        words += [f"--junitxml={run.folder / REPORT}"]
    run.say("runs")
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
    run.verdict = "hung"
    with contextlib.suppress(subprocess.TimeoutExpired):
        run.verdict = "failed" if run.process.wait(limit) else "passed"
    run.end(signal.SIGABRT)  # (then pytest prints where each thread is)
    run.seconds = time.monotonic() - began
    run.say(run.verdict)
