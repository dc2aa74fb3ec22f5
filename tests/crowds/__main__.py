"""Measures each crowd at each size, and says it as curves."""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import TYPE_CHECKING, Any

import anyio
import figures
import numpy as np
from own_threads import thread_ids
from soak.samples import private

import aiozerocopy as azc
from aiozerocopy import web
from aiozerocopy.broadcast import Broadcast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

SIZES = (1, 10, 100, 1000)
PROCESSES = 4  # that read, at most
RATE = 10  # messages a second and stream
SHAPE = (64, 100, 3)  # of a picture: 19,200 bytes
NBYTES = math.prod(SHAPE)
PIPE = 8192  # bytes: a message is always too big for it
HEADER = {"viewers": 128, "web": 4 + 32, "pipes": 0}  # bytes before the picture
FEW = 16  # threads: a pipe that is full has one, viewers share a few
EACH = 200_000  # bytes of memory for each stream
PATIENCE = 60.0


@dataclass
class Found:
    """Of one crowd."""

    threads: int
    memory: int  # bytes more than before
    cpu: float  # share of a core
    ages: list[float]
    sent: int  # messages, to all

    def ages_at(self, percent: int) -> float:
        """Milliseconds."""
        return 1000 * quantiles(self.ages, n=100)[percent - 1]

    def __str__(self) -> str:
        return (
            f"{self.threads} threads, {self.memory / 1e6:.1f} MB, {self.cpu:.0%} of a "
            f"core, {self.ages_at(50):.1f} ms old, 99 of 100 within "
            f"{self.ages_at(99):.1f} ms"
        )


class Crowd:
    """One kind, one size: what sends, and the processes that read."""

    def __init__(self, kind: str, size: int, seconds: float) -> None:
        self.kind, self.size, self.seconds = kind, size, seconds
        self.readers: list[subprocess.Popen[str]] = []
        self.shares = [len(range(n, size, PROCESSES)) for n in range(PROCESSES)]

    async def measure(self) -> Found:
        self.before = private()
        try:
            found = await (self.pipes if self.kind == "pipes" else self.viewers)()
            found.ages = await self.ages()
            return found
        finally:
            for reader in self.readers:
                reader.kill()
                reader.wait()

    def start(self, *words: object, fds: Sequence[int] = ()) -> None:
        header = HEADER[self.kind]
        command = [sys.executable, "-m", "crowds.readers"]
        command += map(str, (header + NBYTES, header, *words))
        cwd, pipe = Path(__file__).parents[1], subprocess.PIPE
        reader = subprocess.Popen(
            command, cwd=cwd, pass_fds=fds, stdout=pipe, text=True
        )
        self.readers.append(reader)

    async def ages(self) -> list[float]:
        """What the readers have noted, once all streams have ended."""

        def read() -> list[float]:
            told = [reader.communicate(timeout=PATIENCE)[0] for reader in self.readers]
            return [age for text in told for age in json.loads(text)]

        return await anyio.to_thread.run_sync(read)

    async def beat(self, send: Callable[[memoryview], Awaitable[int]]) -> Found:
        """Send at the rate for some seconds; what the process needs meanwhile."""
        picture = memoryview(bytearray(os.urandom(NBYTES)))
        sent, threads, memory = 0, 0, 0
        began, cpu = time.monotonic(), time.process_time()
        for number in range(int(self.seconds * RATE)):
            await anyio.sleep(max(0, began + number / RATE - time.monotonic()))
            picture[:8] = time.monotonic_ns().to_bytes(8, "little")
            sent += await send(picture)
            if number % RATE == RATE - 1:
                threads = max(threads, len(thread_ids()))
                memory = max(memory, private() - self.before)
        used = (time.process_time() - cpu) / (time.monotonic() - began)
        return Found(threads, memory, used, [], sent)

    # -- the kinds --------------------------------------------------------------------

    async def viewers(self) -> Found:
        """Of one broadcast, over TCP or WebSockets."""
        async with Broadcast() as hub:

            async def handler(stream: azc.Stream) -> None:
                await hub.attach(stream).wait_closed()

            async def send(picture: memoryview) -> int:
                array = np.frombuffer(picture, np.uint8).reshape(SHAPE)
                await hub.publish(array.copy())
                return len(hub.clients)

            served: Any = azc.serve_tcp(handler)
            if self.kind == "web":
                served = web.serve(hub, connections=max(10, 2 * self.size))
            async with served as server:
                for share in filter(None, self.shares):
                    self.start(self.kind, server.port, share)
                with anyio.fail_after(PATIENCE):
                    while len(hub.clients) < self.size:  # noqa: ASYNC110
                        await anyio.sleep(0.02)
                found = await self.beat(send)
                await anyio.sleep(0.5)  # what is under way arrives
                return found

    async def pipes(self) -> Found:
        """Each too small for a message, with a task that sends."""
        streams = []
        for share in filter(None, self.shares):
            ends = [os.pipe() for _ in range(share)]
            for _, write_fd in ends:
                fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, PIPE)
                streams.append(azc.open_writer(write_fd))
            fds = [read_fd for read_fd, _ in ends]
            self.start(*fds, fds=fds)
            for fd in fds:
                os.close(fd)
        async with anyio.create_task_group() as tasks:

            async def send(picture: memoryview) -> int:
                message = bytes(picture)
                for stream in streams:
                    tasks.start_soon(stream.send, message)
                return len(streams)

            found = await self.beat(send)
        for stream in streams:
            await stream.aclose()
        return found


def say(kind: str, found: dict[int, Found]) -> None:
    curves: dict[str, tuple[str, Callable[[Found], float]]] = {
        f"age of a message: {kind}, median": ("ms", lambda it: it.ages_at(50)),
        f"age of a message: {kind}, 99 of 100": ("ms", lambda it: it.ages_at(99)),
        f"threads: {kind}": ("threads", lambda it: it.threads),
        f"private memory: {kind}": ("MB", lambda it: max(0.1, it.memory / 1e6)),
        f"processor: {kind}": ("% of a core", lambda it: 100 * it.cpu),
    }
    for name, (unit, value) in curves.items():
        points = [(size, value(each)) for size, each in found.items()]
        figures.curve(f"Crowds, {name}", points, "at once", unit, log=True)
    for size, each in found.items():
        arrived = f"{len(each.ages):,} of {each.sent:,} messages arrived"
        figures.remark(f"{size:,} {kind}", f"{each}, {arrived}")


def wrong(kind: str, size: int, found: Found) -> list[str]:
    """What must not depend on how quick the machine is."""
    threads = FEW + (size if kind == "pipes" else 0)
    lost = found.sent - len(found.ages) if kind == "pipes" else 0
    told = {
        f"{found.threads} threads, at most {threads} may be": found.threads > threads,
        f"{found.memory:,} bytes": found.memory > EACH * size + (16 << 20),
        f"{lost} messages have not arrived": lost,
        "nobody has got anything": not found.ages,
    }
    return [f"{size} {kind}: {line}" for line, is_so in told.items() if is_so]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m crowds", description=__doc__)
    parser.add_argument("kinds", nargs="*", default=[*HEADER])
    parser.add_argument("--seconds", type=float, default=6, help="for each")
    parser.add_argument("--most", type=int, default=SIZES[-1])
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    bad: list[str] = []
    for kind in options.kinds:
        found = {}
        for size in SIZES:
            if size <= options.most:
                crowd = Crowd(kind, size, options.seconds)
                found[size] = each = anyio.run(crowd.measure)
                bad += wrong(kind, size, each)
                print(f"{kind:8} {size:5}: {each}", flush=True)
        say(kind, found)
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
