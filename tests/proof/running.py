"""Runs slices: two beside each other, then those that need the machine for themselves.

Whatever ends a slice ends every process that it has started: all of them have its
folder in their environment, also those whose parents have gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .slices import FOLDER, LOG, TESTS

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

    from .slices import Slice

Verdict = Literal["waits", "runs", "passed", "failed", "hung", "not run"]
SIDE_BY_SIDE = 2
TIDY = 10.0  # seconds for a slice that was asked to end


@dataclass
class Run:
    """One slice, and how far it is."""

    slice: Slice
    folder: Path
    verdict: Verdict = "waits"
    began: float = 0.0
    seconds: float = 0.0
    status: int | None = None

    @property
    def over(self) -> bool:
        return self.verdict not in ("waits", "runs")

    @property
    def so_far(self) -> float:
        return time.monotonic() - self.began if self.verdict == "runs" else self.seconds


@dataclass
class Runs:
    """All slices of one proof; those that take longest begin first."""

    slices: Sequence[Slice]
    folder: Path
    most: float  # seconds for all of them
    all: list[Run] = field(init=False)

    def __post_init__(self) -> None:
        together = [each for each in self.slices if not each.alone]
        together.sort(key=lambda each: -each.minutes)
        alone = [each for each in self.slices if each.alone]
        self.all = [Run(each, self.folder / each.name) for each in together + alone]

    async def run(self) -> None:
        """Returns when all are over; cancelled, it ends those that run."""
        deadline = time.monotonic() + self.most
        waiting = [run for run in self.all if not run.slice.alone]

        async def lane() -> None:
            while waiting:
                await run_one(waiting.pop(0), deadline)

        await all_of(*(lane() for _ in range(SIDE_BY_SIDE)))
        for run in self.all:
            if run.slice.alone:
                await run_one(run, deadline)


async def all_of(*coroutines: Coroutine[None, None, None]) -> None:
    """Like gather; but if it is cancelled, it waits until each has tidied up."""
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run_one(run: Run, deadline: float) -> None:
    limit = min(run.slice.limit, deadline - time.monotonic())
    if limit <= 0:
        run.verdict = "not run"
        return
    run.folder.mkdir(parents=True)
    run.verdict, run.began = "runs", time.monotonic()
    verdict: Verdict = "not run"
    try:
        with open(run.folder / LOG, "wb") as log:  # noqa: ASYNC230
            process = await asyncio.create_subprocess_exec(
                *run.slice.command(run.folder),
                cwd=TESTS,
                env=run.slice.environment(run.folder),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        verdict = await judged(run, process, limit)
    finally:
        await kill_all(run.folder)  # (it may have started without our knowing)
        run.seconds = time.monotonic() - run.began
        run.verdict = verdict


async def judged(
    run: Run, process: asyncio.subprocess.Process, limit: float
) -> Verdict:
    try:
        run.status = await asyncio.wait_for(process.wait(), limit)
    except asyncio.TimeoutError:
        # (pytest says then where each thread is)
        await ask_to_end(process, signal.SIGABRT)
        return "hung"
    except asyncio.CancelledError:
        await ask_to_end(process, signal.SIGINT)
        raise
    return "failed" if run.status else "passed"


async def ask_to_end(process: asyncio.subprocess.Process, word: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(word)
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(process.wait(), TIDY)


async def kill_all(folder: Path) -> None:
    """What is left of a slice and of its children."""
    while left := list(started_by(folder)):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0.02)


def started_by(folder: Path) -> Iterator[int]:
    """The processes of the slice with this folder."""
    word = f"{FOLDER}={folder}".encode()
    for name in os.listdir("/proc"):
        # (Of one that has ended nothing is left there, and others' we may not read.)
        with contextlib.suppress(OSError):
            if name.isdigit() and word in _environment(int(name)):
                yield int(name)


def _environment(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
