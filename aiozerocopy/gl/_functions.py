"""OpenGL by ctypes: the functions that moderngl lacks, the context, and the errors.

GL calls go to the thread's current context, not to that of the object they are made
through.  In a program with several contexts, a call in the wrong one may fail, or
delete a buffer of another context.
"""

from __future__ import annotations

import contextlib
import ctypes
from ctypes import c_char_p, c_int, c_ssize_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any

import moderngl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

PIXEL_PACK_BUFFER, BUFFER_MAPPED = 0x88EB, 0x88BC
STREAM_READ = 0x88E1
MAP_READ, MAP_PERSISTENT, MAP_COHERENT, CLIENT_STORAGE = 0x1, 0x40, 0x80, 0x200
SYNC_GPU_COMMANDS_COMPLETE = 0x9117
ALREADY_SIGNALED, TIMEOUT_EXPIRED, CONDITION_SATISFIED = 0x911A, 0x911B, 0x911C
READ_FRAMEBUFFER = 0x8CA8
COLOR_ATTACHMENT0, COLOR_BUFFER, NEAREST = 0x8CE0, 0x4000, 0x2600
UNSIGNED_BYTE = 0x1401
RED, RG, RGB, RGBA = 0x1903, 0x8227, 0x1907, 0x1908
PACK_ROW_LENGTH, PACK_SKIP_ROWS, PACK_SKIP_PIXELS = 0xD02, 0xD03, 0xD04
PACK_ALIGNMENT, PACK_INVERT_MESA = 0xD05, 0x8758
TEXTURE_MIN_FILTER, TEXTURE_MAG_FILTER = 0x2801, 0x2800
COLOR_ENCODING, SRGB, FRAMEBUFFER_SRGB = 0x8210, 0x8C40, 0x8DB9
CONTEXT_LOST, RENDERER = 0x507, 0x1F01

# In the names of renderers without a GPU: of Mesa, Google and Apple.
SOFTWARE = ("llvmpipe", "softpipe", "SwiftShader", "Software Renderer")

ERRORS = {
    0x500: "GL_INVALID_ENUM",
    0x501: "GL_INVALID_VALUE",
    0x502: "GL_INVALID_OPERATION",
    0x505: "GL_OUT_OF_MEMORY",
    0x506: "GL_INVALID_FRAMEBUFFER_OPERATION",
    CONTEXT_LOST: "GL_CONTEXT_LOST",
}

SIGNATURES: dict[str, tuple[Any, ...]] = {  # the result, then the arguments
    "BindBuffer": (None, c_uint, c_uint),
    "BindFramebuffer": (None, c_uint, c_uint),
    "BindSampler": (None, c_uint, c_uint),
    "BlitFramebuffer": (None, *[c_int] * 8, c_uint, c_uint),
    "BufferData": (None, c_uint, c_ssize_t, c_void_p, c_uint),
    "BufferStorage": (None, c_uint, c_ssize_t, c_void_p, c_uint),
    "ClientWaitSync": (c_uint, c_void_p, c_uint, c_uint64),
    "DeleteBuffers": (None, c_int, c_void_p),
    "DeleteSamplers": (None, c_int, c_void_p),
    "DeleteSync": (None, c_void_p),
    "Disable": (None, c_uint),
    "Enable": (None, c_uint),
    "FenceSync": (c_void_p, c_uint, c_uint),
    "Flush": (None,),
    "GenBuffers": (None, c_int, c_void_p),
    "GenSamplers": (None, c_int, c_void_p),
    "GetBufferParameteriv": (None, c_uint, c_uint, c_void_p),
    "GetError": (c_uint,),
    "GetFramebufferAttachmentParameteriv": (None, c_uint, c_uint, c_uint, c_void_p),
    "GetGraphicsResetStatus": (c_uint,),
    "GetString": (c_char_p, c_uint),
    "IsEnabled": (c_ubyte, c_uint),
    "MapBufferRange": (c_void_p, c_uint, c_ssize_t, c_ssize_t, c_uint),
    "PixelStorei": (None, c_uint, c_int),
    "ReadBuffer": (None, c_uint),
    "ReadPixels": (None, *[c_int] * 4, c_uint, c_uint, c_void_p),
    "SamplerParameteri": (None, c_uint, c_uint, c_int),
    "UnmapBuffer": (c_uint, c_uint),
}


class GLError(RuntimeError):
    """OpenGL refused a call."""


class ContextLost(GLError):
    """The context is lost: it was released, or the GPU was reset or unplugged."""


