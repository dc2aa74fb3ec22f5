"""Measures each crowd at each size, and says it as curves."""

from __future__ import annotations

import argparse
import fcntl
import json
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
    from collections.abc import Awaitable, Callable

SIZES = (1, 10, 100, 1000)
PROCESSES = 4  # that read, at most
RATE = 10  # messages a second and stream
SHAPE = (64, 100, 3)  # of a picture: 19,200 bytes
NBYTES = 64 * 100 * 3
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
        before = private()
        try:
            run = {"viewers": self.viewers, "web": self.web, "pipes": self.pipes}
            found = await run[self.kind](before)
            found.ages = await self.ages()
            return found
        finally:
            for reader in self.readers:
                reader.kill()
                reader.wait()

    def start(self, words: list[str], fds: list[int]) -> None:
        size = HEADER[self.kind] + NBYTES
        numbers = [str(size), str(HEADER[self.kind])]
        command = [sys.executable, "-m", "crowds.readers", *numbers, *words]
        reader = subprocess.Popen(
            command,
            cwd=Path(__file__).parents[1],
            pass_fds=fds,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.readers.append(reader)

    async def ages(self) -> list[float]:
        """What the readers have noted, once all streams have ended."""

        def read() -> list[float]:
            told = [reader.communicate(timeout=PATIENCE)[0] for reader in self.readers]
            return [age for text in told for age in json.loads(text)]

        return await anyio.to_thread.run_sync(read)

    async def beat(
        self, before: int, send: Callable[[memoryview], Awaitable[int]]
    ) -> Found:
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
                memory = max(memory, private() - before)
        used = (time.process_time() - cpu) / (time.monotonic() - began)
        return Found(threads, memory, used, [], sent)

    # -- the kinds --------------------------------------------------------------------

    async def viewers(self, before: int) -> Found:
        async with Broadcast() as hub:

            async def handler(stream: azc.Stream) -> None:
                await hub.attach(stream).wait_closed()

            async with azc.serve_tcp(handler) as server:
                return await self.published(hub, server.port, before)

    async def web(self, before: int) -> Found:
        places = max(10, 2 * self.size)
        async with Broadcast() as hub, web.serve(hub, connections=places) as server:
            return await self.published(hub, server.port, before)

    async def published(self, hub: Broadcast, port: int, before: int) -> Found:
        for share in filter(None, self.shares):
            self.start([self.kind, str(port), str(share)], [])
        with anyio.fail_after(PATIENCE):
            while len(hub.clients) < self.size:  # noqa: ASYNC110
                await anyio.sleep(0.02)

        async def send(picture: memoryview) -> int:
            await hub.publish(np.frombuffer(picture, np.uint8).reshape(SHAPE).copy())
            return len(hub.clients)

        found = await self.beat(before, send)
        await anyio.sleep(0.5)  # what is under way arrives
        return found

    async def pipes(self, before: int) -> Found:
        streams = []
        for share in filter(None, self.shares):
            ends = [os.pipe() for _ in range(share)]
            for _, write_fd in ends:
                fcntl.fcntl(write_fd, fcntl.F_SETPIPE_SZ, PIPE)
                streams.append(azc.open_writer(write_fd))
            fds = [read_fd for read_fd, _ in ends]
            self.start([*map(str, fds)], fds)
            for fd in fds:
                os.close(fd)
        async with anyio.create_task_group() as tasks:

            async def send_one(stream: azc.SendStream, message: bytes) -> None:
                await stream.send(message)

            async def send(picture: memoryview) -> int:
                message = bytes(picture)
                for stream in streams:
                    tasks.start_soon(send_one, stream, message)
                return len(streams)

            found = await self.beat(before, send)
        for stream in streams:
            await stream.aclose()
        return found


def say(kind: str, found: dict[int, Found]) -> None:
    def curve(plot: str, line: str, unit: str, value: Callable[[Found], Any]) -> None:
        points = [(size, value(each)) for size, each in found.items()]
        name = f"Crowds, {plot}: {kind}{line}"
        figures.curve(name, points, "at once", unit, log=True)

    curve("age of a message", ", median", "ms", lambda each: each.ages_at(50))
    curve("age of a message", ", 99 of 100", "ms", lambda each: each.ages_at(99))
    curve("threads", "", "threads", lambda each: each.threads)
    curve("private memory", "", "MB", lambda each: max(0.1, each.memory / 1e6))
    curve("processor", "", "% of a core", lambda each: 100 * each.cpu)
    for size, each in found.items():
        figures.remark(
            f"{size:,} {kind}",
            f"{each}, {len(each.ages):,} of {each.sent:,} messages arrived",
        )


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
