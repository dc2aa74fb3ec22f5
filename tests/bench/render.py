"""A rendered scene to x264, end to end.

Every contender draws the same frames with OpenGL and gets them to x264 in its own way.
When bytes are checked, FFmpeg reports the MD5 of what it got as rgb24, and the
contender that of the scene.
"""

import hashlib
import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from bench import video
from bench.processes import Lab
from bench.race import Lacking, Race, duels, need
from bench.worker import Job

ENCODE = ("-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p")
OUTPUT = (*ENCODE, "-f", "matroska", video.NOWHERE)
FLIP = ("-vf", "vflip")  # OpenGL gives the bottom row first


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    need("moderngl", "numpy")
    need_opengl()
    ffmpeg, version = video.ffmpeg_here()
    size = video.small_if(quick, (1920, 1080))
    how: Any = {"ffmpeg": ffmpeg, "picture": size, "output": OUTPUT}
    work = "1080p OpenGL scene to x264: gl.Readback, ffmpeg.Writer"
    yield Race(
        "render",
        f"1080p scene to x264, 4 buffers, FFmpeg {version}",
        video.frames_work(size, 40, 4, quick),
        video.contenders(lab, GIVEN, **how),
        duels("Readback, Writer", {"TurboPipe": ""}, work, unit="frames"),
    )


def need_opengl() -> None:
    """Try OpenGL in a process of its own, since drivers leave threads.

    Raises:
        Lacking: OpenGL cannot draw here.
    """
    attempt = "import moderngl as m; m.create_context(standalone=True, backend='egl')"
    command = [sys.executable, "-c", attempt]
    if subprocess.run(command, capture_output=True).returncode:
        packages = "libegl1 libgl1-mesa-dri libgles2"
        raise Lacking(f"OpenGL cannot draw here: on Debian, apt install {packages}")


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
        self._program["time"] = number / video.FPS
        self._triangle.render(vertices=3)

    def phases(self) -> Iterator[Iterator[None]]:
        """Draw each frame: those of the warm-up, then those that count."""
        for numbers in self._job.phases():
            yield map(self.draw, numbers)

    def told(self) -> dict[str, str]:
        """Return the MD5 of all frames, the top row first, when bytes are checked."""
        if not self._job.check:
            return {}
        digest, row = hashlib.md5(usedforsecurity=False), self.size[0] * 3
        for number in range(self._job.warm + self._job.messages):
            self.draw(number)
            pixels = self.framebuffer.read(components=3, alignment=1)
            for at in reversed(range(0, len(pixels), row)):
                digest.update(pixels[at : at + row])
        return {"md5": digest.hexdigest()}


async def writer(job: Job) -> dict[str, str]:
    """Ours: as many pictures on their way as the job has buffers."""
    import anyio

    from aiozerocopy import ffmpeg
    from aiozerocopy.gl import Readback

    scene = Scene(job)
    with Readback(scene.context, scene.size, depth=job.buffers) as reading:
        how = (job.output, scene.size, video.FPS, reading.pix_fmt)
        async with ffmpeg.Writer(*how, ffmpeg=job.ffmpeg) as film:
            for frames, n in zip(scene.phases(), (job.warm, job.messages), strict=True):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(send_pictures, reading, film, n)
                    for _ in frames:
                        await reading.put(scene.framebuffer)
    video.tell_frames(job, film.frames_written)
    return scene.told()


async def send_pictures(reading: Any, film: Any, n: int) -> None:
    """Send n pictures; return when the last is out."""
    for _ in range(n):
        picture = await reading.next()
        ticket = await film.put(picture)
        picture.release()
    await ticket


async def turbopipe(job: Job) -> dict[str, str]:
    import turbopipe as theirs

    scene = Scene(job)
    buffers = [scene.context.buffer(reserve=job.size) for _ in range(job.buffers)]
    turn = itertools.cycle(buffers)
    with video.their_child(job) as child:
        for frames in scene.phases():
            for _ in frames:
                buffer = next(turn)
                theirs.sync(buffer.mglo)
                scene.framebuffer.read_into(buffer, components=3, alignment=1)
                theirs.pipe(buffer.mglo, child.stdin.fileno())
            for buffer in buffers:
                theirs.sync(buffer.mglo)
    return scene.told()


GIVEN: video.Given = {
    "Readback, Writer": {"way": writer},
    "TurboPipe": {"way": turbopipe, "flip": FLIP, "needs": ["turbopipe"]},
}
