"""A film of H.264 to RGB frames, each in memory where a program can look at it.

The clock runs from the end of the warm-up frames to the last frame.  The film is made
once, of pictures that are known.  In the round that checks, each frame must be the one
that was drawn, as near as x264 and the conversions get.
"""

import itertools
import os
import subprocess
from collections.abc import Callable, Iterator
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
            Contender(name, partial(read, lab, name, ffmpeg, size, way), needs)
            for name, (way, needs) in GIVEN.items()
        ],
        duels("Reader", RIVALS, work, unit="frames", both=True),
    )


def read(
    lab: Lab,
    name: str,
    ffmpeg: str,
    size: tuple[int, int],
    way: Callable[..., Any],
    work: Work,
    check: bool,
) -> Run:
    film = film_of(lab, ffmpeg, size, work)
    pictures = str(waves(lab, size, work.buffers)) if check else ""
    if check:
        work = replace(work, messages=min(work.messages, CHECKED))
    about = {"film": str(film), "ffmpeg": ffmpeg, "pictures": pictures}
    reader = lab.reports(worker(way, **work.told, **about))["sender"]
    if reader["received"] != work.warm + work.messages:
        raise WrongBytes(f"{name}: {reader['received']} frames came")
    if reader["off"] > NEAR:
        raise WrongBytes(f"{name}: a frame is off by {reader['off']:.2f}")
    # (here FFmpeg is the sender)
    return Run(reader["seconds"], reader["children_cpu"], reader["cpu"])


def film_of(lab: Lab, ffmpeg: str, size: tuple[int, int], work: Work) -> Path:
    """The pictures again and again, as many as are read at most."""
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


class Watch:
    """Counts the frames, and compares them with what was drawn."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._received = 0
        self._off = 0.0  # how much the worst frame differs, on average
        self._drawn: Any = None
        if job.pictures:
            import numpy

            drawn = numpy.fromfile(job.pictures, "u1").astype("i2")
            self._drawn = drawn.reshape(-1, job.size)

    def take(self, frame: Any) -> bool:
        """A frame has come; is another one wanted?"""
        if self._drawn is not None:
            import numpy

            drawn = self._drawn[self._received % len(self._drawn)]
            off = abs(drawn - numpy.frombuffer(frame, "u1")).mean()
            self._off = max(self._off, float(off))
        self._received += 1
        last = self._job.warm + self._job.messages
        if self._received == self._job.warm:
            self._job.begin()
        if self._received == last:
            self._job.end()
        return bool(self._received < last)

    def told(self) -> dict[str, Any]:
        return {"received": self._received, "off": self._off}


async def reader(job: Job) -> dict[str, Any]:
    """Ours, each frame in a slot of a pool."""
    from aiozerocopy import ffmpeg

    watch = Watch(job)
    film = ffmpeg.Reader(job.film, ffmpeg=job.ffmpeg, slots=SLOTS)
    async with film as video:
        async for frame in video:
            with frame:
                if not watch.take(frame.view):
                    break
    return watch.told()


def readinto(job: Job) -> dict[str, Any]:
    """FFmpeg's rgb24, by a pipe of the same size and with the same settings."""
    from aiozerocopy.ffmpeg.binary import environment

    watch = Watch(job)
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
            if pipe.readinto(buffer) < job.size or not watch.take(buffer):
                child.kill()
                break
    return watch.told()


def imageio_ffmpeg(job: Job) -> dict[str, Any]:
    import imageio_ffmpeg as theirs

    watch = Watch(job)
    os.environ["IMAGEIO_FFMPEG_EXE"] = job.ffmpeg
    frames = theirs.read_frames(job.film)
    next(frames)  # what is known of the film
    for frame in frames:
        if not watch.take(frame):
            break
    frames.close()
    return watch.told()


def pyav(job: Job) -> dict[str, Any]:
    """The decoder in this process, without any pipe."""
    import av
    from av.video.reformatter import ColorRange, Colorspace

    watch = Watch(job)
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
    return watch.told()


GIVEN: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "Reader": (reader, []),
    "a readinto loop": (readinto, []),
    "imageio-ffmpeg": (imageio_ffmpeg, ["imageio_ffmpeg"]),
    "PyAV in this process": (pyav, ["av"]),
}
