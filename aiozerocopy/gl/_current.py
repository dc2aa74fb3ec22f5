"""Which context is the thread's current one, and how to borrow that place.

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

OTHERS = (
    ("libGL.so.1", "glXGetCurrentContext"),
    ("opengl32", "wglGetCurrentContext"),
    ("/System/Library/Frameworks/OpenGL.framework/OpenGL", "CGLGetCurrentContext"),
)


class Place:
    """The place of the current context, for one moderngl context."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self._egl = _Egl.find()
        self._who: Callable[[], int | None] = lambda: None
        self._via_egl = False
        with self._egl.kept() if self._egl else contextlib.nullcontext():
            context.__enter__()
            self._mine = self._find()
        if not self._via_egl:
            context.__exit__(None, None, None)

    def _find(self) -> int | None:
        """See who tells that the context is current: that is how it was made."""
        whos = [self._egl.who] if self._egl else []
        whos += filter(None, (_function(*each) for each in OTHERS))
        for who in whos:
            mine: int | None = who()
            if mine:
                self._who = who
                self._via_egl = self._egl is not None and who is self._egl.who
                return mine
        return None  # nobody knows: the program must take care

    def borrow(self) -> AbstractContextManager[object]:
        """A block in which the context is current; the one before it is so afterwards.

        Costs one call of 1 us where it is current already.
        """
        if self._who() == self._mine:
            return contextlib.nullcontext()
        return self._switch()

    @contextlib.contextmanager
    def _switch(self) -> Iterator[None]:
        if not (self._egl and self._via_egl):
            with self._context:
                yield
            return
        with self._egl.kept():  # moderngl's __exit__ would leave none on EGL
            self._context.__enter__()
            yield


class _Egl:
    def __init__(self, library: ctypes.CDLL) -> None:
        self.who = library.eglGetCurrentContext
        self._display = library.eglGetCurrentDisplay
        self._surface = library.eglGetCurrentSurface
        self._make = library.eglMakeCurrent
        for function in (self.who, self._display, self._surface):
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
    def kept(self) -> Iterator[None]:
        """What is made current in the block gives way again to what was so before."""
        before = self.who()
        display = self._display()
        surfaces = self._surface(EGL_DRAW), self._surface(EGL_READ)
        try:
            yield
        finally:
            if before and self.who() != before:
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
