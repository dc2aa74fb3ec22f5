"""Render a film on a Dask cluster, and encode it here with one FFmpeg.

    python render_farm.py film.mp4 --workers 4
    python render_farm.py film.mp4 --scheduler azc://farm:8786

Each task renders a range of frames.  The ranges arrive in order, and no more than
--ahead of them are under way at a time, so memory stays bounded however long the film
is.  A range that is lost, with its worker or with the scheduler, is rendered again: no
frame is missing or comes twice.  Ctrl-C ends the film early.

To start a cluster of several machines over azc:// (see https://docs.dask.org):

    dask scheduler --protocol azc --port 8786
    dask worker azc://farm:8786 --nthreads 1
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import deque
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np
from distributed import Client, Future, KilledWorker, LocalCluster

from aiozerocopy import ffmpeg

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

ATTEMPTS = 5  # to render one range
LOST = (CancelledError, KilledWorker, OSError)  # from a lost worker, scheduler or link


def draw(numbers: range, size: tuple[int, int]) -> np.ndarray:
    """Draw rings that run outwards, in three colours; a worker does this."""
    width, height = size
    y, x = np.mgrid[0:height, 0:width].astype("f4")
    distance = np.hypot(x - width / 2, y - height / 2) * (256 / height)
    rings = distance.astype("u1")[..., None]
    phases = np.array((0, 85, 170), "u1")
    pictures = np.empty((len(numbers), height, width, 3), "u1")
    for picture, number in zip(pictures, numbers, strict=True):
        np.add(rings, phases - np.uint8(number * 3 % 256), out=picture)
    return pictures


async def render(client: Client, numbers: range, size: tuple[int, int]) -> np.ndarray:
    """Return the pictures of a range; render them again if they are lost."""
    for attempt in range(ATTEMPTS):
        future = client.submit(draw, numbers, size, pure=False)
        try:
            return await result_of(future, client)
        except LOST:
            if attempt == ATTEMPTS - 1:
                raise
        finally:
            future.release()
    raise AssertionError


async def result_of(future: Future[np.ndarray], client: Client) -> np.ndarray:
    """Wait for the pictures; Dask would for ever, even if the client has given up."""
    result = asyncio.ensure_future(future)
    try:
        while not (await asyncio.wait({result}, timeout=1))[0]:
            if client.status == "closed":
                raise RuntimeError("the scheduler is gone, and has not come back")
        pictures: np.ndarray = await result
        return pictures
    finally:
        result.cancel()


async def in_order(
    client: Client, ranges: list[range], size: tuple[int, int], ahead: int
) -> AsyncIterator[np.ndarray]:
    """Yield the pictures range by range, while others are being rendered."""
    under_way: deque[asyncio.Task[np.ndarray]] = deque()
    try:
        for numbers in ranges:
            under_way.append(asyncio.create_task(render(client, numbers, size)))
            if len(under_way) == ahead:
                yield await under_way.popleft()
        while under_way:
            yield await under_way.popleft()
    finally:
        for task in under_way:
            task.cancel()


async def film(
    client: Client, options: argparse.Namespace, tick: Callable[[], object]
) -> None:
    """Render and encode all frames; ``tick`` is called after each."""
    width, height = map(int, options.size.split("x"))
    frames, count = options.frames, options.range
    ranges = [
        range(first, min(first + count, frames)) for first in range(0, frames, count)
    ]
    async with ffmpeg.Writer(options.output, (width, height), options.fps) as video:
        async for pictures in in_order(client, ranges, (width, height), options.ahead):
            for picture in pictures:
                await video.send(picture)
                tick()


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[], object]]:
    """A bar on a terminal, if rich is installed."""
    try:
        from rich.progress import MofNCompleteColumn, Progress
    except ModuleNotFoundError:
        yield lambda: None
        return
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    with Progress(*columns, disable=not sys.stdout.isatty()) as bars:
        bar = bars.add_task(title, total=total)
        yield lambda: bars.advance(bar)


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    result.add_argument("output", nargs="?", default="film.mp4")
    result.add_argument("--scheduler", help="a cluster's address (default: start one)")
    result.add_argument("--workers", type=int, default=2, help="of a new cluster")
    result.add_argument("--size", default="1280x720")
    result.add_argument("--frames", type=int, default=300)
    result.add_argument("--fps", type=int, default=60)
    result.add_argument("--range", type=int, default=10, help="frames in a task")
    result.add_argument("--ahead", type=int, default=6, help="ranges under way")
    return result


async def main() -> None:
    options = parser().parse_args()
    async with AsyncExitStack() as stack:
        cluster = options.scheduler
        if cluster is None:
            cluster = await stack.enter_async_context(
                LocalCluster(
                    protocol="azc",
                    n_workers=options.workers,
                    threads_per_worker=1,
                    dashboard_address=":0",
                    asynchronous=True,
                )
            )
        client = await stack.enter_async_context(
            Client(cluster, asynchronous=True, direct_to_workers=True)
        )
        tick = stack.enter_context(progress(options.output, options.frames))
        start = time.perf_counter()
        await film(client, options, tick)
        rate = options.frames / (time.perf_counter() - start)
    print(f"{options.frames} frames in {options.output}, {rate:.0f} a second")


if __name__ == "__main__":
    asyncio.run(main())
