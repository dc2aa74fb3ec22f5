"""Contestants that feed FFmpeg: how they are started, measured and checked.

The clock runs from the end of the warm-up frames until FFmpeg has ended.  FFmpeg counts
the frames in every run; when bytes are checked, it hashes them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from aiozerocopy.bench.feeding import TRACED_BYTES, Crew
from aiozerocopy.bench.racing import Lacking, Options, Run, Work, WrongBytes
from aiozerocopy.ffmpeg.binary import ROOMY as ROOMY
from aiozerocopy.ffmpeg.binary import find_ffmpeg

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from aiozerocopy.bench.feeding import Lab

CHECKED = 24  # frames, when bytes are checked

# ---- FFmpeg -------------------------------------------------------------------------


def ffmpegs(options: Options) -> dict[str, str]:
    """Each FFmpeg of this machine, by its version."""
    found = [shutil.which("ffmpeg")]
    if find_spec("imageio_ffmpeg") is not None:
        import imageio_ffmpeg

        found.append(imageio_ffmpeg.get_ffmpeg_exe())
    paths = [path for path in found if path is not None][: 1 if options.quick else None]
    if not paths:
        try:
            find_ffmpeg()  # says how to get one
        except FileNotFoundError as error:
            raise Lacking(str(error)) from None
    return {version_of(path): path for path in paths}


def version_of(ffmpeg: str) -> str:
    told = subprocess.run([ffmpeg, "-version"], capture_output=True, text=True)
    words = told.stdout.split()
    if words[:2] != ["ffmpeg", "version"]:
        raise ChildProcessError(f"{ffmpeg} does not work: install another FFmpeg")
    return words[2].partition("-")[0]


@dataclass(frozen=True)
class Video:
    """What FFmpeg reads, and what it makes of it."""

    ffmpeg: str
    size: tuple[int, int]
    output: Sequence[str] = ("-f", "null", "-")

    @property
    def frame_bytes(self) -> int:
        return self.size[0] * self.size[1] * 3

    @property
    def input(self) -> list[str]:
        width, height = self.size
        return ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]

    def command(self, progress: Path, output: Sequence[str]) -> list[str]:
        quiet = ["-hide_banner", "-loglevel", "error", "-nostats", "-y"]
        watch = ["-progress", str(progress)]
        return [
            self.ffmpeg,
            *quiet,
            *watch,
            *self.input,
            "-r",
            "60",
            "-i",
            "-",
            *output,
        ]


def waves(lab: Lab, size: tuple[int, int], n: int) -> Path:
    """A file of so many RGB frames: waves of colour that move."""
    import numpy

    width, height = size
    path = lab.path / f"pictures-{width}x{height}-{n}"
    if path.exists():
        return path
    frames = numpy.empty((n, height, width, 3), "u1")
    x, y = (numpy.linspace(0, 3, side) for side in (width, height))
    for number, colour in itertools.product(range(n), range(3)):
        at = numpy.sin(x + colour + number / n)
        wave = numpy.outer(numpy.cos(y + colour), at)
        frames[number, :, :, colour] = 127.5 + 120 * wave
    frames.tofile(path)
    return path


def frames_seen(progress: Path) -> int:
    """How many frames FFmpeg got, by its last report."""
    lines = progress.read_text().split()
    return int([line for line in lines if line.startswith("frame=")][-1][6:])


# ---- contestants ---------------------------------------------------------------------


@dataclass(frozen=True)
class FrameRun(Run):
    """A run that also measured the event loop and the memory."""

    gap: float | None = None  # seconds that the loop is held up, 99th percentile
    growth: int | None = None  # of memory after the warm-up, in bytes


@dataclass(frozen=True)
class FrameFeeder:
    """A sender process that starts FFmpeg and feeds it."""

    name: str
    lab: Lab
    video: Video
    way: str
    loop: str = "asyncio"
    environment: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    needs: Sequence[str] = ()
    render: float = 0.0

    def run(self, work: Work, check: bool) -> FrameRun:
        if check:
            n, warm = min(work.messages, CHECKED), min(work.warm, 2 * work.buffers)
            work = replace(work, messages=n, warm=warm)
        checked = self.lab.path / "checked"
        checked.unlink(missing_ok=True)
        output = self._to_check(checked) if check else self.video.output
        told = self._feed(work, output, check)
        if check and self.way != "nothing":
            self._compare(work, checked)
        return FrameRun(
            told["seconds"],
            told["cpu"],
            told["sink_cpu"],
            told["calls"],
            told.get("gaps"),
            told.get("growth"),
        )

    def _to_check(self, checked: Path) -> list[str]:
        """FFmpeg's output arguments for the file that `_compare` reads."""
        return ["-c", "copy", "-f", "hash", "-hash", "md5", str(checked)]

    def _compare(self, work: Work, checked: Path) -> None:
        with open(self.lab.pattern(work), "rb") as file:
            pieces = [file.read(work.size) for _ in range(work.buffers)]
        expected = hashlib.md5(usedforsecurity=False)
        for number in range(work.warm + work.messages):
            expected.update(pieces[number % work.buffers])
        if checked.read_text().strip().lower() != f"md5={expected.hexdigest()}":
            raise WrongBytes(f"{self.name}: FFmpeg has got other bytes")

    def count_calls(self, work: Work) -> float | None:
        """As counted by strace in the sender alone, else by the sender itself."""
        if shutil.which("strace") and self.way != "vmsplice":
            n = max(1, min(work.messages, TRACED_BYTES // work.size))
            try:
                # (the difference has no start-up in it)
                once, twice = (
                    self._trace(replace(work, messages=messages))
                    for messages in (n, 2 * n)
                )
                return (twice - once) / n
            except ChildProcessError:  # strace is forbidden here, or too old
                pass
        calls = self.run(work, check=False).calls
        return None if calls is None else calls / (work.warm + work.messages)

    def _trace(self, work: Work) -> int:
        table = self.lab.path / "strace"
        # (-b execve: do not follow FFmpeg, which the sender starts)
        tracer = ["strace", "-f", "-b", "execve", "-c", "-U", "calls", "-o", str(table)]
        self._feed(work, self.video.output, False, tracer)
        return int(table.read_text().split()[-2])  # before the word "total"

    def _feed(
        self,
        work: Work,
        output: Sequence[str],
        check: bool,
        tracer: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Run the sender, and return its report."""
        progress = self.lab.path / "progress"
        progress.write_text("frame=0")
        with Crew(self.lab.path / "stderr") as crew:
            crew.start([*tracer, *self._sender(work, progress, output, check)])
            told: dict[str, Any] = crew.finish()["sender"]
        seen, sent = frames_seen(progress), work.warm + work.messages
        if seen != sent and self.way != "nothing":
            raise WrongBytes(f"{self.name}: FFmpeg saw {seen} frames and not {sent}")
        return told

    def _sender(
        self, work: Work, progress: Path, output: Sequence[str], check: bool
    ) -> list[str]:
        command = self.video.command(progress, output)
        pattern = self.lab.pattern(work)
        if self.way == "vmsplice":
            numbers = (work.size, work.buffers, work.warm, work.messages)
            settings = [f"{name}={value}" for name, value in self.environment.items()]
            program = [self.lab.program("vmsplice"), *map(str, numbers), pattern]
            return ["env", *settings, *program, *command]
        job = self._job(work, command, check) | {"pattern": pattern}
        return [sys.executable, "-m", "aiozerocopy.bench.frames", json.dumps(job)]

    def _job(self, work: Work, command: list[str], check: bool) -> dict[str, Any]:
        return {
            "way": self.way,
            "loop": self.loop,
            "options": dict(self.options),
            "command": command,
            "environment": dict(self.environment),
            "size": work.size,
            "buffers": work.buffers,
            "warm": work.warm,
            "frames": work.messages,
            "pattern": "",
            "check": check,
            "render": self.render,
        }


def counted(buffers: int) -> str:
    return f"{buffers} buffer" + "s" * (buffers > 1)


def amount(options: Options, video: Video, nbytes: int, buffers: int) -> Work:
    frames = options.frames or (12 if options.quick else nbytes // video.frame_bytes)
    warm = 8 if options.quick else min(40, frames)
    return Work(video.frame_bytes, frames, warm=warm, buffers=buffers)


def contestants(
    lab: Lab,
    video: Video,
    given: Mapping[str, Mapping[str, Any]],
    kind: type[FrameFeeder] = FrameFeeder,
    **common: Any,
) -> list[FrameFeeder]:
    return [
        kind(name, lab, video, **{**common, **options})
        for name, options in given.items()
    ]
