"""1080p60 in RGB24, 373 MB/s, to one client over TCP: is any frame dropped?

A server process publishes a pool frame every sixtieth of a second, with the policy
"latest", which drops a frame rather than wait.  A client process receives into a pool
of its own.  Each frame has its number at the start, in the middle and at the end, so a
frame mixed from two would be found.  One in `COMPARED` is compared byte by byte; in the
round that checks, every one is.
"""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from aiozerocopy import FramePool, serve_tcp
from aiozerocopy.bench.feeding import Crew
from aiozerocopy.bench.frames import cpu
from aiozerocopy.bench.network import age_sentence, command, run_on, tell
from aiozerocopy.bench.racing import Race, Run, Work, WrongBytes
from aiozerocopy.broadcast import Broadcast
from aiozerocopy.client import connect_frames

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from aiozerocopy import Stream
    from aiozerocopy.bench.feeding import Lab
    from aiozerocopy.bench.racing import Entry, Options
    from aiozerocopy.broadcast import Client

SIZES = {"1080p": (1920, 1080), "180p": (320, 180)}
FPS = 60
SECONDS = 20
SLOTS = 3
COMPARED = 20  # one of so many frames is compared byte by byte
_CHECKED = 60  # frames in the round that checks
_NUMBER = struct.Struct("<Q")


def race(lab: Lab, options: Options) -> Race:
    name = "180p" if options.quick else "1080p"
    width, height = SIZES[name]
    frames = 30 if options.quick else FPS * SECONDS
    work = Work(width * height * 3, frames, warm=0, buffers=1)
    paced = [
        Paced("Broadcast, asyncio", lab),
        Paced("Broadcast, uvloop", lab, "uvloop", ("uvloop",)),
    ]
    title = f"rate: {name}{FPS} RGB24 to one client over TCP"
    return RateRace(title, work, paced, [], rounds=1)


@dataclass(frozen=True)
class RateRun(Run):
    dropped: int  # frames
    ages: Sequence[float]  # of each frame when it was complete, in seconds


@dataclass(frozen=True)
class RateRace(Race):
    def remarks(self, entries: Sequence[Entry]) -> list[str]:
        return [
            f"rate: {entry.name}, {remark(run, self.work)}"
            for entry in entries
            for run in entry.runs
            if isinstance(run, RateRun)
        ]


def remark(run: RateRun, work: Work) -> str:
    return (
        f"{run.dropped} of {work.messages:,} frames dropped, "
        f"{age_sentence(run.ages)}, server at {run.sender_cpu / run.seconds:.0%} and "
        f"client at {run.sink_cpu / run.seconds:.0%} of a core"
    )


@dataclass(frozen=True)
class Paced:
    """A server process that publishes in time, and a client with the same loop."""

    name: str
    lab: Lab
    loop: str = "asyncio"
    needs: Sequence[str] = ()

    def run(self, work: Work, check: bool) -> RateRun:
        if check:
            work = replace(work, messages=min(work.messages, _CHECKED))
        job = Job(
            self.loop,
            work.size,
            work.messages,
            self.lab.pattern(work),
            1 if check else COMPARED,
        )
        with Crew(self.lab.path / "stderr") as crew:
            crew.start(command("rate", job.__dict__))
            told = crew.finish()
        client, server = told["client"], told["server"]
        received, dropped = len(client["ages"]), server["dropped"]
        if client["wrong"] or received + dropped != work.messages:
            raise WrongBytes(
                f"{self.name}: of {work.messages:,} frames {received:,} came and "
                f"{dropped:,} were dropped; {client['wrong']:,} were wrong"
            )
        return RateRun(
            server["seconds"],
            server["cpu"],
            client["cpu"],
            None,
            dropped,
            client["ages"],
        )

    def count_calls(self, work: Work) -> float | None:
        return None


@dataclass(frozen=True)
class Job:
    """What both processes are told."""

    loop: str
    size: int
    frames: int
    pattern: str
    compared: int
    port: int = 0  # of the server, for the client

    def picture(self) -> bytes:
        return Path(self.pattern).read_bytes()


def places(size: int) -> Iterator[int]:
    """The offsets in a frame where its number is."""
    yield from (0, size // 2, size - _NUMBER.size)


def mark(memory: bytearray | memoryview, number: int) -> None:
    for at in places(len(memory)):
        _NUMBER.pack_into(memory, at, number)


# ---- the server ----------------------------------------------------------------------


async def serve(job: Job) -> None:
    attached: asyncio.Future[Client] = asyncio.get_running_loop().create_future()

    async def watch(stream: Stream) -> None:
        client = hub.attach(stream, policy="latest")
        attached.set_result(client)
        await client.wait_closed()

    with FramePool(job.size, slots=SLOTS) as pool:
        await paint(pool, job.picture())
        async with Broadcast() as hub, serve_tcp(watch) as server:
            told = replace(job, port=server.port).__dict__
            viewer = subprocess.Popen(command("rate", told))  # noqa: ASYNC220
            client = await attached
            started, before = time.perf_counter(), cpu()
            await publish_in_time(hub, pool, job.frames)
            await hub.aclose()  # when all is out
            report = {
                "who": "server",
                "seconds": time.perf_counter() - started,
                "cpu": cpu() - before,
                "dropped": client.stats.dropped,
            }
            await asyncio.get_running_loop().run_in_executor(None, viewer.wait)
    tell(report)


async def paint(pool: FramePool, picture: bytes) -> None:
    """Store the picture in every slot: then each frame needs only its number."""
    frames = [await pool.acquire() for _ in range(SLOTS)]
    for frame in frames:
        frame.view[:] = picture
        frame.release()


async def publish_in_time(hub: Broadcast, pool: FramePool, frames: int) -> None:
    started = time.perf_counter()
    for number in range(frames):
        await asyncio.sleep(max(0.0, started + number / FPS - time.perf_counter()))
        with await pool.acquire() as frame:
            mark(frame.view, number)
            # (this clock never jumps, and the client reads the same one)
            now = time.monotonic_ns()
            await hub.publish(frame, pixel_format="rgb24", timestamp_ns=now)


# ---- the client ----------------------------------------------------------------------


class Inspector:
    """Checks each frame: is it right, and newer than the one before?"""

    def __init__(self, job: Job) -> None:
        self.expected: bytearray = bytearray(job.picture())
        self.compared: int = job.compared
        self.last: int = -1
        self.wrong: int = 0

    def look(self, sequence: int, view: memoryview) -> None:
        later, self.last = sequence > self.last, sequence
        if sequence % self.compared:
            right = all(
                _NUMBER.unpack_from(view, at) == (sequence,) for at in places(len(view))
            )
        else:
            mark(self.expected, sequence)
            right = self.expected == view  # (the other way round is slow)
        self.wrong += not (later and right)


async def view(job: Job) -> None:
    inspector = Inspector(job)
    ages: list[float] = []
    before = cpu()
    with FramePool(job.size, slots=2) as pool:
        async with connect_frames(
            "127.0.0.1", job.port, pool=pool, reconnect=False
        ) as client:
            async for frame in client:
                with frame:
                    ages.append((time.monotonic_ns() - frame.timestamp_ns) / 1e9)
                    inspector.look(frame.sequence, frame.view)
    report = {
        "who": "client",
        "ages": ages,
        "wrong": inspector.wrong,
        "cpu": cpu() - before,
    }
    tell(report)


if __name__ == "__main__":
    job: Job = Job(**json.loads(sys.argv[1]))
    run_on(job.loop, view(job) if job.port else serve(job))
