"""Arrays between two workers of a Dask cluster: azc://, and Dask's own tcp://.

The sender's process has the scheduler too, and the client that tells both workers what
to do: make an array here, look at it there.  It starts the process of the other worker.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.processes import ENVIRONMENT, Lab, worker
from bench.race import Contender, Duel, Race, Run, Work, WrongBytes
from bench.worker import Job, cpu

if TYPE_CHECKING:
    from distributed import Client

UNDER_WAY = 4  # arrays


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    size = 8_000_000 if quick else 64_000_000
    arrays = f"arrays of {size // 1_000_000} MB between"
    ours, theirs = ("azc://", "azc+unix://"), "tcp://"
    needs, beside = ("distributed", "numpy"), "Dask's tcp://"
    yield Race(
        "dask",
        f"{arrays} two workers",
        Work(size, 4 if quick else 16, warm=4, buffers=2),
        [
            Contender(name, partial(move_arrays, lab, name), needs)
            for name in (*ours, theirs)
        ],
        [
            Duel(name, theirs, f"{arrays} Dask workers: {name}", beside, both=True)
            for name in ours
        ],
    )


def move_arrays(lab: Lab, protocol: str, work: Work, check: bool) -> Run:
    told = {"pattern": lab.pattern(work), "check": check, "protocol": protocol}
    sender = lab.reports(worker(send, **told, **work.told))["sender"]
    if sender["wrong"]:
        raise WrongBytes(f"{protocol}: {sender['wrong']} arrays came out wrong")
    return Run(sender["seconds"], sender["cpu"], sender["sink_cpu"])


# ---- what workers do -----------------------------------------------------------------


@functools.cache
def arrays(pattern: str, size: int) -> Any:
    """All arrays that are sent, one a row."""
    import numpy as np

    return np.fromfile(pattern, "u1").reshape(-1, size)


def make(pattern: str, size: int, number: int) -> Any:
    every = arrays(pattern, size)
    return every[number % len(every)]


def is_wrong(array: Any, pattern: str, number: int, check: bool) -> bool:
    if not check:
        return bool(array.nbytes == 0)
    return not (array == make(pattern, array.nbytes, number)).all()


# ---- the processes -------------------------------------------------------------------


async def send(job: Job) -> dict[str, Any]:
    from distributed import Client, Scheduler, Worker

    quiet: Any = {"dashboard_address": ":0"}
    where: Any = {"host": "127.0.0.1", "protocol": job.protocol, "port": 0}
    async with Scheduler(**where, **quiet) as scheduler:
        options: Any = {"name": "sender", "nthreads": 1, "memory_limit": 0}
        async with Worker(scheduler.address, **options, **quiet):
            sink = worker(receive, address=scheduler.address)
            there = await asyncio.create_subprocess_exec(*sink, env=ENVIRONMENT)
            async with Client(scheduler.address, asynchronous=True) as client:
                await client.wait_for_workers(2)
                measured = await measure(client, job)
    await there.wait()
    return measured


async def measure(client: Client, job: Job) -> dict[str, Any]:
    wrong = await move(client, job, job.warm)
    sink_cpu = await cpu_of_sink(client)
    job.begin()
    wrong += await move(client, job, job.messages)
    job.end()
    return {"wrong": wrong, "sink_cpu": await cpu_of_sink(client) - sink_cpu}


async def move(client: Client, job: Job, count: int) -> int:
    """Move ``count`` arrays; return how many came out wrong."""
    room = asyncio.Semaphore(UNDER_WAY)
    submit = partial(client.submit, pure=False)

    async def one(number: int) -> int:
        async with room:
            made = submit(make, job.pattern, job.size, number, workers="sender")
            told = (made, job.pattern, number, job.check)
            return int(await submit(is_wrong, *told, workers="sink"))

    return sum(await asyncio.gather(*map(one, range(count))))


async def cpu_of_sink(client: Client) -> float:
    return float(await client.submit(cpu, workers="sink", pure=False))


async def receive(job: Job) -> dict[str, Any]:
    from distributed import Worker

    options: Any = {"name": "sink", "nthreads": 1, "memory_limit": 0}
    async with Worker(job.address, **options, dashboard=False) as there:
        await there.finished()
    return {"who": "sink"}
