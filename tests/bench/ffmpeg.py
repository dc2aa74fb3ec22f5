"""Raw frames to FFmpeg, which throws them away.

Ours sends the slots of a pool, and fills each only during the warm-up and when bytes
are checked; the others send buffers that never change.  The last race tells besides how
long an event loop is held up that renders meanwhile: 99 of 100 beats come sooner.
"""

from __future__ import annotations

import asyncio
import importlib
import os
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.pipe_size import PIPE_SIZE
from bench.race import Race, duels
from bench.video import (
    ROOMY,
    cases,
    contenders,
    counted,
    expect_success,
    frames_work,
    our_child,
    their_child,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.processes import Lab
    from bench.worker import Job

SIZES = {
    "720p": (1280, 720),
    "1080p": (1920, 1080),
    "1440p": (2560, 1440),
    "2160p": (3840, 2160),
}
Given = dict[str, dict[str, Any]]
RENDER = 0.002  # seconds that the loop is busy for each frame
COMPATIBLE = "aiozerocopy.compat.turbopipe"
OURS, UVLOOP = "put, asyncio", "uvloop stdin, write+drain"
LIMIT = {"C vmsplice, huge pages": "C loop of vmsplice"}
RIVALS = {"TurboPipe": "", UVLOOP: "uvloop's child stdin"}
PLAIN = {"stdin.write(buffer.read())": ""}
IN_TABLE: dict[tuple[str, int], dict[str, str]] = {
    ("1080p", 1): LIMIT,
    ("1080p", 4): RIVALS | PLAIN | LIMIT,
    ("2160p", 4): RIVALS,
}


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    for version, ffmpeg, name, size, is_first in cases(SIZES, quick):
        for buffers in (1, 4):
            work = f"{name} frames into FFmpeg {version}: put, {counted(buffers)}"
            rivals = IN_TABLE.get((name, buffers), RIVALS | LIMIT)
            front = "TurboPipe" if name == "1080p" and is_first else ""
            yield Race(
                "ffmpeg",
                f"{name}, {counted(buffers)}, FFmpeg {version}",
                frames_work(size, 3_000_000_000, buffers, quick=quick),
                to_null(lab, ffmpeg=ffmpeg, size=size),
                duels(OURS, rivals, work, front, unit="frames"),
                brief=60 * (is_first and (name, buffers) in IN_TABLE),
            )
    work = f"{name} frames, {RENDER * 1e3:.0f} ms of rendering each"
    yield Race(
        "ffmpeg",
        f"{work}, FFmpeg {version}",
        frames_work(size, 6_000_000_000, 4, quick=quick),
        rendering(lab, ffmpeg=ffmpeg, size=size),
        duels(OURS, RIVALS, f"{work}: put", unit="frames"),
    )


def to_null(lab: Lab, **video: Any) -> Any:
    peer = {"way": turbopipe, "module": "turbopipe", "needs": ["turbopipe"]}
    roomy: Given = {
        OURS: {"way": put},
        "put, uvloop": {"way": put, "loop": "uvloop"},
        "send, asyncio": {"way": send},
        "put, asyncio, copied": {"way": put, "peer": "unknown"},
        "compat.turbopipe": {"way": turbopipe, "module": COMPATIBLE},
        "C vmsplice, huge pages": {"way": "vmsplice"},
        "TurboPipe, our pipe and environment": {**peer, "pipe_size": PIPE_SIZE},
    }
    plain: Given = {
        "TurboPipe": peer,
        "stdin.write(buffer.read())": {"way": write},
        "asyncio stdin, write+drain": {"way": write_and_drain},
        UVLOOP: {"way": write_and_drain, "loop": "uvloop"},
    }
    ours = contenders(lab, roomy, environment=ROOMY, **video)
    return [*ours, *contenders(lab, plain, **video)]


def rendering(lab: Lab, **video: Any) -> Any:
    given: Given = {
        OURS: {"way": put, "environment": ROOMY},
        "put, uvloop": {"way": put, "environment": ROOMY, "loop": "uvloop"},
        "TurboPipe": {"way": turbopipe, "module": "turbopipe", "needs": ["turbopipe"]},
        UVLOOP: {"way": write_and_drain, "loop": "uvloop"},
        "renders only": {"way": nothing, "feeds": False},
    }
    return contenders(lab, given, render=RENDER, **video)


# ---- aiozerocopy ---------------------------------------------------------------------


async def through_pool(job: Job, way: str) -> None:
    """Send frames of a pool to FFmpeg, by this method of the stream."""
    from aiozerocopy import FramePool

    pieces = job.pieces()
    peer = getattr(job, "peer", "reads")
    pool = FramePool(job.size, slots=job.buffers)
    async with our_child(job, peer) as stream, pool:
        give = getattr(stream, way)
        for numbers in job.numbers():
            for number in numbers:
                async with await pool.acquire() as frame:
                    if job.check or number < job.warm:
                        frame.view[:] = pieces[number % job.buffers]
                    await give(frame)
            await stream.flush()


async def send(job: Job) -> None:
    """One frame in flight at a time."""
    await through_pool(job, "send")


async def put(job: Job) -> None:
    """As many frames in flight as the pool has slots."""
    await through_pool(job, "put")


async def nothing(job: Job) -> None:
    """A program that renders, and sends nothing."""
    for numbers in job.numbers():
        for _ in numbers:
            await asyncio.sleep(0)


# ---- others --------------------------------------------------------------------------


async def turbopipe(job: Job) -> None:
    """Its calls block the thread, and so the event loop."""
    theirs = importlib.import_module(job.module)
    with their_child(job, getattr(job, "pipe_size", -1)) as child:
        fd = child.stdin.fileno()
        buffers = [bytearray(piece) for piece in job.pieces()]
        for numbers in job.numbers():
            for number in numbers:
                buffer = buffers[number % job.buffers]
                theirs.sync(buffer)
                theirs.pipe(buffer, fd)
                if job.render:
                    await asyncio.sleep(0)  # let `beat` run
            for buffer in buffers:
                theirs.sync(buffer)


async def write(job: Job) -> None:
    """``stdin.write(buffer.read())``: a copy, and a write that blocks."""
    with their_child(job) as child:
        buffers = [bytearray(piece) for piece in job.pieces()]
        for numbers in job.numbers():
            for number in numbers:
                child.stdin.write(bytes(buffers[number % job.buffers]))


async def write_and_drain(job: Job) -> None:
    child = await asyncio.create_subprocess_exec(
        *job.command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        env={**os.environ, **job.environment},
    )
    writer = child.stdin
    assert writer is not None
    for messages in job.messages_in_turn():
        for message in messages:
            writer.write(message)
            await writer.drain()
            if job.render:
                await asyncio.sleep(0)
    writer.close()
    expect_success(await child.wait())
