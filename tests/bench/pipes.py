"""Raw video frames to a child that reads its stdin in pieces, as FFmpeg does.

Two kinds of races.  In the first, each sender has a child of its own.  But the rate of
a pipe depends on the pages and cores that its two processes happened to get: the same
loop in C, started again, may be twice as fast.  So in the second only the writer
changes: one program starts one child, and senders take turns.  In its turn a sender has
the pipe to itself, from empty to empty.  Ours uses the stream of `open_process`; the C
loop (feed.c) uses a second, blocking description of the same pipe, and sets its size.
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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiozerocopy import open_process
from bench.feeding import LOOPS, fed, in_c, in_python, needs_of, pipe_link
from bench.processes import ENVIRONMENT, PATIENCE, worker
from bench.race import Contender, Duel, Race, Run, Work, WrongBytes
from bench.sockets import put, put_each, send, send_each, write_and_drain
from bench.worker import cpu, tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiozerocopy import Process
    from bench.processes import Lab
    from bench.worker import Job

KIB, MIB = 1 << 10, 1 << 20
FRAME = 1920 * 1080 * 3
READS = (32 * KIB, 256 * KIB, MIB)
CHUNKS = (4 * KIB, 8 * KIB, 16 * KIB, 64 * KIB, 0)
PIPES = (64 * KIB, 256 * KIB, MIB)
IN_FLIGHT = 3
SEND, PUT = "open_process, send", f"open_process, put {IN_FLIGHT} in flight"


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    for read_size in READS[:1] if quick else READS:
        yield feed_children(lab, quick, read_size)
        if Path("/proc/self/fd").is_dir():  # a pipe can be opened a second time
            for loop in LOOPS:
                yield feed_one_child(lab, quick, read_size, loop)


def feed_children(lab: Lab, quick: bool, read_size: int) -> Race:
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        f"{SEND}, {{}}": (send, {}),
        f"{PUT}, {{}}": (put, {"in_flight": IN_FLIGHT}),
        "{} child stdin, write+drain": (write_and_drain, {}),
    }
    make = partial(fed, lab, read_size=read_size)
    in_loops = [
        make(name.format(loop), None, in_python(lab, way, loop, **told), loop)
        for name, (way, told) in ways.items()
        for loop in LOOPS
    ]
    return Race(
        "pipes",
        title(read_size),
        Work(FRAME, 4 if quick else 250, 4 if quick else 20, buffers=4),
        [*in_loops, make(c_name(8 * KIB, MIB), pipe_link, in_c(lab, 8 * KIB))],
        [
            Duel(
                f"{SEND}, {loop}",
                f"{loop} child stdin, write+drain",
                "1080p frames to a child's stdin: await send",
                against=f"{loop} write + drain",
                unit="frames",
            )
            for loop in LOOPS
        ],
        brief=60 if read_size == READS[0] else 0,
    )


def feed_one_child(lab: Lab, quick: bool, read_size: int, loop: str) -> Race:
    stage = Stage(lab, loop, read_size)

    def taker(name: str, **how: Any) -> Contender:
        return Contender(name, partial(stage.run, name, how), needs_of(loop))

    name = f"{SEND}, {loop}"
    return Race(
        "pipes",
        f"{title(read_size)}, one child for all",
        Work(FRAME, 4 if quick else 60, warm=4, buffers=4),
        [taker(name, way="send"), taker(f"{PUT}, {loop}", way="put")],
        [
            Duel(
                name,
                "",
                "1080p frames to one child, in turns: await send",
                against="the best C loop of write",
                unit="frames",
            )
        ],
        brief=60 if (read_size, loop) == (READS[0], "asyncio") else 0,
        candidates=[
            taker(c_name(chunk, pipe), way="write", chunk=chunk, pipe=pipe)
            for chunk in (CHUNKS[1:2] if quick else CHUNKS)
            for pipe in (PIPES[::2] if quick else PIPES)
        ],
        rounds=8,  # since they are short
    )


def title(read_size: int) -> str:
    return f"1080p rgb24 frames, read {size_name(read_size)} at a time"


def c_name(chunk: int, pipe: int) -> str:
    return f"C write of {size_name(chunk)}, {size_name(pipe)} pipe"


def size_name(n: int) -> str:
    if n == 0:
        return "whole frames"
    return f"{n >> 20} MiB" if n >= MIB else f"{n >> 10} KiB"


# ---- one child for all: in the process of the bench ----------------------------------


class Stage:
    """The program and its child; started by the first turn."""

    def __init__(self, lab: Lab, loop: str, read_size: int) -> None:
        self._lab = lab
        self._loop = loop
        self._read_size = read_size
        self._program: subprocess.Popen[bytes] | None = None
        lab.at_end(self.end)

    def run(self, name: str, how: dict[str, Any], work: Work, check: bool) -> Run:
        """A turn; one that is checked has a program and a child of its own."""
        stage = Stage(self._lab, self._loop, self._read_size) if check else self
        told = stage.turn(how, work, check)
        if check:
            stage.expect_right(name, work)
        return Run(told["seconds"], told["cpu"], told["sink_cpu"])

    def turn(self, how: dict[str, Any], work: Work, check: bool) -> dict[str, Any]:
        if self._program is None:
            self._program = self._start(work, check)
        assert self._program.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # (`_report` tells why)
            request = json.dumps({**how, **work.told})
            self._program.stdin.write(request.encode() + b"\n")
        return self._report(self._program, "turn")

    def expect_right(self, name: str, work: Work) -> None:
        """Raises: WrongBytes: by what the child says at its end."""
        program = self._program
        assert program is not None
        assert program.stdin is not None
        program.stdin.close()
        got = self._report(program, "sink")
        self.end()
        if got["bytes"] != work.total or got["wrong"] >= 0:
            raise WrongBytes(f"{name}: {work.total:,} bytes sent; the child got {got}")

    def end(self) -> None:
        if self._program is not None:
            with self._program as program:
                program.kill()
            self._program = None

    def _start(self, work: Work, check: bool) -> subprocess.Popen[bytes]:
        lab, pattern = self._lab, self._lab.pattern(work)
        sink = [lab.program("sink"), "0", "0", str(self._read_size)]
        sink += [pattern] if check else []
        told = {"pattern": pattern, "size": work.size, "sink": sink}
        command = worker(
            take_turns, loop=self._loop, library=lab.library("feed"), **told
        )
        with lab.log.open("ab") as log:
            return subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=lab.path,
                env=ENVIRONMENT,
            )

    def _report(self, program: subprocess.Popen[bytes], who: str) -> dict[str, Any]:
        watchdog = threading.Timer(PATIENCE, program.kill)
        watchdog.start()
        try:
            assert program.stdout is not None
            report: dict[str, Any] = json.loads(program.stdout.readline() or "{}")
        finally:
            watchdog.cancel()
        if report.get("who") != who:
            self.end()
            raise ChildProcessError(f"the senders failed:\n{self._lab.log.read_text()}")
        return report


# ---- in the process of the program ---------------------------------------------------


class OnePipe:
    """The child's pipe, and the ways to fill it."""

    def __init__(self, child: Process, job: Job) -> None:
        assert child.stdin is not None
        self.stream = child.stdin
        # (clock_getcpuclockid(pid) on Linux; Python does not offer that)
        self.child_clock: int = ~child.pid << 3 | 2
        self.fd: int = os.open(f"/proc/self/fd/{self.stream.fileno()}", os.O_WRONLY)
        self.capacity: int = fcntl.fcntl(self.fd, fcntl.F_GETPIPE_SZ)
        self.buffers: list[bytearray] = [*map(bytearray, job.pieces())]
        self.feed: Any = ctypes.CDLL(job.library, use_errno=True).feed
        self.feed.restype = ctypes.c_longlong
        size_t, pointer = ctypes.c_size_t, ctypes.c_void_p
        self.feed.argtypes = [ctypes.c_int, ctypes.c_int, pointer, size_t, size_t]

    def now(self) -> tuple[float, float, float]:
        return time.perf_counter(), cpu(), time.clock_gettime(self.child_clock)

    async def turn(self, told: dict[str, Any]) -> dict[str, Any]:
        pipe = told.get("pipe") or self.capacity
        fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, pipe)
        await self.fill(told, told["warm"])
        before = self.now()
        await self.fill(told, told["messages"])
        seconds, used, sink = (b - a for a, b in zip(before, self.now(), strict=True))
        return {"who": "turn", "seconds": seconds, "cpu": used, "sink_cpu": sink}

    async def fill(self, told: dict[str, Any], messages: int) -> None:
        """Send until the child has read all."""
        buffers = itertools.islice(itertools.cycle(self.buffers), messages)
        if told["way"] == "send":
            await send_each(self.stream, buffers)
        elif told["way"] == "put":
            await put_each(self.stream, buffers, IN_FLIGHT)
        else:
            for buffer in buffers:
                self.write(buffer, told["chunk"])
        while unread(self.fd):
            os.sched_yield()

    def write(self, buffer: bytearray, chunk: int) -> None:
        start = ctypes.byref(ctypes.c_char.from_buffer(buffer))
        if self.feed(self.fd, False, start, len(buffer), chunk) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def unread(fd: int) -> int:
    """Bytes that the pipe holds."""
    number: int
    (number,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
    return number


async def take_turns(job: Job) -> None:
    async with (
        open_process(job.sink, stdout=None) as child,
        contextlib.AsyncExitStack() as at_end,
    ):
        pipe = OnePipe(child, job)
        await at_end.enter_async_context(pipe.stream)
        at_end.callback(os.close, pipe.fd)
        # (nothing else is to run between two turns: reading may block the loop)
        for request in iter(sys.stdin.buffer.readline, b""):
            tell(await pipe.turn(json.loads(request)))