class Functions:
    """A context's raw functions, as attributes without the prefix ``gl``."""

    def __init__(self, context: Any) -> None:
        self.context = context
        extensions = context.extensions
        version = context.version_code
        self.has_storage = version >= 440 or "GL_ARB_buffer_storage" in extensions
        self.has_reset_status = version >= 450 or "GL_KHR_robustness" in extensions
        self.has_invert = "GL_MESA_pack_invert" in extensions
        self._switch = ContextSwitch(context)
        with self._switch.current():
            for name, signature in SIGNATURES.items():
                setattr(self, name, _load(context, "gl" + name, signature))
            renderer = (self.GetString(RENDERER) or b"").decode(errors="replace")
        self.draws_in_software = any(name in renderer for name in SOFTWARE)

    def __getattr__(self, name: str) -> Any:  # set in __init__; this is for mypy
        raise AttributeError(name)

    def current(self) -> AbstractContextManager[object]:
        """Make our context the thread's current one, for a block."""
        if is_released(self.context):
            raise ContextLost("the OpenGL context was released")
        return self._switch.current()

    def forget_errors(self) -> None:
        """Drop errors of earlier calls that were not ours."""
        for _ in range(8):  # a lost context never runs out of them
            if not self.GetError():
                return

    def check(self, doing: str) -> None:
        """Raise the errors since the last check.

        Raises:
            ContextLost: the context is lost.
            GLError: any other error.
        """
        codes: list[int] = []
        while len(codes) < 8 and (code := self.GetError()):
            codes.append(code)
        lost = self.has_reset_status and self.GetGraphicsResetStatus()
        if lost or CONTEXT_LOST in codes:
            raise ContextLost(f"the OpenGL context was lost while {doing}")
        if codes:
            names = ", ".join(ERRORS.get(code, hex(code)) for code in codes)
            raise GLError(f"{names} while {doing}")


def _load(context: Any, name: str, signature: tuple[Any, ...]) -> Any:
    try:
        address = context.mglo._context.load(name)
    except AttributeError as error:
        raise GLError(
            "this version of moderngl does not give the addresses of GL functions"
        ) from error
    return ctypes.CFUNCTYPE(*signature)(address) if address else None


# ---- the current context ----------------------------------------------------------

EGL_DRAW, EGL_READ = 0x3059, 0x305A

PLATFORMS = (
    ("libGL.so.1", "glXGetCurrentContext"),
    ("/System/Library/Frameworks/OpenGL.framework/OpenGL", "CGLGetCurrentContext"),
)


class ContextSwitch:
    """Makes one moderngl context the current one, for a block."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._egl = _Egl.find()
        self._ask_current: Callable[[], int | None] = lambda: None
        self._is_egl = False
        with self._egl.restored() if self._egl else contextlib.nullcontext():
            context.__enter__()
            self._own = self._find()
        if not self._is_egl:
            context.__exit__(None, None, None)

    def _find(self) -> int | None:
        """Find the platform on which the context was made: there it is current now."""
        queries = [self._egl.query] if self._egl else []
        queries += filter(None, (_function(*each) for each in PLATFORMS))
        for query in queries:
            own: int | None = query()
            if own:
                self._ask_current = query
                self._is_egl = self._egl is not None and query is self._egl.query
                return own
        return None  # no platform knows it: the program must make it current

    def current(self) -> AbstractContextManager[object]:
        """Make the context current for a block; then restore the one before.

        Costs one call of 1 us if it is current already.
        """
        if self._ask_current() == self._own:
            return contextlib.nullcontext()
        return self._made_current()

    @contextlib.contextmanager
    def _made_current(self) -> Iterator[None]:
        if not (self._egl and self._is_egl):
            with self._context:
                yield
            return
        with self._egl.restored():  # on EGL moderngl's __exit__ leaves no context
            self._context.__enter__()
            yield


class _Egl:
    def __init__(self, library: ctypes.CDLL) -> None:
        self.query = library.eglGetCurrentContext
        self._display = library.eglGetCurrentDisplay
        self._surface = library.eglGetCurrentSurface
        self._make = library.eglMakeCurrent
        for function in (self.query, self._display, self._surface):
            function.restype = c_void_p
        self._surface.argtypes = (c_int,)
        self._make.argtypes = (c_void_p,) * 4
        self._make.restype = c_uint

    @classmethod
    def find(cls) -> _Egl | None:
        try:
            return cls(ctypes.CDLL("libEGL.so.1"))
        except (OSError, AttributeError):
            return None

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Restore the current context after the block."""
        before = self.query()
        display = self._display()
        surfaces = self._surface(EGL_DRAW), self._surface(EGL_READ)
        try:
            yield
        finally:
            if before and self.query() != before:
                self._make(display, *surfaces, before)


def _function(library: str, name: str) -> Any:
    try:
        function = getattr(ctypes.CDLL(library), name)
    except (OSError, AttributeError):
        return None
    function.restype = c_void_p
    return function


def is_released(owner: Any) -> bool:
    return isinstance(owner.mglo, moderngl.InvalidObject)
