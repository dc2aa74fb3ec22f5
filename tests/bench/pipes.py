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
import statistics
import struct
import subprocess
import sys
import termios
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from aiozerocopy import open_process
from bench.feeding import LOOPS, expect_right, in_loops, needs_of
from bench.processes import ENVIRONMENT, PATIENCE, worker
from bench.race import Contender, Duel, Race, Run, Work
from bench.sockets import put_each, send, send_each, write_and_drain
from bench.worker import cpu, tell

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.processes import Lab
    from bench.worker import Job

KIB = 1 << 10
FRAME = 1920 * 1080 * 3
READ_SIZE = 32 * KIB
CHUNKS = (4 * KIB, 8 * KIB, 16 * KIB, 64 * KIB, 0)  # of a write; 0: the whole frame
PIPES = (64 * KIB, 256 * KIB, 1024 * KIB)
BEST = "the best C loop of write"
TITLE = "1080p rgb24 frames, read 32 KiB at a time"
SEND = "open_process, send"


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    work = Work(FRAME, 4 if quick else 60, warm=4, buffers=4)
    ways = {f"{SEND}, {{}}": send, "{} child stdin, write+drain": write_and_drain}
    what = "1080p frames to a child's stdin: await send"
    yield Race(
        "pipes",
        TITLE,
        replace(work, warm=20),
        in_loops(lab, None, ways, read_size=READ_SIZE),
        [
            Duel(f"{SEND}, {loop}", rival, what, f"{loop} write + drain", "frames")
            for loop in LOOPS
            for rival in [f"{loop} child stdin, write+drain"]
        ],
    )
    what = "1080p frames to one child, in turns: await send"
    for loop in LOOPS:
        stage, ours = Stage(lab, loop), f"{SEND}, {loop}"
        yield Race(
            "pipes",
            f"{TITLE}, one child for all",
            work,
            [
                Contender(ours, partial(stage.run, {"way": "send"}), needs_of(loop)),
                Contender("put", partial(stage.run, {"way": "put"}), needs_of(loop)),
                Contender(BEST, stage.run_best, needs_of(loop)),
            ],
            [Duel(ours, BEST, what, unit="frames")],
            extra=loop != "asyncio",
        )


# ---- one child for all: in the process of the bench ----------------------------------


class Stage:
    """The program and its child; started by the first turn."""

    def __init__(self, lab: Lab, loop: str) -> None:
        self._lab = lab
        self._loop = loop
        self._program: subprocess.Popen[bytes] | None = None
        self._best: dict[str, Any] | None = None
        lab.at_end(self.end)

    def run_best(self, work: Work, check: bool) -> Run:
        """The fastest C loop, by the medians of three turns of each."""
        if self._best is None:
            ways = [
                {"way": BEST, "chunk": chunk, "pipe": pipe}
                for chunk in CHUNKS
                for pipe in PIPES
            ]
            turns = [[self.run(way, work, False) for _ in range(3)] for way in ways]
            seconds = [statistics.median(run[0] for run in some) for some in turns]
            self._best = ways[seconds.index(min(seconds))]
        return self.run(self._best, work, check)

    def run(self, how: dict[str, Any], work: Work, check: bool) -> Run:
        """A turn; one that is checked has a program and a child of its own."""
        stage = Stage(self._lab, self._loop) if check else self
        told = stage.turn(how, work, check)
        if check:
            expect_right(how["way"], stage.last_words(), work)
        return Run(told["seconds"], told["cpu"], told["sink_cpu"])

    def turn(self, how: dict[str, Any], work: Work, check: bool) -> dict[str, Any]:
        program = self._program = self._program or self._start(work, check)
        assert program.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # (`_report` tells why)
            request = json.dumps({**how, **work.told})
            program.stdin.write(request.encode() + b"\n")
        return self._report(program)

    def last_words(self) -> dict[str, Any]:
        """What the child reports at its end."""
        assert self._program is not None
        assert self._program.stdin is not None
        self._program.stdin.close()
        told = self._report(self._program)
        self.end()
        return told

    def end(self) -> None:
        if self._program is not None:
            with self._program as program:
                program.kill()
            self._program = None

    def _start(self, work: Work, check: bool) -> subprocess.Popen[bytes]:
        lab, pattern = self._lab, self._lab.pattern(work)
        sink = [lab.program("sink"), "0", "0", str(READ_SIZE), "0"]
        sink += [self._lab.pattern(work)] if check else []
        told = {"pattern": pattern, "size": work.size, "sink": sink}
        told |= {"loop": self._loop, "library": lab.library("feed")}
        with lab.log.open("ab") as log:
            return subprocess.Popen(
                worker(take_turns, **told),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=lab.path,
                env=ENVIRONMENT,
            )

    def _report(self, program: subprocess.Popen[bytes]) -> dict[str, Any]:
        watchdog = threading.Timer(PATIENCE, program.kill)
        watchdog.start()
        assert program.stdout is not None
        line = program.stdout.readline()
        watchdog.cancel()
        if not line:
            self.end()
            raise ChildProcessError(f"the senders failed:\n{self._lab.log.read_text()}")
        report: dict[str, Any] = json.loads(line)
        return report


# ---- in the process of the program ---------------------------------------------------


async def take_turns(job: Job) -> None:
    feed = ctypes.CDLL(job.library).feed
    size_t = ctypes.c_size_t
    feed.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, size_t, size_t]
    buffers = [bytearray(piece) for piece in job.pieces()]
    async with open_process(job.sink, stdout=None) as child:
        assert child.stdin is not None
        async with child.stdin as stream:
            fd = os.open(f"/proc/self/fd/{stream.fileno()}", os.O_WRONLY)
            capacity = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
            child_clock = ~child.pid << 3 | 2  # as clock_getcpuclockid has it

            async def fill(turn: dict[str, Any], messages: int) -> None:
                """Send until the child has read all."""
                in_turn = itertools.islice(itertools.cycle(buffers), messages)
                if turn["way"] == "send":
                    await send_each(stream, in_turn)
                elif turn["way"] == "put":
                    await put_each(stream, in_turn)
                else:
                    for buffer in in_turn:
                        at = ctypes.byref(ctypes.c_char.from_buffer(buffer))
                        if feed(fd, False, at, len(buffer), turn["chunk"]) < 0:
                            raise OSError("the C loop has failed")
                while unread(fd):
                    os.sched_yield()

            def now() -> tuple[float, float, float]:
                return time.perf_counter(), cpu(), time.clock_gettime(child_clock)

            # (nothing else is to run between two turns: reading may block the loop)
            for request in iter(sys.stdin.buffer.readline, b""):
                turn = json.loads(request)
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, turn.get("pipe") or capacity)
                await fill(turn, turn["warm"])
                before = now()
                await fill(turn, turn["messages"])
                spent = (b - a for a, b in zip(before, now(), strict=True))
                tell(dict(zip(("seconds", "cpu", "sink_cpu"), spent, strict=True)))
            os.close(fd)


def unread(fd: int) -> int:
    """Bytes that the pipe holds."""
    number: int
    (number,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
    return number
