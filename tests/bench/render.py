"""A rendered scene to x264, end to end.

Every contender draws the same frames with OpenGL and gets them to x264 in its own way.
When bytes are checked, FFmpeg returns what it got as rgb24, and that is compared with
the scene: exactly, or by the mean difference where the frames went as YUV.
"""

from __future__ import annotations

import importlib
import itertools
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.pipe_size import PIPE_SIZE
from bench.race import Lacking, Race, Work, WrongBytes, duels, need
from bench.video import (
    FPS,
    NOWHERE,
    ROOMY,
    Feeder,
    InProcess,
    cases,
    contenders,
    counted,
    frames_work,
    our_child,
    raw_video,
    tell_frames,
    their_child,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.processes import Lab
    from bench.worker import Job

SIZES = {"1080p": (1920, 1080)}
PRESET = "ultrafast"
ENCODE = ("-c:v", "libx264", "-preset", PRESET, "-pix_fmt", "yuv420p")
NEAR = 4.0  # of 255: how much YUV may differ on average
INPUT, FLIP = "@input", "@flip"  # in FFmpeg's arguments, for the sender to replace
OURS = "Readback, Writer"
RIVALS = {"TurboPipe": "", "stdin.write(fbo.read())": "", "PyAV in this process": ""}


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    need("moderngl", "numpy")
    need_opengl()
    for version, ffmpeg, name, size, is_first in cases(SIZES, quick):
        for buffers in (4,) if quick else (1, 4):
            in_table = is_first and buffers == 4
            rivals = {"TurboPipe": ""} if in_table else RIVALS
            work = f"{name} OpenGL scene to x264: gl.Readback, ffmpeg.Writer"
            output = (FLIP, *ENCODE, "-f", "matroska", NOWHERE)
            yield Race(
                "render",
                f"{name} scene to x264, {counted(buffers)}, FFmpeg {version}",
                frames_work(size, 1_500_000_000, buffers, quick=quick),
                contenders(
                    lab, GIVEN, SceneFeeder, ffmpeg=ffmpeg, size=size, output=output
                ),
                duels(OURS, rivals, work, unit="frames"),
                brief=40 * in_table,
            )


def need_opengl() -> None:
    """Tried in a process of its own, since drivers leave threads.

    Raises:
        Lacking: OpenGL cannot draw here.
    """
    attempt = "import moderngl as m; m.create_context(standalone=True, backend='egl')"
    command = [sys.executable, "-c", attempt]
    if subprocess.run(command, capture_output=True).returncode:
        packages = "libegl1 libgl1-mesa-dri libgles2"
        raise Lacking(f"OpenGL cannot draw here: on Debian, apt install {packages}")


class SceneFeeder(Feeder):
    """A sender process that renders, and gets its frames to x264."""

    @property
    def input(self) -> list[str]:
        """Only the sender knows FFmpeg's input arguments, so it fills them in."""
        return [INPUT]

    def to_check(self, checked: Path) -> list[str]:
        return [FLIP, "-f", "rawvideo", "-pix_fmt", "rgb24", str(checked)]

    def compare(self, work: Work, checked: Path) -> None:
        import numpy

        got = numpy.fromfile(checked, "u1")
        expected = numpy.fromfile(self.lab.path / "reference", "u1")
        if got.size != expected.size:
            sizes = f"{got.size:,} bytes and not {expected.size:,}"
            raise WrongBytes(f"{self.name}: {sizes}")
        near = NEAR if self.told.get("is_yuv") else 0
        for number in range(work.warm + work.messages):
            frame = slice(number * work.size, (number + 1) * work.size)
            off = abs(got[frame].astype("i2") - expected[frame]).mean()
            if off > near:
                raise WrongBytes(f"{self.name}: frame {number} is off by {off:.2f}")


# ---- what the senders do -------------------------------------------------------------

VERTEX = """
#version 330
const vec2 corners[3] = vec2[](vec2(-1, -1), vec2(3, -1), vec2(-1, 3));
out vec2 at;
void main() { at = corners[gl_VertexID]; gl_Position = vec4(at, 0, 1); }
"""
FRAGMENT = """
#version 330
uniform float time;
in vec2 at;
out vec4 color;
void main() {
    float wave = sin(3.0 * length(at) - 4.0 * time);
    color = vec4(0.5 + 0.4 * cos(time + 3.0 * at.xyx + wave + vec3(0, 2, 4)), 1);
}
"""


class Scene:
    """Frames of a moving picture, drawn into `framebuffer` by number."""

    def __init__(self, job: Job) -> None:
        import moderngl

        self._job = job
        self.size: tuple[int, int] = tuple(job.picture)
        egl: Any = {"standalone": True, "backend": "egl"}
        self.context: Any = moderngl.create_context(**egl)
        self._program = self.context.program(VERTEX, FRAGMENT)
        self.framebuffer: Any = self.context.simple_framebuffer(self.size, components=4)
        self.framebuffer.use()
        self._triangle = self.context.vertex_array(self._program, [])

    def draw(self, number: int) -> None:
        self._program["time"] = number / FPS
        self._triangle.render(vertices=3)

    def phases(self) -> Iterator[Iterator[None]]:
        """The frames of the warm-up, then those that count: each is drawn."""
        for numbers in self._job.numbers():
            yield map(self.draw, numbers)

    def read(self) -> bytes:
        """What was drawn as rgb24, the bottom row first."""
        pixels: bytes = self.framebuffer.read(components=3, alignment=1)
        return pixels

    def tell(self) -> None:
        """When bytes are checked: all frames as they should be, the top row first."""
        if not self._job.check:
            return
        row = self.size[0] * 3
        with Path(self._job.reference).open("wb") as file:
            for number in range(self._job.warm + self._job.messages):
                self.draw(number)
                pixels = self.read()
                at = reversed(range(0, len(pixels), row))
                file.writelines(pixels[start : start + row] for start in at)

    def fill(self, given: list[str], flip: list[str]) -> None:
        """Complete FFmpeg's command."""
        parts = {INPUT: given, FLIP: flip}
        filled = (parts.get(word, [word]) for word in self._job.command)
        self._job.command = [*itertools.chain(*filled)]

    def fill_bottom_up(self) -> None:
        self.fill(raw_video(self.size), ["-vf", "vflip"])


async def readback(job: Job) -> None:
    """Ours: as many pictures on their way as the job has buffers."""
    from aiozerocopy.gl import Readback

    scene = Scene(job)
    reading = Readback(scene.context, scene.size, job.pix_fmt, depth=job.buffers)
    scene.fill([*reading.ffmpeg_options], [])
    with reading:
        async with our_child(job) as stream:
            await draw_and_send(job, scene, reading, stream)
    scene.tell()


async def writer(job: Job) -> None:
    """Ours as a program has it: `Writer` converts what was read, and sends it."""
    from aiozerocopy import ffmpeg
    from aiozerocopy.gl import Readback

    scene = Scene(job)
    output = [word for word in job.output if word != FLIP]
    with Readback(scene.context, scene.size, depth=job.buffers) as reading:
        film = ffmpeg.Writer(
            output, scene.size, FPS, reading.pix_fmt, ffmpeg=job.ffmpeg
        )
        async with film:
            await draw_and_send(job, scene, reading, film)
    tell_frames(job, film.frames_written)
    scene.tell()


async def draw_and_send(job: Job, scene: Scene, reading: Any, sink: Any) -> None:
    import anyio

    for frames, n in zip(scene.phases(), (job.warm, job.messages), strict=True):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_pictures, reading, sink, n)
            for _ in frames:
                await reading.put(scene.framebuffer)


