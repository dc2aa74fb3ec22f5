"""Which context is the thread's current one, and how another is for a while.

GL calls go to the current context, whatever object they are made through.  A program
with several contexts switches between them; a fence polled in the wrong one is an
error, and a buffer deleted there is somebody else's.
"""

from __future__ import annotations

import contextlib
import ctypes
from ctypes import c_int, c_uint, c_void_p
from typing import TYPE_CHECKING, Any

import moderngl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

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
        """Find the platform that knows the context as current: it was made there."""
        queries = [self._egl.query] if self._egl else []
        queries += filter(None, (_function(*each) for each in PLATFORMS))
        for query in queries:
            own: int | None = query()
            if own:
                self._ask_current = query
                self._is_egl = self._egl is not None and query is self._egl.query
                return own
        return None  # no platform knows it: the program must see to it

    def current(self) -> AbstractContextManager[object]:
        """A block in which the context is current; then the one before it is again.

        Costs one call of 1 us where it is current already.
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
        with self._egl.restored():  # moderngl's __exit__ would leave none on EGL
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
    """Was this moderngl object, or context, released?"""
    return isinstance(owner.mglo, moderngl.InvalidObject)
