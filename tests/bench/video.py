"""Contenders that feed FFmpeg: how they are started, measured and checked.

The clock runs from the end of the warm-up frames until FFmpeg has ended.  FFmpeg counts
the frames in every run; when bytes are checked, it writes a file that is compared.
"""

import contextlib
import hashlib
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aiozerocopy.ffmpeg.binary import find_ffmpeg
from bench.processes import Lab, worker
from bench.race import Contender, Lacking, Run, Work, WrongBytes
from bench.worker import Job

Given = Mapping[str, Mapping[str, Any]]  # a contender's options, by its name

CHECKED = 24  # frames, when bytes are checked
FPS = 60
NOWHERE = "/dev/null"


def ffmpeg_here() -> tuple[str, str]:
    """The path of this machine's FFmpeg, and its version."""
    try:
        path = shutil.which("ffmpeg") or find_ffmpeg()
    except FileNotFoundError as error:  # it says how to get one
        raise Lacking(str(error)) from None
    told = subprocess.run([path, "-version"], capture_output=True, text=True)
    words = told.stdout.split()
    if words[:2] != ["ffmpeg", "version"]:
        raise ChildProcessError(f"{path} does not work: install another FFmpeg")
    return path, words[2].partition("-")[0]


def small_if(quick: bool, size: tuple[int, int]) -> tuple[int, int]:
    """Return the size of a frame, which is small for a quick look."""
    return (size[0] // 12, size[1] // 12) if quick else size


def raw_video(size: tuple[int, int]) -> list[str]:
    """FFmpeg's arguments for frames of RGB."""
    width, height = size
    return ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]


def frames_work(size: tuple[int, int], frames: int, buffers: int, quick: bool) -> Work:
    frames, warm = (12, 8) if quick else (frames, 40)
    return Work(size[0] * size[1] * 3, frames, warm, buffers)


def waves(lab: Lab, size: tuple[int, int], n: int) -> Path:
    """Make a file of RGB frames: waves of colour that move."""
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


# ---- contenders ----------------------------------------------------------------------


@dataclass(frozen=True)
class Feeder:
    """A sender process that starts FFmpeg and feeds it; some benches extend it.

    `how` has FFmpeg's path, the size of a frame, and the way: a function for a worker,
    or the name of a program in C.  It may have FFmpeg's output arguments and additions
    to its environment; all of it is passed to the worker.
    """

    lab: Lab
    name: str
    how: Mapping[str, Any]

    def to_check(self, checked: Path) -> list[str]:
        """FFmpeg's output arguments for the file that `compare` reads."""
        pixels = ["-c:v", "rawvideo", "-pix_fmt", "rgb24"]
        return [*pixels, "-f", "hash", "-hash", "md5", str(checked)]

    def compare(self, work: Work, checked: Path, md5: str) -> None:
        """Raises: WrongBytes: FFmpeg has got other bytes than the sender reports."""
        if checked.read_text().strip().lower() != f"md5={md5}":
            raise WrongBytes(f"{self.name}: FFmpeg has got other bytes")

    def pattern(self, work: Work) -> str:
        return self.lab.pattern(work)

    def run(self, work: Work, check: bool) -> Run:
        checked, progress = self.lab.path / "checked", self.lab.path / "progress"
        checked.unlink(missing_ok=True)
        progress.write_text("frame=0")
        if check:
            n, warm = min(work.messages, CHECKED), min(work.warm, 2 * work.buffers)
            work = replace(work, messages=n, warm=warm)
        usual = self.how.get("output", ["-f", "null", "-"])
        told = {"check": check, "progress": str(progress)} | work.told
        told |= {"output": self.to_check(checked) if check else [*usual]}
        sender = self.lab.reports(self._sender(work, {**self.how, **told}))["sender"]
        lines = progress.read_text().split()
        seen = [line for line in lines if line.startswith("frame=")][-1][6:]
        if int(seen) != (sent := work.warm + work.messages):
            raise WrongBytes(f"{self.name}: FFmpeg saw {seen} frames, not {sent}")
        if check:
            self.compare(work, checked, sender.get("md5") or self._md5(work))
        return Run(sender["seconds"], sender["cpu"], sender["children_cpu"])

    def _md5(self, work: Work) -> str:
        data = memoryview(Path(self.lab.pattern(work)).read_bytes())
        digest = hashlib.md5(usedforsecurity=False)
        for number in range(work.warm + work.messages):
            at = number % work.buffers * work.size
            digest.update(data[at : at + work.size])
        return digest.hexdigest()

    def _sender(self, work: Work, how: dict[str, Any]) -> list[str]:
        way, pattern = how.pop("way"), self.pattern(work)
        quiet = ["-hide_banner", "-loglevel", "error", "-nostats", "-y"]
        command = [how["ffmpeg"], *quiet, "-progress", how["progress"]]
        command += [*raw_video(how["picture"]), "-r", str(FPS), "-i", "-"]
        command += [*how.get("flip", ()), *how["output"]]
        if isinstance(way, str):
            settings = [f"{name}={value}" for name, value in how["environment"].items()]
            numbers = (work.size, work.buffers, work.warm, work.messages)
            program = [self.lab.program(way), *map(str, numbers), pattern]
            return ["env", *settings, *program, *command]
        return worker(way, **{**how, "pattern": pattern, "sink": command})


def contenders(
    lab: Lab, given: Given, kind: type[Feeder] = Feeder, **common: Any
) -> list[Contender]:
    """Make a contender of each, which needs the modules in `needs`, and its loop."""
    made = []
    for name, options in given.items():
        how = {"environment": {}, **common, **options}
        needs = [*how.pop("needs", ()), *["uvloop"] * (how.get("loop") == "uvloop")]
        made.append(Contender(name, kind(lab, name, how).run, needs))
    return made


# ---- in the sender's process ---------------------------------------------------------


@contextlib.contextmanager
def their_child(job: Job) -> Iterator[Any]:
    child = subprocess.Popen(
        job.sink,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **job.environment},
    )
    yield child
    assert child.stdin is not None
    child.stdin.close()
    expect_success(child.wait())
    job.end()


def expect_success(code: int) -> None:
    if code != 0:
        raise ChildProcessError(f"FFmpeg ended with code {code}")


def tell_frames(job: Job, n: int) -> None:
    """Write the number of frames where FFmpeg would, which has ended."""
    job.end()
    Path(job.progress).write_text(f"frame={n}\n")
