"""Senders that share one program, one child and its pipe, and take turns.

The rate of a pipe depends on the pages and cores that its two processes happened to
get: the same loop in C, started again, may be twice as fast.  So here only the writer
changes.  The program starts the child once, by `open_process`.  In its turn a sender
has the pipe to itself, from empty to empty.  Ours uses the stream; the C loop (feed.c)
uses a second, blocking description of the same pipe, and sets the size of the pipe.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import struct
import subprocess
import sys
import termios
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiozerocopy import open_process
from aiozerocopy.bench.feeding import ENVIRONMENT, PATIENCE
from aiozerocopy.bench.frames import cpu
from aiozerocopy.bench.network import command, run_on, tell
from aiozerocopy.bench.racing import Run, Work, WrongBytes
from aiozerocopy.bench.senders import put_each, send_each

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiozerocopy import Process, SendStream
    from aiozerocopy.bench.feeding import Lab

IN_FLIGHT = 3


@dataclass(frozen=True)
class Turn:
    """What one sender is to do in its turn."""

    way: str  # send and put are ours, write is C's
    chunk: int = 0  # bytes of a write in C; 0: the whole message
    pipe: int = 0  # bytes that the pipe is to hold; 0: what open_process has reached
    warm: int = 0
    messages: int = 0


@dataclass(frozen=True)
class Job:
    """What the program is told at its start."""

    loop: str
    library: str
    sink: list[str]
    pattern: str
    size: int


def is_possible() -> bool:
    """Can a pipe be opened a second time?  On Linux it can."""
    return Path("/proc/self/fd").is_dir()


# ---- in the process of the bench -----------------------------------------------------


class Stage:
    """The program and its child; started by the first turn."""

    def __init__(
        self, lab: Lab, loop: str, read_size: int, check: bool = False
    ) -> None:
        self._lab = lab
        self._loop = loop
        self._read_size = read_size
        self._check = check  # every byte
        self._program: subprocess.Popen[bytes] | None = None
        lab.at_end(self.kill)

    def checking(self) -> Stage:
        """Another one like this, whose child compares every byte."""
        return Stage(self._lab, self._loop, self._read_size, check=True)

    def turn(self, turn: Turn, work: Work) -> dict[str, Any]:
        if self._program is None:
            self._program = self._start(work)
        request = {**asdict(turn), "warm": work.warm, "messages": work.messages}
        assert self._program.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # (`_report` tells why)
            self._program.stdin.write(json.dumps(request).encode() + b"\n")
        return self._report(self._program, "sender")

    def close(self) -> dict[str, Any] | None:
        """End both, and return the child's report of all turns."""
        program, self._program = self._program, None
        if program is None:
            return None
        assert program.stdin is not None
        with program:
            program.stdin.close()
            return self._report(program, "sink")

    def kill(self) -> None:
        """End both without a report."""
        if self._program is not None:
            with self._program as program:
                program.kill()

    def _start(self, work: Work) -> subprocess.Popen[bytes]:
        lab = self._lab
        pattern = lab.pattern(work)
        sink = [lab.program("sink"), "0", "0", str(self._read_size)]
        sink += [pattern] if self._check else []
        job = Job(self._loop, lab.library("feed"), sink, pattern, work.size)
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command("one_pipe", asdict(job)),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=lab.path,
                env=ENVIRONMENT,
            )

    def _report(self, program: subprocess.Popen[bytes], who: str) -> dict[str, Any]:
        watchdog = threading.Timer(PATIENCE, program.kill)
        try:
            watchdog.start()
            assert program.stdout is not None
            report: dict[str, Any] = json.loads(program.stdout.readline() or "{}")
            if report.get("who") == who:
                return report
            self._program = None
            with program:  # until its stderr is complete
                pass
        finally:
            watchdog.cancel()
        raise ChildProcessError(f"the senders failed:\n{self._log.read_text()}")

    @property
    def _log(self) -> Path:
        return self._lab.path / "stderr"


