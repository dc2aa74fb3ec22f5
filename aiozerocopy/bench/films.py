"""What the senders of films do: one process each, started by `encode`.

Every function has the same NumPy frames encoded by x264 with the same arguments, in the
way that its package proposes.  The frames rotate and never change.
"""

from __future__ import annotations

import itertools
import os
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aiozerocopy.bench.frames import Job, main, their_child

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

FPS = 60


def drawn(job: Job, *, flat: bool = False) -> Iterator[Iterator[Any]]:
    """As the phases of the job: an array for each frame."""
    width, height = job.options["size"]
    shape = (-1,) if flat else (height, width, 3)
    pictures = [*np.fromfile(job.pattern, np.uint8).reshape(job.buffers, *shape)]
    for numbers in job.phases():
        yield (pictures[number % job.buffers] for number in numbers)


async def writer(job: Job) -> None:
    """Ours, with several frames on their way."""
    from aiozerocopy import ffmpeg

    film = ffmpeg.Writer(
        job.options["output"],
        job.options["size"],
        FPS,
        ffmpeg=job.options["ffmpeg"],
        convert=job.options["convert"],
    )
    async with film:
        for frames in drawn(job):
            for frame in frames:
                ticket = await film.put(frame)
            await ticket
    tell_frames(job, film.frames_written)


async def turbopipe(job: Job) -> None:
    import turbopipe as theirs

    with their_child(job) as child:
        for frames in drawn(job, flat=True):
            given = {}
            for frame in frames:
                theirs.sync(frame)  # (it has that one since the turn before)
                theirs.pipe(frame, child.stdin.fileno())
                given[id(frame)] = frame
            for frame in given.values():
                theirs.sync(frame)


async def popen(job: Job) -> None:
    """``subprocess.Popen(...).stdin.write(frame)``"""
    with their_child(job) as child:
        for frames in drawn(job):
            for frame in frames:
                child.stdin.write(frame)


async def imageio_ffmpeg(job: Job) -> None:
    import imageio_ffmpeg as theirs

    os.environ["IMAGEIO_FFMPEG_EXE"] = job.options["ffmpeg"]
    film = theirs.write_frames(
        job.options["output"][-1],
        job.options["size"],
        fps=FPS,
        quality=None,
        codec="libx264",
        macro_block_size=1,
        ffmpeg_log_level="error",
        output_params=[*settings(job), "-progress", job.options["progress"]],
    )
    film.send(None)
    for frames in drawn(job):
        for frame in frames:
            film.send(frame)
    film.close()


async def vidgear(job: Job) -> None:
    from vidgear.gears import WriteGear

    words = ["-input_framerate", str(FPS), "-vcodec", "libx264", *settings(job)]
    words += ["-progress", job.options["progress"]]
    film = WriteGear(
        output=job.options["output"][-1],
        custom_ffmpeg=job.options["ffmpeg"],
        **dict(zip(words[::2], words[1::2], strict=True)),
    )
    for frames in drawn(job):
        for frame in frames:
            film.write(frame, rgb_mode=True)
    film.close()


def settings(job: Job) -> list[str]:
    """FFmpeg's output arguments, without the encoder and the place."""
    return list(job.options["output"][2:-1])


async def pyav(job: Job) -> None:
    """x264 in this process, without any pipe."""
    import av

    *words, place = job.options["output"]
    given = dict(zip(words[::2], words[1::2], strict=True))
    counts = itertools.count(1)
    with av.open(place, "w", format=given["-f"]) as out:
        stream: Any = out.add_stream("libx264", rate=FPS)
        stream.width, stream.height = job.options["size"]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.options = {
            "preset": given["-preset"],
            "crf": given["-crf"],
        }
        for frames in drawn(job):
            for picture in frames:
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts, frame.time_base = next(counts) - 1, Fraction(1, FPS)
                out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    tell_frames(job, next(counts) - 1)


def tell_frames(job: Job, n: int) -> None:
    """As FFmpeg does."""
    Path(job.options["progress"]).write_text(f"frame={n}\n")


WAYS: dict[str, Callable[[Job], Awaitable[None]]] = {
    function.__name__: function
    for function in (writer, turbopipe, popen, imageio_ffmpeg, vidgear, pyav)
}

if __name__ == "__main__":
    main(WAYS)
