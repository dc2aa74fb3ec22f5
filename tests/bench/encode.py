"""NumPy frames to x264, which throws the film away.

Every contender encodes the same frames with the same arguments, in the way that its
package proposes.  In the round that checks, the film is kept: each of its frames must
be the one that was drawn, as near as x264 gets.
"""

import contextlib
import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from bench import decode, video
from bench.processes import Lab
from bench.race import Race, Work, WrongBytes, duels, need
from bench.video import FPS, NOWHERE, Feeder
from bench.worker import Job

BUFFERS = 8
NEAR = 2.0  # of 255: how much a frame of the film may differ on average
RIVALS = {"TurboPipe": "", "imageio-ffmpeg": "", "PyAV in this process": "PyAV"}


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    need("numpy")
    ffmpeg, version = video.ffmpeg_here()
    size = video.small_if(quick, (1920, 1080))
    how = {"ffmpeg": ffmpeg, "picture": size, "output": output("ultrafast")}
    what, front = "NumPy frames, 1920x1080, x264 ultrafast", "imageio-ffmpeg"
    rows = {"unit": "frames", "both": True}
    yield Race(
        "encode",
        f"{what}, FFmpeg {version}",
        video.frames_work(size, 60, BUFFERS, quick),
        video.contenders(lab, GIVEN, Encoder, **how),
        duels("Writer", RIVALS, f"{what}: ffmpeg.Writer", front, **rows),
    )


def output(preset: str, place: str = NOWHERE) -> list[str]:
    """FFmpeg's arguments.  A film that is checked has little loss."""
    muxer, crf = ("null", "23") if place == NOWHERE else ("mp4", "10")
    words = ["-c:v", "libx264", "-preset", preset, "-crf", crf]
    return [*words, "-pix_fmt", "yuv420p", "-f", muxer, place]


class Encoder(Feeder):
    """A sender process that makes a film."""

    def pattern(self, work: Work) -> str:
        return str(video.waves(self.lab, self.how["picture"], work.buffers))

    def to_check(self, checked: Path) -> list[str]:
        return output(self.how["output"][3], str(checked))

    def compare(self, work: Work, checked: Path, md5: str) -> None:
        drawn = decode.pictures(self.pattern(work), work.size)
        film = Job(film=str(checked), ffmpeg=self.how["ffmpeg"], size=work.size)
        with contextlib.closing(decode.readinto(film)) as frames:
            for number in range(work.warm + work.messages):
                if (off := decode.far(drawn, number, next(frames))) > NEAR:
                    raise WrongBytes(f"{self.name}: a frame is off by {off:.2f}")


# ---- what the senders do -------------------------------------------------------------


def drawn(job: Job, *, flat: bool = False) -> Iterator[Iterator[Any]]:
    """Yield an array for each frame, those of the warm-up first."""
    import numpy

    width, height = job.picture
    shape = (-1,) if flat else (height, width, 3)
    pictures = [*numpy.fromfile(job.pattern, "u1").reshape(job.buffers, *shape)]
    for numbers in job.phases():
        yield (pictures[number % job.buffers] for number in numbers)


async def writer(job: Job) -> None:
    """Ours, with several frames on their way."""
    from aiozerocopy import ffmpeg

    async with ffmpeg.Writer(job.output, job.picture, FPS, ffmpeg=job.ffmpeg) as film:
        for frames in drawn(job):
            for frame in frames:
                ticket = await film.put(frame)
            await ticket
    video.tell_frames(job, film.frames_written)


async def turbopipe(job: Job) -> None:
    import turbopipe as theirs

    with video.their_child(job) as child:
        for frames in drawn(job, flat=True):
            given = {}
            for frame in frames:
                theirs.sync(frame)  # (TurboPipe may still be writing it)
                theirs.pipe(frame, child.stdin.fileno())
                given[id(frame)] = frame
            for frame in given.values():
                theirs.sync(frame)


async def imageio_ffmpeg(job: Job) -> None:
    import imageio_ffmpeg as theirs

    os.environ["IMAGEIO_FFMPEG_EXE"] = job.ffmpeg
    film = theirs.write_frames(
        job.output[-1],
        tuple(job.picture),
        fps=FPS,
        quality=None,
        codec="libx264",
        macro_block_size=1,
        ffmpeg_log_level="error",
        # (without the encoder and the place)
        output_params=[*job.output[2:-1], "-progress", job.progress],
    )
    film.send(None)
    for frames in drawn(job):
        for frame in frames:
            film.send(frame)
    film.close()
    job.end()


async def pyav(job: Job) -> None:
    """x264 in this process, without any pipe."""
    import av

    *words, place = job.output
    given = dict(zip(words[::2], words[1::2], strict=True))
    count = 0
    with av.open(place, "w", format=given["-f"]) as out:
        stream: Any = out.add_stream("libx264", rate=FPS)
        stream.width, stream.height = job.picture
        stream.pix_fmt = "yuv420p"
        options = {"preset": given["-preset"], "crf": given["-crf"]}
        stream.codec_context.options = options
        for frames in drawn(job):
            for picture in frames:
                frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
                frame.pts, frame.time_base = count, Fraction(1, FPS)
                out.mux(stream.encode(frame))
                count += 1
        out.mux(stream.encode(None))
    video.tell_frames(job, count)


GIVEN: dict[str, dict[str, Any]] = {
    "Writer": {"way": writer},
    "TurboPipe": {"way": turbopipe, "needs": ["turbopipe"]},
    "imageio-ffmpeg": {"way": imageio_ffmpeg, "needs": ["imageio_ffmpeg"]},
    "PyAV in this process": {"way": pyav, "needs": ["av"]},
}