@dataclass(frozen=True)
class TurnTaker:
    """A contestant: one sender of the stage."""

    name: str
    stage: Stage
    how: Turn
    needs: tuple[str, ...] = ()

    def run(self, work: Work, check: bool) -> Run:
        report = self._checked(work) if check else self.stage.turn(self.how, work)
        return Run(report["seconds"], report["cpu"], report["sink"], report["calls"])

    def count_calls(self, work: Work) -> float | None:
        calls: int = self.stage.turn(self.how, work)["calls"]
        return calls / work.messages

    def _checked(self, work: Work) -> dict[str, Any]:
        stage = self.stage.checking()
        report = stage.turn(self.how, work)
        told = stage.close()
        total = work.size * (work.warm + work.messages)
        if told is None or told["bytes"] != total or told["wrong"] >= 0:
            raise WrongBytes(f"{self.name}: {total:,} bytes sent; the child got {told}")
        return report


# ---- in the process of the program ---------------------------------------------------


class OnePipe:
    """The child's pipe, and the ways to fill it."""

    def __init__(self, child: Process, job: Job) -> None:
        assert child.stdin is not None
        self.stream: SendStream = child.stdin
        # (clock_getcpuclockid(pid) on Linux; Python does not offer that)
        self.child_clock: int = ~child.pid << 3 | 2
        self.fd: int = os.open(f"/proc/self/fd/{self.stream.fileno()}", os.O_WRONLY)
        self.capacity: int = fcntl.fcntl(self.fd, fcntl.F_GETPIPE_SZ)
        data = Path(job.pattern).read_bytes()
        self.buffers: list[bytearray] = [
            bytearray(data[at : at + job.size]) for at in range(0, len(data), job.size)
        ]
        self.feed: Any = ctypes.CDLL(job.library, use_errno=True).feed
        self.feed.restype = ctypes.c_longlong
        size_t, pointer = ctypes.c_size_t, ctypes.c_void_p
        self.feed.argtypes = [ctypes.c_int, ctypes.c_int, pointer, size_t, size_t]

    async def turn(self, turn: Turn) -> dict[str, Any]:
        fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, turn.pipe or self.capacity)
        await self.fill(turn, turn.warm)
        before = time.perf_counter(), cpu(), time.clock_gettime(self.child_clock)
        calls = await self.fill(turn, turn.messages)
        after = time.perf_counter(), cpu(), time.clock_gettime(self.child_clock)
        seconds, used, sink = (b - a for a, b in zip(before, after, strict=True))
        return {
            "who": "sender",
            "seconds": seconds,
            "cpu": used,
            "sink": sink,
            "calls": calls,
        }

    async def fill(self, turn: Turn, messages: int) -> int:
        """Send until the child has read all; return how many system calls that took."""
        buffers = itertools.islice(itertools.cycle(self.buffers), messages)
        if turn.way == "write":
            calls = sum(self.write(buffer, turn.chunk) for buffer in buffers)
        else:
            before = self.stream.stats.send_calls
            if turn.way == "send":
                await send_each(self.stream, buffers)
            else:
                await put_each(self.stream, buffers, IN_FLIGHT)
            calls = self.stream.stats.send_calls - before
        while unread(self.fd):
            os.sched_yield()
        return calls

    def write(self, buffer: bytearray, chunk: int) -> int:
        start = ctypes.byref(ctypes.c_char.from_buffer(buffer))
        calls: int = self.feed(self.fd, False, start, len(buffer), chunk)
        if calls < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return calls


def unread(fd: int) -> int:
    """Bytes that the pipe holds."""
    number: int
    (number,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
    return number


async def take_turns(job: Job, requests: Iterator[bytes]) -> None:
    async with (
        open_process(job.sink, stdout=None) as child,
        contextlib.AsyncExitStack() as at_end,
    ):
        pipe = OnePipe(child, job)
        await at_end.enter_async_context(pipe.stream)
        at_end.callback(os.close, pipe.fd)
        # (nothing else is to run between two turns: reading may block the loop)
        for request in requests:
            tell(await pipe.turn(Turn(**json.loads(request))))


if __name__ == "__main__":
    told: Job = Job(**json.loads(sys.argv[1]))
    run_on(told.loop, take_turns(told, iter(sys.stdin.buffer.readline, b"")))
