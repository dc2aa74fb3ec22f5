"""A render loop written for TurboPipe: only the import has changed.

    python from_turbopipe.py [video.mp4]

Needs moderngl, EGL and ffmpeg.
"""

import subprocess
import sys

import moderngl

from aiozerocopy.compat import turbopipe  # was: import turbopipe

WIDTH, HEIGHT, FPS, FRAMES, BUFFERS = 640, 360, 60, 120, 3

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
out vec3 color;
void main() { color = 0.5 + 0.5 * cos(6.3 * time + 4.0 * at.xyx + vec3(0, 2, 4)); }
"""


def main(video: str = "video.mp4") -> None:
    # moderngl's type hints want a dict for backend; it is a string.
    context = moderngl.create_context(standalone=True, backend="egl")  # type: ignore[arg-type]
    program = context.program(vertex_shader=VERTEX, fragment_shader=FRAGMENT)
    scene = context.vertex_array(program, [])
    fbo = context.simple_framebuffer((WIDTH, HEIGHT), components=3)
    fbo.use()
    buffers = [context.buffer(reserve=WIDTH * HEIGHT * 3) for _ in range(BUFFERS)]

    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{WIDTH}x{HEIGHT}"]
    raw += ["-r", str(FPS), "-i", "-"]
    # RGB has to become YUV by some matrix, and players must be told which.
    colours = "scale=out_color_matrix=bt709:out_range=tv,setparams=colorspace=bt709"
    colours += ":color_primaries=bt709:color_trc=bt709:range=tv"
    encode = ["-vf", f"vflip,{colours}", "-pix_fmt", "yuv420p", video]
    ffmpeg = subprocess.Popen(
        ["ffmpeg", "-y", "-loglevel", "error", *raw, *encode], stdin=subprocess.PIPE
    )
    assert ffmpeg.stdin is not None

    for number in range(FRAMES):
        buffer = buffers[number % BUFFERS]
        turbopipe.sync(buffer)
        program["time"] = number / FRAMES
        scene.render(vertices=3)
        fbo.read_into(buffer)
        turbopipe.pipe(buffer, ffmpeg.stdin.fileno())

    turbopipe.close()
    ffmpeg.stdin.close()
    if ffmpeg.wait() != 0:
        raise SystemExit("ffmpeg failed")


if __name__ == "__main__":
    main(*sys.argv[1:])
