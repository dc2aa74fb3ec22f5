"""Render without a window and encode with FFmpeg, five frames on their way at a time.

    python render_loop.py film.mp4 --size 1920x1080 --frames 600

One task draws, another takes what the GPU has finished and sends it to FFmpeg.  Neither
waits in a call of OpenGL or of the operating system, so a program's other tasks go on.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import anyio
import moderngl

from aiozerocopy import ffmpeg, gl

VERTEX_SHADER = """
#version 330
void main() {
    vec2 corner = vec2(gl_VertexID & 1, gl_VertexID >> 1);
    gl_Position = vec4(corner * 4.0 - 1.0, 0.0, 1.0);
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
    """Something to look at."""

    def __init__(self, context: Any, size: tuple[int, int]) -> None:
        self.framebuffer = context.framebuffer([context.texture(size, 4)])
        self._program = context.program(VERTEX_SHADER, FRAGMENT_SHADER)
        self._program["size"] = size
        self._triangle = context.vertex_array(self._program, [])

    def draw(self, seconds: float) -> None:
        self.framebuffer.use()
        self._program["seconds"] = seconds
        self._triangle.render(vertices=3)


async def render(scene: Scene, readback: gl.Readback, frames: int, fps: int) -> None:
    for number in range(frames):
        scene.draw(number / fps)
        await readback.put(scene.framebuffer)


async def encode(readback: gl.Readback, frames: int, fps: int, output: str) -> None:
    async with ffmpeg.Writer(output, readback.size, fps, readback.pix_fmt) as film:
        for _ in range(frames):
            with await readback.next() as picture:
                await film.send(picture)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", nargs="?", default="film.mp4")
    parser.add_argument("--size", default="1280x720")
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--fps", type=int, default=60)
    options = parser.parse_args()
    width, height = map(int, options.size.split("x"))

    # moderngl's type hints want a dict for backend; it is a string.
    context = moderngl.create_context(standalone=True, backend="egl")  # type: ignore[arg-type]
    scene = Scene(context, (width, height))
    start = time.perf_counter()
    with gl.Readback(context, (width, height), "auto", depth=5) as readback:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(render, scene, readback, options.frames, options.fps)
            await encode(readback, options.frames, options.fps, options.output)
    rate = options.frames / (time.perf_counter() - start)
    print(f"{options.frames} frames as {readback.pix_fmt}, {rate:.0f} a second")


if __name__ == "__main__":
    anyio.run(main)
