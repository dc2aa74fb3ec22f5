"""Scenes: a fragment shader on the GPU, or a picture made by NumPy.

A scene yields its frames in order, ready to be sent.  Several are in progress at once,
so that the GPU draws the next frame while another is read.
"""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiozerocopy.pool import FramePool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiozerocopy.gl import Picture
    from aiozerocopy.pool import Frame

_DEMO = Path(__file__).with_name("shaders") / "demo.glsl"

_VERTEX = """\
#version 330
void main() {
    vec2 corner = vec2((gl_VertexID << 1) & 2, gl_VertexID & 2);
    gl_Position = vec4(2.0 * corner - 1.0, 0.0, 1.0);
}
"""

# The lines before and after a shader with mainImage.
_BEFORE = """\
#version 330
uniform vec3 iResolution;
uniform float iTime;
uniform float iTimeDelta;
uniform float iFrameRate;
uniform int iFrame;
uniform vec4 iMouse;
uniform vec4 iDate;
out vec4 _color;
#line 1
"""
_AFTER = """
void main() {
    vec4 color = vec4(0.0, 0.0, 0.0, 1.0);
    mainImage(color, gl_FragCoord.xy);
    _color = vec4(color.rgb, 1.0);
}
"""


class ShaderError(ValueError):
    """The shader does not compile; the message is the driver's."""


def open_context() -> Any:
    """Return an OpenGL context without a window.

    Raises:
        ModuleNotFoundError: moderngl is not installed.
        Exception: any error of the driver.
    """
    import moderngl

    try:
        return moderngl.create_context(standalone=True, backend="egl")  # type: ignore[arg-type]
    except Exception:  # no EGL: a desktop, perhaps
        return moderngl.create_context(standalone=True)


class ShaderScene:
    """A fragment shader with ``mainImage``, or a complete one with ``main``."""

    def __init__(
        self,
        source: str,
        size: tuple[int, int],
        fps: float = 60,
        pix_fmt: str = "auto",
        depth: int = 3,
    ) -> None:
        """Compile the shader.

        Raises:
            ShaderError: it does not compile, or has no ``mainImage``.
        """
        from aiozerocopy.gl import Readback

        self._fps = fps
        self._context = context = open_context()
        self.name: Any = context.info["GL_RENDERER"]
        try:
            self._program = _compile(context, source)
            self._triangle = context.vertex_array(self._program, [])
            self._target = context.simple_framebuffer(size, 4)
            self._readback = Readback(context, size, pix_fmt, depth=depth)
        except BaseException:
            context.release()
            raise
        self.pix_fmt: str = self._readback.pix_fmt
        self._set("iResolution", (*size, 1.0))
        self._set("iFrameRate", fps)
        self._set("iTimeDelta", 1 / fps)
        now = datetime.datetime.now()
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        seconds = (now - midnight).total_seconds()
        self._set("iDate", (now.year, now.month - 1, now.day, seconds))

    def _set(self, name: str, value: Any) -> None:
        """Set a uniform, unless the shader does not use it and so lacks it."""
        if name in self._program:
            self._program[name].value = value

    def _draw(self, number: int) -> None:
        self._target.use()
        self._set("iTime", number / self._fps)
        self._set("iFrame", number)
        self._triangle.render(vertices=3)

    def new_pool(self, slots: int) -> FramePool:
        """Return a pool whose frames have the shape of the pictures."""
        return FramePool(self._readback.shape, slots=slots)

    async def frames(self, pool: FramePool, count: int) -> AsyncIterator[Frame]:
        """Yield ``count`` frames, from the first; the receiver releases each."""
        async for picture in self.pictures(count):
            with picture:
                frame = await pool.acquire()
                frame.view[:] = picture.view
            yield frame

    async def pictures(self, count: int) -> AsyncIterator[Picture]:
        """Yield ``count`` pictures in the driver's memory.

        Release each of them in this thread.
        """
        drawn = 0
        for _ in range(count):
            while drawn < count and self._readback.free:
                self._draw(drawn)
                await self._readback.put(self._target)
                drawn += 1
            yield await self._readback.next()

    def close(self) -> None:
        self._readback.close()
        self._context.release()


def _compile(context: Any, source: str) -> Any:
    if not re.search(r"\b(mainImage|main)\b", source):
        what = "write void mainImage(out vec4 color, in vec2 position)"
        raise ShaderError(f"the shader has no mainImage(): {what}")
    whole = source if "#version" in source else _BEFORE + source
    if "mainImage" in source and "#version" not in source:
        whole += _AFTER
    try:
        return context.program(vertex_shader=_VERTEX, fragment_shader=whole)
    except Exception as error:
        raise ShaderError(str(error).strip()) from None


class NumpyScene:
    """Moving bands, for machines without OpenGL."""

    def __init__(self, size: tuple[int, int], fps: float = 60) -> None:
        import numpy as np  # (--help works without it)

        width, height = size
        self.name = "NumPy (no OpenGL here)"
        self.pix_fmt = "rgb24"
        self._shape = (height, width, 3)
        self._step = max(1, round(120 / fps))
        y, x = np.mgrid[0:height, 0:width].astype(np.uint8)
        self._layers = [x + y, x - y, x ^ y]

    def new_pool(self, slots: int) -> FramePool:
        return FramePool(self._shape, slots=slots)

    async def frames(self, pool: FramePool, count: int) -> AsyncIterator[Frame]:
        import numpy as np

        for number in range(count):
            frame = await pool.acquire()
            shift = np.uint8(number * self._step & 255)
            for channel, layer in enumerate(self._layers):
                np.add(layer, shift, out=frame.array[:, :, channel])
            yield frame

    def close(self) -> None:
        pass


Scene = ShaderScene | NumpyScene  # frames of one size and pixel format of FFmpeg's


def demo_scene(size: tuple[int, int], fps: float, pix_fmt: str = "auto") -> Scene:
    """Return the demo's shader, or NumPy's bands if OpenGL cannot draw it."""
    try:
        return ShaderScene(_DEMO.read_text(), size, fps, pix_fmt)
    except Exception:  # no moderngl, no driver, or one that is too old
        return NumpyScene(size, fps)
