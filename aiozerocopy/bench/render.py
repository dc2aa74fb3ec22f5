"""A rendered scene to x264, end to end.

The clock runs from the end of the warm-up frames until the video is complete.  When
bytes are checked, FFmpeg returns what it got as rgb24, and that is compared with the
scene: exactly, or by the mean difference where the frames went as YUV.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.pipe_size import PIPE_SIZE
from aiozerocopy.bench.racing import (
    Comparison,
    Headline,
    Lacking,
    Options,
    Race,
    Work,
    WrongBytes,
    need,
)
from aiozerocopy.bench.video import (
    ROOMY,
    FrameFeeder,
    Video,
    amount,
    contestants,
    counted,
    ffmpegs,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from aiozerocopy.bench.feeding import Lab

SIZE, TINY = ("1080p", (1920, 1080)), ("90p", (160, 90))
NOWHERE = "/dev/null"
ENCODE = ("-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p")
NEAR = 4.0  # of 255: how much YUV may differ on average


@dataclass(frozen=True)
class SceneVideo(Video):
    """Only the sender knows FFmpeg's input arguments, so it fills them in."""

    output: Sequence[str] = (*ENCODE, "-f", "matroska", NOWHERE)

    @property
    def input(self) -> list[str]:
        return ["@input"]

    def command(self, progress: Path, output: Sequence[str]) -> list[str]:
        return super().command(progress, ["@flip", *output])


@dataclass(frozen=True)
class SceneFeeder(FrameFeeder):
    """A sender process that renders, and gets its frames to x264."""

    exact: bool = True

    def count_calls(self, work: Work) -> float | None:
        """OpenGL's system calls cannot be told from the sender's."""
        return None

    def _to_check(self, checked: Path) -> list[str]:
        return ["-f", "rawvideo", "-pix_fmt", "rgb24", str(checked)]

    @property
    def _preset(self) -> str:
        return self.video.output[self.video.output.index("-preset") + 1]

    @property
    def _reference(self) -> Path:
        return self.lab.path / "reference"

    def _compare(self, work: Work, checked: Path) -> None:
        import numpy

        got = numpy.fromfile(checked, "u1")
        expected = numpy.fromfile(self._reference, "u1")
        if got.size != expected.size:
            raise WrongBytes(
                f"{self.name}: {got.size:,} bytes and not {expected.size:,}"
            )
        for number in range(work.warm + work.messages):
            frame = slice(number * work.size, (number + 1) * work.size)
            off = abs(got[frame].astype("i2") - expected[frame]).mean()
            if off > (0 if self.exact else NEAR):
                raise WrongBytes(f"{self.name}: frame {number} is off by {off:.2f}")

    def _sender(
        self, work: Work, progress: Path, output: Sequence[str], check: bool
    ) -> list[str]:
        job = self._job(work, self.video.command(progress, output), check)
        job["options"] = {
            "size": self.video.size,
            "reference": str(self._reference),
            "progress": str(progress),
            **(self._in_process(output[-1], check) if self.way == "pyav" else {}),
            **(self._for_writer(output) if self.way == "writer" else {}),
            **self.options,
        }
        return [sys.executable, "-m", "aiozerocopy.bench.scenes", json.dumps(job)]

    def _for_writer(self, output: Sequence[str]) -> dict[str, Any]:
        """It makes the command itself."""
        return {"ffmpeg": self.video.ffmpeg, "output": [*output]}

    def _in_process(self, path: str, check: bool) -> dict[str, Any]:
        """The same output, for PyAV."""
        kind = (
            ("rawvideo", "rawvideo", "rgb24", {})
            if check
            else ("matroska", "libx264", "yuv420p", {"preset": self._preset})
        )
        names = ("format", "codec", "pix_fmt", "settings")
        return {"file": path, **dict(zip(names, kind, strict=True))}


def races(lab: Lab, options: Options) -> Iterator[Race]:
    name, size = TINY if options.quick else SIZE
    known = ffmpegs(options)
    need_opengl()
    for version, ffmpeg in known.items():
        for buffers in (4,) if options.quick else (1, 4):
            video = SceneVideo(ffmpeg, size)
            title = f"{name} scene to x264, {counted(buffers)}, FFmpeg {version}"
            work = amount(options, video, 1_500_000_000, buffers)
            race = scene(lab, title, video, work)
            in_short = buffers == 4 and ffmpeg == next(iter(known.values()))
            yield replace(race, headlines=[headline(name)]) if in_short else race


def need_opengl() -> None:
    """Tried in a process of its own, since drivers leave threads.

    Raises:
        Lacking: OpenGL cannot draw here.
    """
    need("moderngl", "numpy")
    attempt = "import moderngl as m; m.create_context(standalone=True, backend='egl')"
    command = [sys.executable, "-c", attempt]
    if subprocess.run(command, capture_output=True).returncode:
        packages = "libegl1 libgl1-mesa-dri libgles2"
        raise Lacking(f"OpenGL cannot draw here: on Debian, apt install {packages}")


def headline(name: str) -> Headline:
    return Headline(
        "Readback, Writer",
        ["TurboPipe"],
        work=f"{name} OpenGL scene to x264: gl.Readback, ffmpeg.Writer",
        unit="frames",
    )


def scene(lab: Lab, title: str, video: Video, work: Work) -> Race:
    turbopipe = {"way": "read_into", "options": {"module": "turbopipe"}}
    tuned = {"module": "turbopipe", "pipe_size": PIPE_SIZE}
    compatible = {"module": "aiozerocopy.compat.turbopipe"}
    given: Mapping[str, Mapping[str, Any]] = {
        "Readback, Writer": {"way": "writer"},
        "Readback auto, put": ours("auto", exact=False),
        "Readback auto, put, uvloop": ours("auto", exact=False)
        | {"loop": "uvloop", "needs": ("uvloop", "moderngl")},
        "Readback rgba, put": ours("rgba"),
        "Readback yuv420p, put": ours("yuv420p", exact=False),
        "compat.turbopipe": {"way": "read_into", "options": compatible}
        | {"environment": ROOMY},
        "TurboPipe": turbopipe | {"needs": ("turbopipe", "moderngl")},
        "TurboPipe, our pipe and environment": {"way": "read_into", "options": tuned}
        | {"environment": ROOMY, "needs": ("turbopipe", "moderngl")},
        "stdin.write(fbo.read())": {"way": "read_and_write"},
        "PyAV in this process": {"way": "pyav", "needs": ("av", "moderngl")},
    }
    comparisons = [
        Comparison("Readback, Writer", [rival])
        for rival in (
            "TurboPipe",
            "TurboPipe, our pipe and environment",
            "stdin.write(fbo.read())",
            "PyAV in this process",
        )
    ]
    field = contestants(lab, video, given, kind=SceneFeeder, **{"needs": ("moderngl",)})
    return Race(title, work, field, comparisons, brief=40)


def ours(pix_fmt: str, exact: bool = True) -> dict[str, Any]:
    return {
        "way": "readback",
        "options": {"pix_fmt": pix_fmt},
        "environment": ROOMY,
        "exact": exact,
    }
