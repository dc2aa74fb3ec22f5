"""Contenders that feed FFmpeg: how they are started, measured and checked.

The clock runs from the end of the warm-up frames until FFmpeg has ended.  FFmpeg counts
the frames in every run; when bytes are checked, it writes a file that is compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import subprocess
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiozerocopy.ffmpeg.finding import ROOMY as ROOMY
from aiozerocopy.ffmpeg.finding import find_ffmpeg
from bench.processes import Lab, worker
from bench.race import Contender, Lacking, Run, Work, WrongBytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

    from bench.worker import Job

CHECKED = 24  # frames, when bytes are checked
FPS = 60
NOWHERE = "/dev/null"


def ffmpegs() -> dict[str, str]:
    """Each FFmpeg of this machine, by its version."""
    found = [shutil.which("ffmpeg")]
    if find_spec("imageio_ffmpeg") is not None:
        import imageio_ffmpeg

        found.append(imageio_ffmpeg.get_ffmpeg_exe())
    paths = [path for path in found if path is not None]
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


def cases(
    sizes: Mapping[str, tuple[int, int]], quick: bool
) -> Iterator[tuple[str, str, str, tuple[int, int], bool]]:
    """Every FFmpeg's version and path, with each size and its name.

    The last item says whether it is in the table, which makes do with the first FFmpeg;
    for a quick look, its frames are small.
    """
    for at, (version, ffmpeg) in enumerate(ffmpegs().items()):
        if quick and at:
            return
        for name, (width, height) in sizes.items():
            size = (width // 12, height // 12) if quick else (width, height)
            yield version, ffmpeg, name, size, not at


def raw_video(size: tuple[int, int]) -> list[str]:
    """FFmpeg's arguments for frames of RGB."""
    width, height = size
    return ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]


def frames_work(
    size: tuple[int, int], nbytes: int, buffers: int, *, quick: bool
) -> Work:
    frame = size[0] * size[1] * 3
    frames = 12 if quick else nbytes // frame
    return Work(frame, frames, warm=8 if quick else min(40, frames), buffers=buffers)


def counted(buffers: int) -> str:
    return f"{buffers} buffer" + "s" * (buffers > 1)


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


# ---- contenders ----------------------------------------------------------------------


@dataclass(frozen=True)
class Feeder:
    """A sender process that starts FFmpeg and feeds it; each bench has a kind of it."""

    lab: Lab
    name: str
    ffmpeg: str
    size: tuple[int, int]
    way: Callable[..., Any] | str  # a function for a worker, or a program in C
    output: Sequence[str] = ("-f", "null", "-")
    environment: Mapping[str, str] = field(default_factory=dict)  # of FFmpeg
    told: Mapping[str, Any] = field(default_factory=dict)  # more of its job
    feeds: bool = True  # or FFmpeg is not even started

    @property
    def input(self) -> list[str]:
        return raw_video(self.size)

    def to_check(self, checked: Path) -> list[str]:
        """FFmpeg's output arguments for the file that `compare` reads."""
        return ["-c", "copy", "-f", "hash", "-hash", "md5", str(checked)]

    def compare(self, work: Work, checked: Path) -> None:
        """Raises: WrongBytes: FFmpeg has got others."""
        data = Path(self.lab.pattern(work)).read_bytes()
        expected = hashlib.md5(usedforsecurity=False)
        for number in range(work.warm + work.messages):
            at = number % work.buffers * work.size
            expected.update(memoryview(data)[at : at + work.size])
        if checked.read_text().strip().lower() != f"md5={expected.hexdigest()}":
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
        output = self.to_check(checked) if check else [*self.output]
        quiet = ["-hide_banner", "-loglevel", "error", "-nostats", "-y"]
        command = [self.ffmpeg, *quiet, "-progress", str(progress), *self.input]
        command += ["-r", str(FPS), "-i", "-"]
        told = self.lab.reports(self._sender(work, [*command, *output], output, check))
        sender = told["sender"]
        lines = progress.read_text().split()
        seen = [line for line in lines if line.startswith("frame=")][-1][6:]
        if self.feeds:
            sent = work.warm + work.messages
            if int(seen) != sent:
                raise WrongBytes(f"{self.name}: FFmpeg saw {seen} frames, not {sent}")
            if check:
                self.compare(work, checked)
        more = {"ms held up": sender["gap"] * 1e3} if sender.get("gap") else {}
        seconds = sender["seconds"]
        return Run(seconds, sender["cpu"], sender["children_cpu"], more)

    def _sender(
        self, work: Work, command: list[str], output: list[str], check: bool
    ) -> list[str]:
        pattern = self.pattern(work)
        if isinstance(self.way, str):
            numbers = (work.size, work.buffers, work.warm, work.messages)
            settings = [f"{name}={value}" for name, value in self.environment.items()]
            program = [self.lab.program(self.way), *map(str, numbers), pattern]
            return ["env", *settings, *program, *command]
        job = {**work.told, "pattern": pattern, "check": check, "command": command}
        job |= {"ffmpeg": self.ffmpeg, "picture": self.size, "output": output}
        job |= {"progress": str(self.lab.path / "progress")}
        job |= {"reference": str(self.lab.path / "reference")}
        job |= {"environment": dict(self.environment), **self.told}
        return worker(self.way, **job)