async def send_pictures(reading: Any, sink: Any, n: int) -> None:
    """Return when the last of them is out."""
    for _ in range(n):
        picture = await reading.next()
        ticket = await sink.put(picture)
        picture.release()
    await ticket


async def read_into(job: Job) -> None:
    """TurboPipe's own way, with its module or a compatible one."""
    theirs = importlib.import_module(job.module)
    scene = Scene(job)
    buffers = [scene.context.buffer(reserve=job.size) for _ in range(job.buffers)]
    turn = itertools.cycle(buffers)
    scene.fill_bottom_up()
    with their_child(job, getattr(job, "pipe_size", -1)) as child:
        for frames in scene.phases():
            for _ in frames:
                buffer = next(turn)
                theirs.sync(buffer.mglo)
                scene.framebuffer.read_into(buffer, components=3, alignment=1)
                theirs.pipe(buffer.mglo, child.stdin.fileno())
            for buffer in buffers:
                theirs.sync(buffer.mglo)
    scene.tell()


async def read_and_write(job: Job) -> None:
    """``stdin.write(fbo.read())``"""
    scene = Scene(job)
    scene.fill_bottom_up()
    with their_child(job) as child:
        for frames in scene.phases():
            for _ in frames:
                child.stdin.write(scene.read())
    scene.tell()


async def pyav(job: Job) -> None:
    import av
    import numpy

    scene = Scene(job)
    width, height = scene.size
    kind = ("rawvideo", "rawvideo", "rgb24")
    muxer, codec, pix_fmt = kind if job.check else ("matroska", "libx264", "yuv420p")
    with av.open(job.output[-1], "w", format=muxer) as out:
        film = InProcess(job, out, codec, pix_fmt)
        if not job.check:
            film.set(preset=PRESET)
        for frames in scene.phases():
            for _ in frames:
                picture = numpy.frombuffer(scene.read(), "u1")
                film.write(picture.reshape(height, width, 3)[::-1])
        film.finish()
    scene.tell()


def ours(pix_fmt: str, *, is_yuv: bool, **more: Any) -> dict[str, Any]:
    how = {"way": readback, "environment": ROOMY}
    return {**how, "pix_fmt": pix_fmt, "is_yuv": is_yuv, **more}


THEIRS = {"way": read_into, "module": "turbopipe", "needs": ["turbopipe"]}
COMPATIBLE = {"way": read_into, "module": "aiozerocopy.compat.turbopipe"}
GIVEN: dict[str, dict[str, Any]] = {
    OURS: {"way": writer},
    "Readback auto, put": ours("auto", is_yuv=True),
    "Readback auto, put, uvloop": ours("auto", is_yuv=True, loop="uvloop"),
    "Readback rgba, put": ours("rgba", is_yuv=False),
    "Readback yuv420p, put": ours("yuv420p", is_yuv=True),
    "compat.turbopipe": {**COMPATIBLE, "environment": ROOMY},
    "TurboPipe": THEIRS,
    "TurboPipe, our pipe and environment": {
        **THEIRS,
        "environment": ROOMY,
        "pipe_size": PIPE_SIZE,
    },
    "stdin.write(fbo.read())": {"way": read_and_write},
    "PyAV in this process": {"way": pyav, "needs": ["av"]},
}
