"""A film of H.264 to RGB frames, each in memory where a program can look at it.

The clock runs from the end of the warm-up frames to the last frame.  The film is made
once, of pictures that are known.  In the round that checks, each frame must be the one
that was drawn, as near as x264 and the conversions get.
"""

import itertools
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench import video
from bench.processes import Lab, worker
from bench.race import Contender, Race, Run, Work, WrongBytes, duels, need
from bench.video import CHECKED, FPS, raw_video, waves
from bench.worker import Job

BUFFERS = 8
SLOTS = 3
PIPE_SIZE = 1 << 20
NEAR = 3.0  # of 255: how much a frame may differ on average from what was drawn
BT709 = "bt709"
RIVALS = {
    "a readinto loop": "FFmpeg's pipe, readinto",
    "imageio-ffmpeg": "",
    "PyAV in this process": "PyAV",
}


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    need("numpy")
    ffmpeg, version = video.ffmpeg_here()
    size = video.small_if(quick, (1920, 1080))
    work = "1080p film to RGB frames: ffmpeg.Reader"
    yield Race(
        "decode",
        f"a film of 1920x1080, FFmpeg {version}",
        video.frames_work(size, 120, BUFFERS, quick),
        [
            Contender(name, partial(read, lab, name, ffmpeg, size), NEEDS.get(name, ()))
            for name in WAYS
        ],
        duels("Reader", RIVALS, work, unit="frames", both=True),
    )


def read(
    lab: Lab, name: str, ffmpeg: str, size: tuple[int, int], work: Work, check: bool
) -> Run:
    about = {"film": str(film_of(lab, ffmpeg, size, work)), "ffmpeg": ffmpeg}
    about |= {"way": name, "pictures": str(waves(lab, size, work.buffers))}
    if check:
        work = replace(work, messages=min(work.messages, CHECKED))
    reader = lab.reports(worker(watch, check=check, **work.told, **about))["sender"]
    if reader["off"] > NEAR:
        raise WrongBytes(f"{name}: a frame is off by {reader['off']:.2f}")
    # (here FFmpeg is the sender)
    return Run(reader["seconds"], reader["children_cpu"], reader["cpu"])


def film_of(lab: Lab, ffmpeg: str, size: tuple[int, int], work: Work) -> Path:
    """Make a film: the pictures in turn, as many frames as are read at most."""
    n = work.warm + work.messages
    path = lab.path / f"film-{size[0]}x{size[1]}-{n}.mkv"
    if path.exists():
        return path
    pictures = str(waves(lab, size, work.buffers))
    tags = ("-colorspace", "-color_primaries", "-color_trc")
    command = [ffmpeg, "-v", "error", "-y", "-nostdin", "-stream_loop", "-1"]
    command += [*raw_video(size), "-r", str(FPS), "-i", pictures]
    command += ["-frames:v", str(n), "-vf", f"scale=out_color_matrix={BT709}"]
    command += ["-c:v", "libx264", "-preset", "veryfast", "-crf", "18"]
    command += ["-pix_fmt", "yuv420p", *(it for tag in tags for it in (tag, BT709))]
    subprocess.run([*command, str(path)], check=True)
    return path


# ---- what the readers do -------------------------------------------------------------


def pictures(path: str, size: int) -> Any:
    """The pictures that were drawn, one a row."""
    import numpy

    return numpy.fromfile(path, "u1").astype("i2").reshape(-1, size)


def far(drawn: Any, number: int, frame: Any) -> float:
    """Return how much a frame differs on average from its picture."""
    import numpy

    picture = drawn[number % len(drawn)]
    return float(abs(picture - numpy.frombuffer(frame, "u1")).mean())


async def watch(job: Job) -> dict[str, Any]:
    """Take the frames of a film one by one, and compare them in the round that checks.

    Our frames come from an async iterator, the others' from a plain one.
    """
    frames, off = WAYS[job.way](job), 0.0
    is_ours = job.way == "Reader"
    drawn = pictures(job.pictures, job.size) if job.check else None
    for number in job.numbers():
        frame = next(frames) if isinstance(frames, Iterator) else await anext(frames)
        if job.check:
            off = max(off, far(drawn, number, frame))
    await frames.aclose() if is_ours else frames.close()
    return {"off": off}


async def reader(job: Job) -> AsyncIterator[memoryview]:
    """Ours, each frame in a slot of a pool."""
    from aiozerocopy import ffmpeg

    film = ffmpeg.Reader(job.film, ffmpeg=job.ffmpeg, slots=SLOTS)
    async with film as video:
        async for frame in video:
            with frame:
                yield frame.view


def readinto(job: Job) -> Generator[bytearray, None, None]:
    """FFmpeg's rgb24, by a pipe of the same size and with the same settings."""
    from aiozerocopy.ffmpeg.binary import environment

    words = ["-nostdin", "-v", "error", "-i", job.film]
    words += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    with subprocess.Popen(
        [job.ffmpeg, *words],
        stdout=subprocess.PIPE,
        env=environment(),
        pipesize=PIPE_SIZE,
    ) as child:
        pipe: Any = child.stdout
        for buffer in itertools.cycle([bytearray(job.size) for _ in range(SLOTS)]):
            if pipe.readinto(buffer) < job.size:
                raise EOFError
            yield buffer


def imageio_ffmpeg(job: Job) -> Iterator[bytes]:
    import imageio_ffmpeg as theirs

    os.environ["IMAGEIO_FFMPEG_EXE"] = job.ffmpeg
    frames: Iterator[bytes] = theirs.read_frames(job.film)
    next(frames)  # the properties of the film
    return frames


def pyav(job: Job) -> Iterator[Any]:
    """The decoder in this process, without any pipe."""
    import av
    from av.video.reformatter import ColorRange, Colorspace

    with av.open(job.film) as film:
        film.streams.video[0].thread_type = "AUTO"
        for frame in film.decode(video=0):
            yield frame.to_ndarray(
                format="rgb24",
                src_colorspace=Colorspace.ITU709,
                dst_color_range=ColorRange.JPEG,
            )


WAYS: dict[str, Callable[..., Any]] = {
    "Reader": reader,
    "a readinto loop": readinto,
    "imageio-ffmpeg": imageio_ffmpeg,
    "PyAV in this process": pyav,
}
NEEDS = {"imageio-ffmpeg": ["imageio_ffmpeg"], "PyAV in this process": ["av"]}
