"""A program: examples/render_farm.py makes a film, and loses a process halfway.

Its arguments are the kind of loss, and the arguments of the example.
"""

import asyncio
import importlib.util
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster, Scheduler, Worker

EXAMPLE = Path(__file__).parents[2] / "examples" / "render_farm.py"
AT = 15  # the loss comes after this many frames


def example() -> Any:
    spec = importlib.util.spec_from_file_location("render_farm", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["render_farm"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def make_film(
    address: Any, options: Namespace, lose: Callable[[Client], object]
) -> int:
    """Return how many ranges were requested, counting repeated ones again."""
    frames = ranges = 0

    def tick() -> None:
        nonlocal frames
        frames += 1
        if frames == AT:
            lose(client)

    async with Client(address, asynchronous=True, direct_to_workers=True) as client:
        submit = client.submit

        def counting(*arguments: Any, **details: Any) -> Any:
            nonlocal ranges
            ranges += 1
            return submit(*arguments, **details)

        client.submit = counting
        await farm.film(client, options, tick)
    return ranges


async def lose_a_worker(options: Namespace) -> None:
    """Kill one of two workers; the ranges that it rendered and held are lost."""
    async with LocalCluster(
        protocol="azc",
        n_workers=2,
        threads_per_worker=1,
        dashboard_address=":0",
        asynchronous=True,
    ) as cluster:
        doomed = cluster.workers[0].pid
        await make_film(cluster, options, lambda _: os.kill(doomed, signal.SIGKILL))
        assert doomed not in {nanny.pid for nanny in cluster.workers.values()}


async def lose_the_scheduler(options: Namespace) -> None:
    """Close the scheduler with its workers, and start new ones at its address."""
    async with AsyncExitStack() as ends:

        async def start(port: int) -> Scheduler:
            scheduler = Scheduler(
                protocol="azc", host="127.0.0.1", port=port, dashboard_address=":0"
            )
            await ends.enter_async_context(scheduler)
            for _ in range(2):
                worker = Worker(scheduler.address, nthreads=1, dashboard=False)
                await ends.enter_async_context(worker)
            return scheduler

        async def restart() -> None:
            await first.close()
            await start(first.port)

        first = await start(0)
        restarts: list[asyncio.Task[None]] = []

        def lose(_client: Client) -> None:
            restarts.append(asyncio.create_task(restart()))

        ranges = await make_film(first.address, options, lose)
        await restarts[0]
        assert ranges > options.frames / options.range


LOSSES = {"worker": lose_a_worker, "scheduler": lose_the_scheduler}
farm = example()

if __name__ == "__main__":
    asyncio.run(LOSSES[sys.argv[1]](farm.parser().parse_args(sys.argv[2:])))
