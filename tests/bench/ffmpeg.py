"""Raw frames to FFmpeg, which throws them away.

Ours sends the slots of a pool, and fills each only during the warm-up and when bytes
are checked; the others send buffers that never change.
"""

import os
from collections.abc import Iterator

from aiozerocopy import FramePool, open_process
from aiozerocopy.ffmpeg.binary import ROOMY
from bench import video
from bench.processes import Lab
from bench.race import Race, duels
from bench.sockets import write_and_drain
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
        counted = f"{buffers} buffer" + "s" * (buffers > 1)
        how = f"{name} frames into FFmpeg {version}: put, {counted}"
        front = "TurboPipe" if name == "1080p" else ""
        yield Race(
            "ffmpeg",
            f"{name}, {counted}, FFmpeg {version}",
            video.frames_work(size, 60, buffers, quick),
            video.contenders(lab, GIVEN, ffmpeg=ffmpeg, picture=size),
            duels(OURS, rivals, how, front, unit="frames"),
            extra=name == "720p",
        )


# ---- what the senders do -------------------------------------------------------------


async def put(job: Job) -> None:
    """Ours: frames of a pool."""
    pieces, env = job.pieces, {**os.environ, **job.environment}
    # (FFmpeg reads and does nothing else, so pages may be lent to it)
    command = open_process(job.sink, stderr=None, env=env, peer="reads")
    async with command as process, FramePool(job.size, slots=job.buffers) as pool:
        stream = process.stdin
        assert stream is not None
        for numbers in job.phases():
            for number in numbers:
                async with await pool.acquire() as frame:
                    if job.check or number < job.warm:
                        frame.view[:] = pieces[number % job.buffers]
                    await stream.put(frame)
            await stream.flush()
        await stream.aclose()
        video.expect_success(await process.wait())
        job.end()


async def turbopipe(job: Job) -> None:
    """Its calls block the thread, and so the event loop."""
    import turbopipe as theirs

    with video.their_child(job) as child:
        fd = child.stdin.fileno()
        buffers = [bytearray(piece) for piece in job.pieces]
        for numbers in job.phases():
            for number in numbers:
                buffer = buffers[number % job.buffers]
                theirs.sync(buffer)
                theirs.pipe(buffer, fd)
            for buffer in buffers:
                theirs.sync(buffer)


async def write(job: Job) -> None:
    """``stdin.write(buffer.read())``: a copy, and a write that blocks."""
    with video.their_child(job) as child:
        for message in job.messages_in_turn():
            child.stdin.write(bytes(message))


GIVEN: video.Given = {
    OURS: {"way": put, "environment": ROOMY},
    "C vmsplice, huge pages": {"way": "vmsplice", "environment": ROOMY},
    "TurboPipe": {"way": turbopipe, "needs": ["turbopipe"]},
    "stdin.write(buffer.read())": {"way": write},
    UVLOOP: {"way": write_and_drain, "loop": "uvloop"},
}
