"""What the senders of frames do: one process each, started by `ffmpeg`, feeding FFmpeg.

Every function sends the same frames in the same order, the warm-up first.  Ours uses
the slots of a pool, and fills each only during the warm-up and when bytes are checked.
The others send buffers that rotate and never change, so a library that returns before
the bytes are out is not at a disadvantage.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

TICK = 0.001  # seconds between two beats of a loop


@dataclass
class Job:
    way: str
    loop: str
    options: dict[str, Any]
    command: list[str]  # FFmpeg, which reads frames from its stdin
    environment: dict[str, str]  # of FFmpeg, added to ours
    size: int  # bytes of a frame
    buffers: int
    warm: int
    frames: int
    pattern: str
    check: bool
    render: float  # seconds that the program is busy for each frame
    started: float = 0.0
    cpu_at_start: float = 0.0
    memory_at_start: int = 0
    calls: int | None = None
    gaps: list[float] = field(default_factory=list)

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, **self.environment}

    def pieces(self) -> list[bytes]:
        data = Path(self.pattern).read_bytes()
        return [data[at : at + self.size] for at in range(0, len(data), self.size)]

    def phases(self) -> Iterator[Iterator[int]]:
        """The numbers of the warm-up frames, then of those that count."""
        yield self.numbers(0, self.warm)
        self.mark()
        yield self.numbers(self.warm, self.warm + self.frames)

    def numbers(self, start: int, stop: int) -> Iterator[int]:
        for number in range(start, stop):
            if self.render:
                self.pretend_to_render()
            yield number

    def pretend_to_render(self) -> None:
        """Block the thread, as an OpenGL call does that waits for the GPU."""
        until = time.perf_counter() + self.render
        while time.perf_counter() < until:
            pass

    def mark(self) -> None:
        self.gaps.clear()
        self.memory_at_start = memory()
        self.cpu_at_start = cpu()
        self.started = time.perf_counter()

    def report(self) -> None:
        """Tell what it took, once FFmpeg has ended."""
        told = {
            "who": "sender",
            "seconds": time.perf_counter() - self.started,
            "cpu": cpu() - self.cpu_at_start,
            "sink_cpu": cpu(resource.RUSAGE_CHILDREN),
            "calls": self.calls,
            "growth": memory() - self.memory_at_start,
            "gaps": percentile(self.gaps, 0.99) if self.gaps else None,
        }
        os.write(1, json.dumps(told).encode() + b"\n")


def cpu(who: int = resource.RUSAGE_SELF) -> float:
    """CPU seconds so far, of all threads."""
    use = resource.getrusage(who)
    return use.ru_utime + use.ru_stime


def memory() -> int:
    """Bytes of memory that this process has now."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # not Linux: the most it has ever had
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return pages * os.sysconf("SC_PAGE_SIZE")


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[int((len(values) - 1) * part)]


# ---- aiozerocopy ------------------------------------------------------------------


@contextlib.asynccontextmanager
async def our_child(job: Job) -> AsyncIterator[Any]:
    """The stream to FFmpeg's stdin.  The block ends when FFmpeg has, with success."""
    from aiozerocopy import open_process

    peer = job.options.get("peer", "reads")  # FFmpeg reads: pages may be lent to it
    async with open_process(
        job.command, stderr=None, env=job.env, peer=peer
    ) as process:
        assert process.stdin is not None
        yield process.stdin
        await process.stdin.aclose()
        expect_success(await process.wait())
    job.calls = process.stdin.stats.send_calls


def our_pool(job: Job) -> Any:
    from aiozerocopy import FramePool

    return FramePool(job.size, slots=job.buffers)


def draw(job: Job, number: int, frame: Any, pieces: list[bytes]) -> None:
    if job.check or number < job.warm:
        frame.view[:] = pieces[number % job.buffers]


async def through_pool(job: Job, way: str) -> None:
    """Send frames of a pool to FFmpeg, by this method of the stream."""
    pieces = job.pieces()
    async with our_child(job) as stream, our_pool(job) as pool:
        give = getattr(stream, way)
        for numbers in job.phases():
            for number in numbers:
                async with await pool.acquire() as frame:
                    draw(job, number, frame, pieces)
                    await give(frame)
            await stream.flush()


async def send(job: Job) -> None:
    """One frame in flight at a time."""
    await through_pool(job, "send")


async def put(job: Job) -> None:
    """As many frames in flight as the pool has slots."""
    await through_pool(job, "put")


async def nothing(job: Job) -> None:
    """A program that renders, and sends nothing."""
    for numbers in job.phases():
        for _ in numbers:
            await asyncio.sleep(0)


# ---- TurboPipe, and what is compatible with it --------------------------------------


async def turbopipe(job: Job) -> None:
    """Its calls block the thread, and so the event loop."""
    theirs = importlib.import_module(job.options["module"])
    with their_child(job) as child:
        fd = child.stdin.fileno()
        buffers = [bytearray(piece) for piece in job.pieces()]
        for numbers in job.phases():
            for number in numbers:
                buffer = buffers[number % job.buffers]
                theirs.sync(buffer)
                theirs.pipe(buffer, fd)
                if job.render:
                    await asyncio.sleep(0)  # let `beat` run
            for buffer in buffers:
                theirs.sync(buffer)


async def write(job: Job) -> None:
    """``stdin.write(buffer.read())``: a copy, and a write that blocks."""
    with their_child(job) as child:
        buffers = [bytearray(piece) for piece in job.pieces()]
        for numbers in job.phases():
            for number in numbers:
                child.stdin.write(bytes(buffers[number % job.buffers]))


@contextlib.contextmanager
def their_child(job: Job) -> Iterator[Any]:
    size = job.options.get("pipe_size", -1)
    child = subprocess.Popen(
        job.command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env=job.env,
        pipesize=size,
    )
    yield child
    assert child.stdin is not None
    child.stdin.close()
    expect_success(child.wait())


# ---- asyncio and uvloop --------------------------------------------------------------


async def write_and_drain(job: Job) -> None:
    child = await asyncio.create_subprocess_exec(
        *job.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        env=job.env,
    )
    writer = child.stdin
    assert writer is not None
    buffers = [memoryview(bytearray(piece)) for piece in job.pieces()]
    for numbers in job.phases():
        for number in numbers:
            writer.write(buffers[number % job.buffers])
            await writer.drain()
            if job.render:
                await asyncio.sleep(0)
    writer.close()
    expect_success(await child.wait())


def expect_success(code: int) -> None:
    if code != 0:
        raise ChildProcessError(f"FFmpeg ended with code {code}")


# ---- all of them --------------------------------------------------------------------

WAYS: dict[str, Callable[[Job], Awaitable[None]]] = {
    function.__name__: function
    for function in (send, put, nothing, turbopipe, write, write_and_drain)
}


async def beat(gaps: list[float]) -> None:
    """Note how long a task has to wait until the loop runs it again."""
    last = time.perf_counter()
    while True:
        await asyncio.sleep(TICK)
        now = time.perf_counter()
        gaps.append(now - last)
        last = now


def main(ways: Mapping[str, Callable[[Job], Awaitable[None]]] = WAYS) -> None:
    job = Job(**json.loads(sys.argv[1]))

    async def run() -> None:
        heart = asyncio.ensure_future(beat(job.gaps)) if job.render else None
        await ways[job.way](job)
        job.report()  # before the interpreter ends, which is not part of the work
        if heart is not None:
            heart.cancel()

    if job.loop == "uvloop":
        import uvloop

        uvloop.run(run())
    else:
        asyncio.run(run())


if __name__ == "__main__":
    main()
