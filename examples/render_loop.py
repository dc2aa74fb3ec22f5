"""Render without a window and encode with FFmpeg, five frames on their way at a time.

    python render_loop.py film.mp4 600 1920x1080

One task draws, another takes the pictures that the GPU has finished and sends them to
FFmpeg.  Neither waits in a call of OpenGL or of the operating system, so a program's
other tasks go on.
"""

import sys
from functools import partial
from typing import Any

import anyio
import moderngl

from aiozerocopy import ffmpeg, gl

FPS = 60

VERTEX_SHADER = """
#version 330
void main() {  // one triangle that covers all
    gl_Position = vec4(vec2(gl_VertexID & 1, gl_VertexID >> 1) * 4.0 - 1.0, 0.0, 1.0);
}
"""

FRAGMENT_SHADER = """
#version 330
uniform vec2 size;
uniform float seconds;
out vec4 color;
void main() {
    vec2 p = (gl_FragCoord.xy * 2.0 - size) / size.y;
    float ring = cos(9.0 * length(p) - 4.0 * seconds);
    vec3 hue = vec3(0.0, 2.1, 4.2) + seconds + p.x;
    color = vec4(0.5 + 0.4 * cos(hue) * ring, 1.0);
}
"""


class Scene:
    """Rings whose colours change."""

    def __init__(self, context: Any, size: tuple[int, int]) -> None:
        self.framebuffer = context.framebuffer([context.texture(size, 4)])
        self._program = context.program(VERTEX_SHADER, FRAGMENT_SHADER)
        self._program["size"] = size
        self._triangle = context.vertex_array(self._program, [])

    def draw(self, seconds: float) -> None:
        self.framebuffer.use()
        self._program["seconds"] = seconds
        self._triangle.render(vertices=3)


async def render(scene: Scene, readback: gl.Readback, frames: int) -> None:
    for number in range(frames):
        scene.draw(number / FPS)
        await readback.put(scene.framebuffer)


async def main(
    output: str = "film.mp4", frames: str = "300", size: str = "1280x720"
) -> None:
    width, height = map(int, size.split("x"))
    # moderngl's type hints want a dict for backend; it is a string.
    context = moderngl.create_context(standalone=True, backend="egl")  # type: ignore[arg-type]
    scene = Scene(context, (width, height))
    with gl.Readback(context, (width, height), "auto", depth=5) as readback:
        async with (
            ffmpeg.Writer(output, readback.size, FPS, readback.pix_fmt) as film,
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(render, scene, readback, int(frames))
            for _ in range(int(frames)):
                with await readback.next() as picture:
                    await film.send(picture)
    print(f"{film.frames_written} frames as {readback.pix_fmt} in {film.written_to}")


if __name__ == "__main__":
    anyio.run(partial(main, *sys.argv[1:]))
