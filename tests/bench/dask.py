"""Arrays between two workers of a Dask cluster: azc://, and Dask's own tcp://.

The sender's process has the scheduler too, and the client that tells both workers what
to do: make an array here, look at it there.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.processes import Lab, worker
from bench.race import Contender, Race, Run, Work, WrongBytes, duels
from bench.worker import Job, cpu

if TYPE_CHECKING:
    from distributed import Client

UNDER_WAY = 4  # arrays


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    size = 8_000_000 if quick else 64_000_000
    arrays = f"arrays of {size // 1_000_000} MB between"
    ours, theirs = ("azc://", "azc+unix://"), {"tcp://": "Dask's tcp://"}
    needs = ("distributed", "numpy")
    yield Race(
        "dask",
        f"{arrays} two workers",
        Work(size, 4 if quick else 16, warm=4, buffers=2),
        [
            Contender(name, partial(move_arrays, lab, name), needs)
            for name in (*ours, *theirs)
        ],
        [
            duel
            for name in ours
            for duel in duels(name, theirs, f"{arrays} Dask workers: {name}", both=True)
        ],
    )


def move_arrays(lab: Lab, protocol: str, work: Work, check: bool) -> Run:
    address = lab.folder() / "address"  # a FIFO: the sink learns from it where to go
    os.mkfifo(address)
    told = {"pattern": lab.pattern(work), "check": check, "address": str(address)}
    told |= {"protocol": protocol, **work.told}
    sender = lab.reports(worker(send, **told), worker(receive, **told))["sender"]
    if sender["wrong"]:
        raise WrongBytes(f"{protocol}: {sender['wrong']} arrays came out wrong")
    return Run(sender["seconds"], sender["cpu"], sender["sink_cpu"])


# ---- what workers do -----------------------------------------------------------------


@functools.cache
def arrays(pattern: str, size: int) -> Any:
    """All that are sent; one a row."""
    import numpy as np

    return np.fromfile(pattern, "u1").reshape(-1, size)


def make(pattern: str, size: int, number: int) -> Any:
    every = arrays(pattern, size)
    return every[number % len(every)]


def is_wrong(array: Any, pattern: str, number: int, check: bool) -> bool:
    if not check:
        return bool(array.nbytes == 0)
    return not (array == make(pattern, array.nbytes, number)).all()


def write(path: str, text: str) -> None:
    Path(path).write_text(text)


def read(path: str) -> str:
    """Once there is something."""
    return Path(path).read_text()


# ---- the processes -------------------------------------------------------------------


async def send(job: Job) -> dict[str, Any]:
    from distributed import Client, Scheduler, Worker

    quiet: Any = {"dashboard_address": ":0"}
    where: Any = {"host": "127.0.0.1", "protocol": job.protocol, "port": 0}
    async with Scheduler(**where, **quiet) as scheduler:
        options: Any = {"name": "sender", "nthreads": 1, "memory_limit": 0}
        async with Worker(scheduler.address, **options, **quiet):
            write(job.address, scheduler.address)
            async with Client(scheduler.address, asynchronous=True) as client:
                await client.wait_for_workers(2)
                return await measure(client, job)


async def measure(client: Client, job: Job) -> dict[str, Any]:
    wrong = await move(client, job, job.warm)
    sink_cpu = await cpu_of_sink(client)
    job.begin()
    wrong += await move(client, job, job.messages)
    job.end()
    return {"wrong": wrong, "sink_cpu": await cpu_of_sink(client) - sink_cpu}


async def move(client: Client, job: Job, count: int) -> int:
    """Move so many arrays; return how many came out wrong."""
    wrong = 0
    under_way: deque[Any] = deque()
    submit = partial(client.submit, pure=False)
    for number in range(count):
        made = submit(make, job.pattern, job.size, number, workers="sender")
        under_way.append(
            submit(is_wrong, made, job.pattern, number, job.check, workers="sink")
        )
        if len(under_way) == UNDER_WAY:
            wrong += await under_way.popleft()
    while under_way:
        wrong += await under_way.popleft()
    return wrong


async def cpu_of_sink(client: Client) -> float:
    return float(await client.submit(cpu, workers="sink", pure=False))


async def receive(job: Job) -> dict[str, Any]:
    from distributed import Worker

    options: Any = {"name": "sink", "nthreads": 1, "memory_limit": 0}
    async with Worker(read(job.address), **options, dashboard=False) as there:
        await there.finished()
    return {"who": "sink"}
