"""A splitter whose readers come, go, are slow and are dropped, at random moments.

A seed always asks for the same; when each thing happens is up to the machine.
"""

import math
import os
import random
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from links import linux_only

import aiozerocopy as azc

SEEDS = int(os.environ.get("AZC_SPLITTER_SEEDS", "40"))
DATA = random.Random(1).randbytes(2_000_000)
SIZES = (4096, 65536, 1 << 20)

pytestmark = [pytest.mark.anyio, linux_only, pytest.mark.timeout(60)]


class Trial:
    """One source, and what its readers got of it."""

    def __init__(self, rng: random.Random, path: Path | None) -> None:
        self.rng = rng
        self.path = path
        self.data = DATA[: rng.randrange(100_000, len(DATA))]
        self.unit = rng.choice([1, 7, 188])
        self.got: list[tuple[str | None, bytes]] = []

    async def turns(self, most: int) -> None:
        """Let the others do something."""
        for _ in range(self.rng.randrange(most)):
            await anyio.lowlevel.checkpoint()

    async def feed(self, writer: azc.SendStream) -> None:
        at = 0
        while at < len(self.data):
            n = self.rng.randrange(1, 100_000)
            await writer.send(self.data[at : at + n])
            at += n
            await self.turns(3)
        await writer.aclose()

    async def read(self, splitter: azc.Splitter) -> None:
        how = self.rng.choice(["quick", "slow", "leaving"])
        await self.turns(50)
        try:
            reader = await splitter.join()
        except azc.StreamClosed:  # it came too late
            return
        received = bytearray()
        async with reader:
            async for data in reader:
                received += data
                if how == "leaving" and len(received) > 50_000:
                    self.got.append((None, bytes(received)))
                    return
                if how == "slow":
                    await self.turns(100)
            self.got.append((reader.ended, bytes(received)))

    async def run(self) -> None:
        rng = self.rng
        ends = azc.pipe(rng.choice(SIZES)) if rng.random() < 0.5 else azc.socketpair()
        async with ends as (source, writer), anyio.create_task_group() as tasks:
            async with azc.Splitter(
                source,
                self.path,
                patience=rng.choice([0, 0.01, math.inf]),
                unit=self.unit,
            ) as splitter:
                tasks.start_soon(self.feed, writer)
                for _ in range(rng.randrange(6)):
                    tasks.start_soon(self.read, splitter)
                if rng.random() < 0.3:
                    await self.turns(100)
                else:
                    assert await splitter.wait() == len(self.data)
            rest = b"".join([data async for data in source])
        assert rest == self.data[splitter.taken :]
        self.check(splitter.taken)

    def check(self, taken: int) -> None:
        if self.path is not None:
            assert self.path.read_bytes() == self.data[:taken]
        for ended, received in self.got:
            if len(received) < 64:  # such a piece may be found in other places, too
                continue
            begin = self.data.find(received[:64])
            assert begin % self.unit == 0
            assert received == self.data[begin : begin + len(received)]
            if ended == "end":
                assert begin + len(received) == len(self.data)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_every_byte_is_accounted_for(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "aiozerocopy.splitter.HELD_UP", 30.0
    )  # a busy machine's may be slow
    rng = random.Random(seed)
    monkeypatch.setattr("aiozerocopy.splitter.PIPE_SIZE", rng.choice(SIZES))
    await Trial(rng, tmp_path / "film" if rng.random() < 0.5 else None).run()
