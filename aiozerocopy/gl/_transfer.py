"""The transfer of a framebuffer into a pixel-pack buffer, and its speed."""

from __future__ import annotations

import contextlib
import ctypes
import time
from typing import TYPE_CHECKING, Any

import moderngl

from aiozerocopy._core.change import RemoteChange
from aiozerocopy.gl import _functions as gl
from aiozerocopy.gl._functions import Functions
from aiozerocopy.gl._picture import Slot
from aiozerocopy.gl._planes import VERTEX_SHADER, Format, Pass

if TYPE_CHECKING:
    from collections.abc import Iterator

# The time to send a byte to another process.
PIPE_SECONDS_PER_BYTE = 0.5e-9
_ROUNDS = 4  # for each format that is measured

READ = {1: gl.RED, 2: gl.RG, 3: gl.RGB, 4: gl.RGBA}


class _Draw:
    """A pass with its program, and the textures that it draws to."""

    def __init__(self, context: Any, picture: Format, draw: Pass, unit: int) -> None:
        self.shader_pass = draw
        self.program = context.program(VERTEX_SHADER, picture.fragment_shader(draw))
        self.program["source"] = unit
        self.triangle = context.vertex_array(self.program, [])
        self.planes = [
            context.texture(draw.size, draw.components) for _ in range(draw.planes)
        ]
        self.target = context.framebuffer(self.planes)
        # At its end a scope binds the framebuffer that was bound when it was made.
        self.target.use()
        self.scope = context.scope(self.target, moderngl.NOTHING)

    def release(self) -> None:
        for each in (self.scope, self.target, *self.planes, self.triangle):
            each.release()
        self.program.release()