def contenders(
    lab: Lab,
    given: Mapping[str, Mapping[str, Any]],
    kind: type[Feeder] = Feeder,
    **common: Any,
) -> list[Contender]:
    """By their names: the fields of each, what it needs, and what its job has."""
    names = {"way", "output", "environment", "feeds", *kind.__annotations__}
    made = []
    for name, options in given.items():
        every = {**common, **options}
        needs = [*every.pop("needs", ())]
        needs += ["uvloop"] * (every.get("loop") == "uvloop")
        where = {one: every.pop(one) for one in ("ffmpeg", "size")}
        fields = {one: every.pop(one) for one in {*every} & names}
        feeder = kind(lab, name, **where, **fields, told=every)
        made.append(Contender(name, feeder.run, needs))
    return made


# ---- in the sender's process ---------------------------------------------------------


@contextlib.asynccontextmanager
async def our_child(job: Job, peer: Any = "reads") -> AsyncIterator[Any]:
    """The stream to FFmpeg's stdin.  The block ends when FFmpeg has, with success.

    FFmpeg reads and does nothing else, so pages may be lent to it.
    """
    from aiozerocopy import open_process

    env = {**os.environ, **job.environment}
    async with open_process(job.command, stderr=None, env=env, peer=peer) as process:
        assert process.stdin is not None
        yield process.stdin
        await process.stdin.aclose()
        expect_success(await process.wait())


@contextlib.contextmanager
def their_child(job: Job, pipe_size: int = -1) -> Iterator[Any]:
    child = subprocess.Popen(
        job.command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **job.environment},
        pipesize=pipe_size,
    )
    yield child
    assert child.stdin is not None
    child.stdin.close()
    expect_success(child.wait())


def expect_success(code: int) -> None:
    if code != 0:
        raise ChildProcessError(f"FFmpeg ended with code {code}")


def tell_frames(job: Job, n: int) -> None:
    """As FFmpeg does."""
    Path(job.progress).write_text(f"frame={n}\n")


class InProcess:
    """PyAV: x264 in the sender's process, without any pipe."""

    def __init__(self, job: Job, out: Any, codec: str, pix_fmt: str) -> None:
        self._job = job
        self._out = out
        self._count = 0
        self._stream: Any = out.add_stream(codec, rate=FPS)
        self._stream.width, self._stream.height = job.picture
        self._stream.pix_fmt = pix_fmt

    def set(self, **options: str) -> None:
        self._stream.codec_context.options = options

    def write(self, picture: Any) -> None:
        from fractions import Fraction

        import av

        frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
        frame.pts, frame.time_base = self._count, Fraction(1, FPS)
        self._count += 1
        self._out.mux(self._stream.encode(frame))

    def finish(self) -> None:
        self._out.mux(self._stream.encode(None))
        tell_frames(self._job, self._count)
