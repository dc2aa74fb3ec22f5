"""The two processes of a run of `bench dask`, each with a worker.

The sender's has the scheduler too, and the client that tells both workers what to do:
make an array here, look at it there.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiozerocopy.bench.frames import cpu
from aiozerocopy.bench.network import tell

if TYPE_CHECKING:
    import numpy as np
    from distributed import Client

UNDER_WAY = 4  # arrays


@dataclass(frozen=True)
class Job:
    """What both processes are told."""

    role: str
    protocol: str  # "azc://"
    folder: str
    pattern: str
    size: int
    warm: int
    messages: int
    check: bool

    @property
    def address(self) -> Path:
        """A FIFO, over which the sink learns where the scheduler is."""
        return Path(self.folder, "address")


# ---- what workers do ----------------------------------------------------------------


@functools.cache
def arrays(pattern: str, size: int) -> np.ndarray:
    """All that are sent; one a row."""
    import numpy as np

    return np.fromfile(pattern, "u1").reshape(-1, size)


def make(pattern: str, size: int, number: int) -> np.ndarray:
    every = arrays(pattern, size)
    made: np.ndarray = every[number % len(every)]
    return made


def is_wrong(array: np.ndarray, pattern: str, number: int, check: bool) -> bool:
    if not check:
        return array.nbytes == 0
    return not (array == make(pattern, array.nbytes, number)).all()


# ---- the processes ------------------------------------------------------------------


async def send(job: Job) -> None:
    from distributed import Client, Scheduler, Worker

    quiet: Any = {"dashboard_address": ":0"}
    where: Any = {"host": "127.0.0.1", "protocol": job.protocol, "port": 0}
    async with Scheduler(**where, **quiet) as scheduler:
        options: Any = {"name": "sender", "nthreads": 1, "memory_limit": 0}
        async with Worker(scheduler.address, **options, **quiet):
            job.address.write_text(scheduler.address)
            async with Client(scheduler.address, asynchronous=True) as client:
                await client.wait_for_workers(2)
                await measure(client, job)


async def measure(client: Client, job: Job) -> None:
    wrong = await move(client, job, job.warm)
    sink_cpu, sender_cpu = await cpu_of_sink(client), cpu()
    start = time.perf_counter()
    wrong += await move(client, job, job.messages)
    seconds = time.perf_counter() - start
    tell({"who": "sender", "cpu": cpu() - sender_cpu})
    sink_cpu = await cpu_of_sink(client) - sink_cpu
    tell({"who": "sink", "cpu": sink_cpu, "seconds": seconds, "wrong": wrong})


async def move(client: Client, job: Job, count: int) -> int:
    """Move so many arrays; return how many came out wrong."""
    wrong = 0
    under_way: deque[Any] = deque()
    for number in range(count):
        made = client.submit(
            make, job.pattern, job.size, number, workers="sender", pure=False
        )
        under_way.append(
            client.submit(
                is_wrong,
                made,
                job.pattern,
                number,
                job.check,
                workers="sink",
                pure=False,
            )
        )
        if len(under_way) == UNDER_WAY:
            wrong += await under_way.popleft()
    while under_way:
        wrong += await under_way.popleft()
    return wrong


async def cpu_of_sink(client: Client) -> float:
    return float(await client.submit(cpu, workers="sink", pure=False))


async def receive(job: Job) -> None:
    from distributed import Worker

    options: Any = {"name": "sink", "nthreads": 1, "memory_limit": 0}
    scheduler = job.address.read_text()  # once there is one
    async with Worker(scheduler, **options, dashboard=False) as worker:
        await worker.finished()


ROLES = {"sender": send, "sink": receive}


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    asyncio.run(ROLES[job.role](job))


if __name__ == "__main__":
    # What this module is called while it runs, no worker could import.
    from aiozerocopy.bench import dask_peers

    dask_peers.main()
