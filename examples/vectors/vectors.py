"""Vectors from C and Rust into NumPy: through a ring, a pipe and a UNIX socket.

    python vectors.py --count 500000

builds vectors.c (with $CC, or cc) and the Rust program (with cargo, if there is one),
lets each send vectors of 256 numbers, takes them in batches of up to 256, and checks
the mean of each.  Then Python sends, and Rust receives.  The C part needs azc_ring.h,
the Rust part nothing at all.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np

import aiozerocopy as azc
from aiozerocopy import shm

if TYPE_CHECKING:
    import numpy.typing as npt

HERE = Path(__file__).parent
LENGTH = 256
BATCH = 256
CAPACITY = 4 << 20
SAYS = "{count} vectors, 0 wrong"


# ---- checking ------------------------------------------------------------------------


class Means:
    """Takes batches, and compares the mean of each vector."""

    def __init__(self) -> None:
        self.count = 0
        self.batches = 0
        self.seconds = 0.0

    def take(self, batch: npt.NDArray[Any]) -> None:
        if not self.count:
            self._began = time.perf_counter()
        numbers = np.arange(self.count, self.count + len(batch))
        if not np.array_equal(batch.mean(axis=1), numbers % 1000 + 127.5):
            raise ValueError(
                f"a mean is wrong in the {len(batch)} vectors from {self.count} on"
            )
        self.count += len(batch)
        self.batches += 1
        self.seconds = time.perf_counter() - self._began


async def by_ring(program: str, count: int, folder: Path) -> Means:
    means = Means()
    path = folder / "ring"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(started, program, ["ring", str(path), str(count)], path)
        async with shm.listen_ring(path, CAPACITY) as ring:
            with contextlib.suppress(anyio.EndOfStream):
                while True:
                    with await ring.receive_batch(BATCH) as batch:
                        means.take(batch.array("float32"))
    return means


async def by_pipe(program: str, count: int, folder: Path) -> Means:
    means = Means()
    async with azc.open_process([program, "pipe", str(count)], stdout=True) as child:
        assert child.stdout is not None
        async for batch in child.stdout.batches((BATCH, LENGTH), "float32"):
            means.take(batch)
    return means


async def by_socket(program: str, count: int, folder: Path) -> Means:
    means = Means()
    path = folder / "socket"
    done = anyio.Event()

    async def take(stream: azc.Stream) -> None:
        async for batch in stream.batches((BATCH, LENGTH), "float32"):
            means.take(batch)
        done.set()

    async with azc.serve_unix(take, path):
        await started(program, ["unix", str(path), str(count)], path)
        await done.wait()
    return means


async def to_rust(program: str, count: int, folder: Path) -> Means:
    """Here Python sends, and the other program checks."""
    means = Means()
    path = folder / "ring"
    vectors = (np.arange(1000)[:, None] + np.arange(LENGTH)).astype("float32")
    said: list[str] = []

    async def receive() -> None:
        said.append(await started(program, ["receive", str(path)], path))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        async with shm.listen_ring(path, CAPACITY, sends=True) as ring:
            began = time.perf_counter()
            for number in range(count):
                await ring.send(vectors[number % 1000], type_id=1)
    means.count, means.seconds = count, time.perf_counter() - began
    if said != [SAYS.format(count=count)]:
        raise ValueError(f"the Rust program has seen: {said[0]}")
    return means


async def started(program: str, words: list[str], path: Path) -> str:
    """Run the program once somebody listens at the path; return its output."""
    while not await anyio.Path(path).exists():  # noqa: ASYNC110 - nothing tells us
        await anyio.sleep(0.001)
    done = await anyio.run_process([program, *words], stderr=None)
    return done.stdout.decode().strip()


# ---- all of it -----------------------------------------------------------------------


def build_c(folder: Path, header: Path) -> str:
    program = folder / "vectors_c"
    compiler = os.environ.get("CC", "cc")
    options = ["-std=c11", "-O2", f"-I{header}", "-o", str(program)]
    subprocess.run([compiler, *options, str(HERE / "vectors.c")], check=True)
    return str(program)


def build_rust(folder: Path) -> str:
    subprocess.run(
        ["cargo", "build", "--release", "--quiet", "--offline", "--locked"],
        cwd=HERE,
        env=os.environ | {"CARGO_TARGET_DIR": str(folder)},
        check=True,
    )
    return str(folder / "release" / "vectors")


WAYS = {"ring": by_ring, "pipe": by_pipe, "UNIX socket": by_socket}


def show(name: str, way: str, means: Means) -> None:
    rate = means.count / means.seconds if means.seconds else 0
    batch = f"{means.count / means.batches:8.1f}" if means.batches else " " * 8
    print(f"{name:<16} {way:<12} {means.count:>9,} {rate:>13,.0f} {batch}", flush=True)


async def run(count: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        programs = {"C": build_c(folder, HERE.parents[1] / "csrc")}
        if shutil.which("cargo"):
            programs["Rust"] = build_rust(folder)
        print(f"{'':<16} {'by':<12} {'vectors':>9} {'a second':>13} {'a batch':>8}")
        for language, program in programs.items():
            for way, receive in WAYS.items():
                show(
                    f"{language} to Python", way, await receive(program, count, folder)
                )
        if "Rust" in programs:
            show(
                "Python to Rust", "ring", await to_rust(programs["Rust"], count, folder)
            )
        else:
            print("There is no cargo here: Rust was left out.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=500_000, help="how many vectors")
    with contextlib.suppress(KeyboardInterrupt):
        anyio.run(run, parser.parse_args().count)


if __name__ == "__main__":
    main()
