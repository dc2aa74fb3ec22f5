"""What the senders of rendered frames do: one process each, started by `render`.

Every function draws the same frames with OpenGL and sends them to x264 in its own way:
through FFmpeg's stdin, or in this process with PyAV.
"""

from __future__ import annotations

import importlib
import itertools
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import moderngl

from aiozerocopy.bench.frames import Job, main, our_child, their_child

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

INPUT, FLIP = "@input", "@flip"  # in FFmpeg's arguments, for the sender to replace
FPS = 60

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
        self.job = job
        self.size: tuple[int, int] = tuple(job.options["size"])
        egl: Any = {"standalone": True, "backend": "egl"}
        self.context: moderngl.Context = moderngl.create_context(**egl)
        self.program: moderngl.Program = self.context.program(VERTEX, FRAGMENT)
        self.framebuffer: moderngl.Framebuffer = self.context.simple_framebuffer(
            self.size, components=4
        )
        self.framebuffer.use()
        self._triangle = self.context.vertex_array(self.program, [])

    def draw(self, number: int) -> None:
        self.program["time"] = number / FPS
        self._triangle.render(vertices=3)

    def phases(self) -> Iterator[Iterator[None]]:
        """As those of the job, each frame drawn."""
        for numbers in self.job.phases():
            yield map(self.draw, numbers)

    def tell(self) -> None:
        """When bytes are checked: all frames as they should be, top row first."""
        if not self.job.check:
            return
        width, _ = self.size
        with Path(self.job.options["reference"]).open("wb") as file:
            for number in range(self.job.warm + self.job.frames):
                self.draw(number)
                pixels = self.framebuffer.read(components=3, alignment=1)
                rows = [
                    pixels[at : at + width * 3]
                    for at in range(0, len(pixels), width * 3)
                ]
                file.writelines(reversed(rows))

    def bottom_up(self) -> list[str]:
        """FFmpeg's command, for rgb24 as OpenGL gives it."""
        width, height = self.size
        raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
        return fill(self.job.command, raw, ["-vf", "vflip"])


def fill(command: list[str], given: list[str], flip: list[str]) -> list[str]:
    parts = {INPUT: given, FLIP: flip}
    return [*itertools.chain(*(parts.get(word, [word]) for word in command))]


async def readback(job: Job) -> None:
    """Ours: as many pictures on their way as the job has buffers."""
    from aiozerocopy.gl import Readback

    scene = Scene(job)
    pix_fmt = job.options["pix_fmt"]
    reading = Readback(scene.context, scene.size, pix_fmt, depth=job.buffers)
    job.command = fill(job.command, reading.ffmpeg_options, [])
    with reading:
        async with our_child(job) as stream:
            await draw_and_send(job, scene, reading, stream)
    scene.tell()


async def writer(job: Job) -> None:
    """Ours as a program has it: `Writer` converts what was read, and sends it."""
    from aiozerocopy import ffmpeg
    from aiozerocopy.gl import Readback

    scene = Scene(job)
    with Readback(scene.context, scene.size, depth=job.buffers) as reading:
        film = ffmpeg.Writer(
            job.options["output"],
            scene.size,
            FPS,
            reading.pix_fmt,
            ffmpeg=job.options["ffmpeg"],
        )
        async with film:
            await draw_and_send(job, scene, reading, film)
    tell_frames(job, film.frames_written)
    scene.tell()


async def draw_and_send(job: Job, scene: Scene, reading: Any, sink: Any) -> None:
    for frames, n in zip(scene.phases(), (job.warm, job.frames), strict=True):
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
    theirs = importlib.import_module(job.options["module"])
    scene = Scene(job)
    width, height = scene.size
    nbytes = width * height * 3
    buffers = [scene.context.buffer(reserve=nbytes) for _ in range(job.buffers)]
    turn = itertools.cycle(buffers)
    job.command = scene.bottom_up()
    with their_child(job) as child:
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
    job.command = scene.bottom_up()
    with their_child(job) as child:
        for frames in scene.phases():
            for _ in frames:
                pixels = scene.framebuffer.read(components=3, alignment=1)
                child.stdin.write(pixels)
    scene.tell()


async def pyav(job: Job) -> None:
    """x264 in this process, without any pipe."""
    import av
    import numpy

    scene = Scene(job)
    width, height = scene.size
    counts = itertools.count(1)
    with av.open(job.options["file"], "w", format=job.options["format"]) as out:
        stream: Any = out.add_stream(job.options["codec"], rate=FPS)
        stream.width, stream.height = width, height
        stream.pix_fmt = job.options["pix_fmt"]
        stream.codec_context.options = dict(job.options["settings"])
        for frames in scene.phases():
            for _ in frames:
                pixels = scene.framebuffer.read(components=3, alignment=1)
                picture = numpy.frombuffer(pixels, "u1").reshape(height, width, 3)
                frame = av.VideoFrame.from_ndarray(picture[::-1], format="rgb24")
                frame.pts, frame.time_base = next(counts) - 1, Fraction(1, FPS)
                out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    tell_frames(job, next(counts) - 1)
    scene.tell()


def tell_frames(job: Job, n: int) -> None:
    """As FFmpeg does."""
    Path(job.options["progress"]).write_text(f"frame={n}\n")


WAYS: dict[str, Callable[[Job], Awaitable[None]]] = {
    function.__name__: function
    for function in (readback, writer, read_into, read_and_write, pyav)
}

if __name__ == "__main__":
    main(WAYS)
