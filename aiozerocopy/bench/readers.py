"""What the readers of a film do: one process each, started by `decode`.

Every function has the frames of the same film as RGB, one after the other, in the way
that its package proposes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiozerocopy.bench.frames import cpu

if TYPE_CHECKING:
    from collections.abc import Callable

PIPE_SIZE = 1 << 20
BUFFERS = 3


@dataclass
class Job:
    way: str
    film: str
    size: tuple[int, int]
    warm: int
    frames: int
    ffmpeg: str
    options: dict[str, Any]
    pictures: str  # that the film was made of; "" if nothing is compared


class Watch:
    """Counts the frames, and compares them with what was drawn."""

    def __init__(self, job: Job) -> None:
        self.received: int = 0
        self.off: float = 0.0  # how much the worst frame differs, on average
        self._job = job
        self._last = job.warm + job.frames
        self._started = self._cpu = self._seconds = self._cpu_at_end = 0.0
        self._drawn: Any = None
        if job.pictures:
            import numpy

            self._drawn = numpy.fromfile(job.pictures, "u1").astype("i2")
            self._drawn = self._drawn.reshape(-1, job.size[0] * job.size[1] * 3)

    def take(self, frame: Any) -> bool:
        """A frame has come; is another one wanted?"""
        if self._drawn is not None:
            self._compare(frame)
        self.received += 1
        if self.received == self._job.warm:
            self._started, self._cpu = time.perf_counter(), cpu()
        if self.received == self._last:
            self._seconds = time.perf_counter() - self._started
            self._cpu_at_end = cpu()
        return self.received < self._last

    def report(self) -> None:
        """Tell what it took, once FFmpeg has ended."""
        told = {
            "who": "reader",
            "seconds": self._seconds,
            "cpu": self._cpu_at_end - self._cpu,
            "ffmpeg_cpu": cpu(resource.RUSAGE_CHILDREN),
            "received": self.received,
            "off": self.off,
        }
        os.write(1, json.dumps(told).encode() + b"\n")

    def _compare(self, frame: Any) -> None:
        import numpy

        drawn = self._drawn[self.received % len(self._drawn)]
        pixels = numpy.frombuffer(frame, "u1")
        self.off = max(self.off, float(abs(drawn - pixels).mean()))


def reader(job: Job, watch: Watch) -> None:
    """Ours, each frame in a slot of a pool."""
    from aiozerocopy import ffmpeg

    async def read() -> None:
        convert = job.options["convert"]
        async with ffmpeg.Reader(
            job.film, ffmpeg=job.ffmpeg, convert=convert, slots=BUFFERS
        ) as video:
            async for frame in video:
                with frame:
                    if not watch.take(frame.view):
                        break

    asyncio.run(read())


def readinto(job: Job, watch: Watch) -> None:
    """FFmpeg's rgb24, by a pipe of the same size and with the same settings."""
    from aiozerocopy.ffmpeg.binary import environment

    words = ["-nostdin", "-v", "error", "-i", job.film]
    words += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    size = job.size[0] * job.size[1] * 3
    buffers = itertools.cycle([bytearray(size) for _ in range(BUFFERS)])
    with subprocess.Popen(
        [job.ffmpeg, *words],
        stdout=subprocess.PIPE,
        env=environment(),
        pipesize=PIPE_SIZE,
    ) as child:
        pipe: Any = child.stdout
        for buffer in buffers:
            if pipe.readinto(buffer) < size or not watch.take(buffer):
                child.kill()
                return


def imageio_ffmpeg(job: Job, watch: Watch) -> None:
    import imageio_ffmpeg as theirs

    os.environ["IMAGEIO_FFMPEG_EXE"] = job.ffmpeg
    frames = theirs.read_frames(job.film)
    next(frames)  # what is known of the film
    for frame in frames:
        if not watch.take(frame):
            break
    frames.close()


def pyav(job: Job, watch: Watch) -> None:
    """The decoder in this process, without any pipe."""
    import av
    from av.video.reformatter import ColorRange, Colorspace

    with av.open(job.film) as film:
        film.streams.video[0].thread_type = "AUTO"
        for frame in film.decode(video=0):
            picture = frame.to_ndarray(
                format="rgb24",
                src_colorspace=Colorspace.ITU709,
                dst_color_range=ColorRange.JPEG,
            )
            if not watch.take(picture):
                break


WAYS: dict[str, Callable[[Job, Watch], None]] = {
    function.__name__: function for function in (reader, readinto, imageio_ffmpeg, pyav)
}


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    watch = Watch(job)
    WAYS[job.way](job, watch)
    watch.report()


if __name__ == "__main__":
    main()
