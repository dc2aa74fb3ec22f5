"""Raw frames to FFmpeg, which throws them away.

Ours sends the slots of a pool, and fills each only during the warm-up and when bytes
are checked; the others send buffers that never change.
"""

import asyncio
import importlib
import os
from collections.abc import Iterator

from aiozerocopy import FramePool, open_process
from bench import video
from bench.processes import Lab
from bench.race import Race, duels
from bench.worker import Job

SIZES = {"720p": (1280, 720), "1080p": (1920, 1080), "2160p": (3840, 2160)}
OURS, UVLOOP = "put, asyncio", "uvloop stdin, write+drain"
LIMIT = {"C vmsplice, huge pages": "C loop of vmsplice"}
BOTH = {"TurboPipe": "", UVLOOP: "uvloop's child stdin"}
RIVALS: dict[tuple[str, int], dict[str, str]] = {
    ("720p", 4): BOTH | LIMIT,
    ("1080p", 1): LIMIT,
    ("1080p", 4): BOTH | {"stdin.write(buffer.read())": ""} | LIMIT,
    ("2160p", 4): BOTH,
}


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    ffmpeg, version = video.ffmpeg_here()
    for (name, buffers), rivals in RIVALS.items():
        size = video.small_if(quick, SIZES[name])
        how = f"{name} frames into FFmpeg {version}: put, {video.counted(buffers)}"
        front = "TurboPipe" if name == "1080p" else ""
        yield Race(
            "ffmpeg",
            f"{name}, {video.counted(buffers)}, FFmpeg {version}",
            video.frames_work(size, 60, buffers, quick),
            video.contenders(lab, GIVEN, ffmpeg=ffmpeg, picture=size),
            duels(OURS, rivals, how, front, unit="frames"),
            extra=name == "720p",
        )


# ---- what the senders do -------------------------------------------------------------


async def send(job: Job) -> None:
    """Ours: frames of a pool, by the method of the stream that the job names."""
    pieces, env = job.pieces(), {**os.environ, **job.environment}
    # (FFmpeg reads and does nothing else, so pages may be lent to it)
    command = open_process(job.command, stderr=None, env=env, peer="reads")
    async with command as process, FramePool(job.size, slots=job.buffers) as pool:
        stream = process.stdin
        assert stream is not None
        give = getattr(stream, job.by)
        for numbers in job.numbers():
            for number in numbers:
                async with await pool.acquire() as frame:
                    if job.check or number < job.warm:
                        frame.view[:] = pieces[number % job.buffers]
                    await give(frame)
            await stream.flush()
        await stream.aclose()
        video.expect_success(await process.wait())


async def turbopipe(job: Job) -> None:
    """Its calls block the thread, and so the event loop."""
    theirs = importlib.import_module(job.module)
    with video.their_child(job) as child:
        fd = child.stdin.fileno()
        buffers = [bytearray(piece) for piece in job.pieces()]
        for numbers in job.numbers():
            for number in numbers:
                buffer = buffers[number % job.buffers]
                theirs.sync(buffer)
                theirs.pipe(buffer, fd)
            for buffer in buffers:
                theirs.sync(buffer)


async def write(job: Job) -> None:
    """``stdin.write(buffer.read())``: a copy, and a write that blocks."""
    with video.their_child(job) as child:
        for messages in job.messages_in_turn():
            for message in messages:
                child.stdin.write(bytes(message))


async def write_and_drain(job: Job) -> None:
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    env = {**os.environ, **job.environment}
    child = await asyncio.create_subprocess_exec(
        *job.command, stdin=pipe, stdout=null, env=env
    )
    writer = child.stdin
    assert writer is not None
    for messages in job.messages_in_turn():
        for message in messages:
            writer.write(message)
            await writer.drain()
    writer.close()
    video.expect_success(await child.wait())


GIVEN: video.Given = {
    OURS: {"way": send, "by": "put", "environment": video.ROOMY},
    "put, uvloop": {"way": send, "by": "put", "environment": video.ROOMY}
    | {"loop": "uvloop"},
    "send, asyncio": {"way": send, "by": "send", "environment": video.ROOMY},
    "compat.turbopipe": {"way": turbopipe, "environment": video.ROOMY}
    | {"module": "aiozerocopy.compat.turbopipe"},
    "C vmsplice, huge pages": {"way": "vmsplice", "environment": video.ROOMY},
    "TurboPipe": {"way": turbopipe, "module": "turbopipe", "needs": ["turbopipe"]},
    "stdin.write(buffer.read())": {"way": write},
    "asyncio stdin, write+drain": {"way": write_and_drain},
    UVLOOP: {"way": write_and_drain, "loop": "uvloop"},
}
