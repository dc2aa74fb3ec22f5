"""Both ends of a ring, on one loop, for tests."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from links import meanwhile

import aiozerocopy as azc
from aiozerocopy._core.binding import PORTABLE

if PORTABLE:  # (this skips the module that imports it)
    pytest.skip("the portable build has no rings", allow_module_level=True)

SMALL = 1 << 16  # the smallest capacity


async def opened(
    folder: Path, capacity: int = SMALL, **options: Any
) -> tuple[azc.shm.Ring, azc.shm.Ring]:
    """Return a connected producer and its consumer."""
    ends: list[azc.shm.Ring] = []

    async def listen() -> None:
        ends.append(await azc.shm.listen_ring(path, capacity, **options))

    path = folder / "ring"
    async with meanwhile(listen):
        while not path.exists():
            await anyio.lowlevel.checkpoint()
        producer = await connected(path)
    return producer, ends[0]


async def connected(path: Path, **options: Any) -> azc.shm.Ring:
    """Connect, as soon as the path has a listener."""
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            return await azc.shm.connect_ring(path, **options)
        await anyio.lowlevel.checkpoint()


@asynccontextmanager
async def ring_pair(
    folder: Path, capacity: int = SMALL, **options: Any
) -> AsyncIterator[tuple[azc.shm.Ring, azc.shm.Ring]]:
    """A connected producer and its consumer, closed at the end of the block."""
    producer, consumer = await opened(folder, capacity, **options)
    async with producer, consumer:
        yield producer, consumer


async def filled(ring: azc.shm.Ring, record: bytes) -> int:
    """Send until the ring is full; return how many records that took."""
    stride = -(-(len(record) + 16) // 64) * 64
    count = 0
    while ring.stats.bytes_used + stride <= ring.capacity:
        await ring.send(record)
        count += 1
    return count
