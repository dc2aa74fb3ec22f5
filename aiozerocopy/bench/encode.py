"""RGB frames to x264, which throws the film away; NumPy's, and those of OpenGL.

The clock runs from the end of the warm-up frames until the film is complete.  In the
round that checks, the film is kept: each of its frames must be the one that was drawn,
as near as x264 gets, and ours is made twice, with the same frames.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aiozerocopy.bench import render
from aiozerocopy.bench.ffmpeg import FrameRace
from aiozerocopy.bench.racing import (
    Comparison,
    Headline,
    Options,
    Race,
    Work,
    WrongBytes,
)
from aiozerocopy.bench.video import (
    FrameFeeder,
    FrameRun,
    Video,
    amount,
    contestants,
    ffmpegs,
    waves,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from aiozerocopy.bench.feeding import Lab
    from aiozerocopy.bench.racing import Entry

SIZES = ((1920, 1080), (3840, 2160))
TINY = ((160, 90),)
PRESETS = ("ultrafast", "veryfast")
BUFFERS = 8
FPS = 60
NEAR = 2.0  # of 255: how much a frame of the film may differ on average
NOWHERE = "/dev/null"


def races(lab: Lab, options: Options) -> Iterator[Race]:
    sizes = TINY if options.quick else SIZES
    if options.size is not None:
        sizes = (options.size,)
    cases = [
        (f"{width}x{height}, x264 {preset}, FFmpeg {version}", ffmpeg, preset, size)
        for version, ffmpeg in ffmpegs(options).items()
        for size in sizes
        for preset in PRESETS[: 1 if options.quick else None]
        for width, height in (size,)
    ]
    for title, ffmpeg, preset, size in cases:
        video = Video(ffmpeg, size, output(preset))
        work = amount(options, video, 2_000_000_000, BUFFERS)
        race = of_arrays(lab, f"NumPy frames, {title}", video, work)
        yield (
            replace(race, headlines=headlines(title)) if title == cases[0][0] else race
        )
    render.need_opengl()
    for title, ffmpeg, preset, size in cases:
        scene = render.SceneVideo(ffmpeg, size, output(preset))
        work = amount(options, scene, 2_000_000_000, 4)
        yield render.scene(lab, f"OpenGL scene, {title}", scene, work)


def output(preset: str, place: str = NOWHERE) -> list[str]:
    """FFmpeg's arguments.  A film that is checked has little loss."""
    muxer, crf = ("null", "23") if place == NOWHERE else ("mp4", "10")
    words = ["-c:v", "libx264", "-preset", preset, "-crf", crf]
    return [*words, "-pix_fmt", "yuv420p", "-f", muxer, place]


def headlines(title: str) -> list[Headline]:
    others = {
        "TurboPipe": "TurboPipe",
        "imageio-ffmpeg": "imageio-ffmpeg",
        "PyAV in this process": "PyAV",
    }
    return [
        Headline(
            "Writer",
            [rival],
            cpu_of_both=True,
            work=f"NumPy frames, {title.rpartition(', ')[0]}: ffmpeg.Writer",
            against=against,
            unit="frames",
            front=rival == "imageio-ffmpeg",
        )
        for rival, against in others.items()
    ]


def of_arrays(lab: Lab, title: str, video: Video, work: Work) -> Race:
    given: Mapping[str, Mapping[str, Any]] = {
        "Writer": {"way": "writer", "options": {"convert": "auto"}},
        "Writer, convert='ffmpeg'": {"way": "writer"}
        | {"options": {"convert": "ffmpeg"}},
        "TurboPipe": {"way": "turbopipe", "needs": ("numpy", "turbopipe")},
        "stdin.write(frame)": {"way": "popen"},
        "imageio-ffmpeg": {"way": "imageio_ffmpeg"}
        | {"needs": ("numpy", "imageio_ffmpeg")},
        "vidgear": {"way": "vidgear", "needs": ("numpy", "vidgear", "cv2")},
        "PyAV in this process": {"way": "pyav", "needs": ("numpy", "av")},
    }
    first, *rest = given
    return FrameRace(
        title,
        work,
        contestants(lab, video, given, kind=FilmFeeder, **{"needs": ("numpy",)}),
        [Comparison(first, [rival], cpu_of_both=True) for rival in rest],
        told=in_frames,
        brief=60,
    )


def in_frames(entries: Sequence[Entry]) -> list[str]:
    """What the numbers mean for a film."""
    told = []
    for entry in entries:
        rate = entry.messages_per_second
        cpu = entry.cpu * entry.work.size / 1e9
        told.append(
            f"{entry.name}: {rate:.0f} frames a second, {rate / FPS:.1f} times as fast "
            f"as they are shown; {cpu * 1e3:.1f} ms of CPU time for each, FFmpeg's "
            "included"
        )
    return told


@dataclass(frozen=True)
class FilmFeeder(FrameFeeder):
    """A sender process that makes a film."""

    def run(self, work: Work, check: bool) -> FrameRun:
        run = super().run(work, check)
        if check and self.way == "writer":
            first = self._digest.read_text()
            super().run(work, check)
            if self._digest.read_text() != first:
                raise WrongBytes(f"{self.name}: two runs made two films")
        return run

    def count_calls(self, work: Work) -> float | None:
        """Some of these have the encoder in the sender."""
        return None

    @property
    def _preset(self) -> str:
        return self.video.output[3]

    @property
    def _digest(self) -> Path:
        """Of all frames of the film that was checked last."""
        return self.lab.path / "digest"

    def _to_check(self, checked: Path) -> list[str]:
        return output(self._preset, str(checked))

    def _compare(self, work: Work, checked: Path) -> None:
        import numpy

        drawn = numpy.fromfile(self._pictures(work), "u1").astype("i2")
        pictures = drawn.reshape(work.buffers, work.size)
        digest = hashlib.md5(usedforsecurity=False)
        left = work.warm + work.messages
        for number, frame in enumerate(self._frames(work, checked)):
            left -= 1
            digest.update(frame)
            picture = pictures[number % work.buffers]
            off = abs(picture - numpy.frombuffer(frame, "u1")).mean()
            if off > NEAR:
                raise WrongBytes(f"{self.name}: frame {number} is off by {off:.2f}")
        if left:
            raise WrongBytes(f"{self.name}: {left} frames are missing")
        self._digest.write_text(digest.hexdigest())

    def _frames(self, work: Work, film: Path) -> Iterator[bytes]:
        command = [self.video.ffmpeg, "-v", "error", "-i", str(film)]
        command += ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as decoder:
            assert decoder.stdout is not None
            while frame := decoder.stdout.read(work.size):
                yield frame

    def _pictures(self, work: Work) -> Path:
        return waves(self.lab, self.video.size, work.buffers)

    def _sender(
        self, work: Work, progress: Path, output: Sequence[str], check: bool
    ) -> list[str]:
        job = self._job(work, self.video.command(progress, output), check)
        job["pattern"] = str(self._pictures(work))
        job["options"] = {
            "ffmpeg": self.video.ffmpeg,
            "size": self.video.size,
            "output": list(output),
            "progress": str(progress),
            **self.options,
        }
        return [sys.executable, "-m", "aiozerocopy.bench.films", json.dumps(job)]