class Transfer:
    """Brings a framebuffer's pixels, top row first, into the bound pack buffer.

    On Mesa RGB is read as it is, and the driver flips it; all else is drawn once more
    by a shader that flips and converts.  Afterwards moderngl's framebuffer, viewport,
    flags and wireframe are as before.  Its default texture unit is used.
    """

    def __init__(self, functions: Functions, picture: Format) -> None:
        self._gl = functions
        self._context = context = functions.context
        self._picture = picture
        self._unit = context.default_texture_unit
        self._resolved: Any = None
        # With this sampler a texture's own filters and mipmaps do not matter.
        self._sampler = ctypes.c_uint()
        functions.GenSamplers(1, ctypes.byref(self._sampler))
        for name in (gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER):
            functions.SamplerParameteri(self._sampler, name, gl.NEAREST)
        self._neutral_texture = context.texture((1, 1), 4)
        self._neutral = context.framebuffer([self._neutral_texture])
        self._draws: list[_Draw] | None = None
        if picture.is_yuv or not functions.has_invert:
            with self._state_restored():
                self._ready_draws()  # compile now, not at the first frame

    def release(self) -> None:
        for draw in self._draws or ():
            draw.release()
        for each in self._resolved or ():
            each.release()
        self._gl.DeleteSamplers(1, ctypes.byref(self._sampler))
        self._neutral.release()
        self._neutral_texture.release()
        self._draws = self._resolved = None

    def read(self, framebuffer: Any) -> None:
        """Queue the GL calls for one frame, without waiting for any."""
        with self._state_restored():
            for name in (gl.PACK_ROW_LENGTH, gl.PACK_SKIP_ROWS, gl.PACK_SKIP_PIXELS):
                self._gl.PixelStorei(name, 0)
            self._gl.PixelStorei(gl.PACK_ALIGNMENT, 1)
            if self._is_direct(framebuffer):
                self._read_direct(framebuffer)
            else:
                self._read_drawn(framebuffer)
            self._gl.check("a frame was read back")

    def _is_direct(self, framebuffer: Any) -> bool:
        """Can the driver give the pixels in the right format and order by itself?"""
        flips = self._gl.has_invert and not framebuffer.samples
        return flips and not self._picture.is_yuv

    @contextlib.contextmanager
    def _state_restored(self) -> Iterator[None]:
        context = self._context
        known, bound = context.fbo, context.mglo.fbo
        wireframe = context.wireframe
        # moderngl often binds the last framebuffer again, which may be released by now.
        self._neutral.use()
        self._gl.forget_errors()
        try:
            if wireframe:
                context.wireframe = False
            yield
        finally:
            if wireframe:
                context.wireframe = True
            bound.use()
            context.fbo = known
            self._gl.forget_errors()

    def _read_direct(self, framebuffer: Any) -> None:
        self._bind(gl.READ_FRAMEBUFFER, framebuffer)
        self._gl.PixelStorei(gl.PACK_INVERT_MESA, 1)
        self._read_pixels(self._picture.size, self._picture.channels, 0)
        self._gl.PixelStorei(gl.PACK_INVERT_MESA, 0)

    def _read_drawn(self, framebuffer: Any) -> None:
        source = self._source(framebuffer)
        offset = 0
        for draw in self._ready_draws():
            with draw.scope:
                source.use(self._unit)
                self._gl.BindSampler(self._unit, self._sampler)
                draw.triangle.render(moderngl.TRIANGLES, vertices=3)
                self._gl.BindSampler(self._unit, 0)
                for plane in range(draw.shader_pass.planes):
                    self._gl.ReadBuffer(gl.COLOR_ATTACHMENT0 + plane)
                    components = draw.shader_pass.kept or draw.shader_pass.components
                    self._read_pixels(draw.shader_pass.size, components, offset)
                    offset += draw.shader_pass.nbytes

    def _ready_draws(self) -> list[_Draw]:
        if self._draws is None:
            self._draws = [
                _Draw(self._context, self._picture, each, self._unit)
                for each in self._picture.passes()
            ]
        return self._draws

    def _read_pixels(self, size: tuple[int, int], components: int, offset: int) -> None:
        self._gl.ReadPixels(0, 0, *size, READ[components], gl.UNSIGNED_BYTE, offset)

    def _source(self, framebuffer: Any) -> Any:
        """Return a texture to sample: the framebuffer's own if it can be, or a copy."""
        self._bind(gl.READ_FRAMEBUFFER, framebuffer)
        first = (framebuffer.color_attachments or [None])[0]
        if isinstance(first, moderngl.Texture) and self._reads_the_same(first):
            return first
        return self._copy_of(framebuffer)

    def _reads_the_same(self, texture: Any) -> bool:
        """Does a shader sample the values that ReadPixels would return?"""
        if texture.samples or texture.dtype != "f1" or texture.swizzle != "RGBA":
            return False
        encoding = ctypes.c_int()
        self._gl.GetFramebufferAttachmentParameteriv(
            gl.READ_FRAMEBUFFER,
            gl.COLOR_ATTACHMENT0,
            gl.COLOR_ENCODING,
            ctypes.byref(encoding),
        )
        return encoding.value != gl.SRGB

    def _copy_of(self, framebuffer: Any) -> Any:
        if self._resolved is None:
            copy = self._context.texture(self._picture.size, 4)
            self._resolved = copy, self._context.framebuffer([copy])
        texture, target = self._resolved
        target.use()  # no scissor, no colour mask
        self._bind(gl.READ_FRAMEBUFFER, framebuffer)
        decodes = self._gl.IsEnabled(gl.FRAMEBUFFER_SRGB)
        self._gl.Disable(gl.FRAMEBUFFER_SRGB)
        corners = (0, 0, *self._picture.size)
        self._gl.BlitFramebuffer(*corners, *corners, gl.COLOR_BUFFER, gl.NEAREST)
        if decodes:
            self._gl.Enable(gl.FRAMEBUFFER_SRGB)
        return texture

    def _bind(self, target: int, framebuffer: Any) -> None:
        self._gl.BindFramebuffer(target, framebuffer.glo)
        if framebuffer.glo:  # a window's framebuffer has no attachments
            self._gl.ReadBuffer(gl.COLOR_ATTACHMENT0)


# ---- measuring which pixel format reaches a pipe's reader first ----------------------


def fastest(context: Any, size: tuple[int, int]) -> str:
    """Return yuv420p if converting is quicker than sending what it saves, else rgba.

    It blocks for some tens of milliseconds, while it measures.
    """
    functions = Functions(context)

    def seconds(pix_fmt: str) -> float:
        layout = Format(size, pix_fmt)
        sending = layout.nbytes * PIPE_SECONDS_PER_BYTE
        return sending + min(_rounds(functions, blank, layout))

    with functions.current():
        texture = context.texture(size, 4)
        blank = context.framebuffer([texture])
        try:
            return min("rgba", "yuv420p", key=seconds)
        finally:
            blank.release()
            texture.release()


def _rounds(functions: Functions, blank: Any, layout: Format) -> Iterator[float]:
    """Yield the seconds from submission to picture, for each round."""
    transfer = Transfer(functions, layout)
    functions.forget_errors()
    slot = Slot(functions, layout.nbytes, functions.has_storage, RemoteChange())
    try:
        functions.check("a pixel-pack buffer was made")
        for _ in range(_ROUNDS):  # the first one compiles
            functions.context.finish()
            start = time.perf_counter()
            slot.begin(lambda: transfer.read(blank))
            while not slot.poll():
                pass
            yield time.perf_counter() - start
    finally:
        slot.delete()
        transfer.release()
