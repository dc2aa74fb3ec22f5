"""Pictures to read back, with a real OpenGL or with one that the test controls."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import moderngl
import numpy as np
from numpy.typing import NDArray

from aiozerocopy.gl import _functions as gl

# Mesa starts threads for its disk cache at any time, and a test for leaks would blame
# us for them.
os.environ["MESA_SHADER_CACHE_DISABLE"] = "true"

# ---- real contexts -----------------------------------------------------------------


def new_context() -> Any:
    create: Any = moderngl.create_context  # its hints say that backend is a dict
    return create(standalone=True, backend="egl")


@contextlib.contextmanager
def released(*owners: Any) -> Iterator[None]:
    try:
        yield
    finally:
        for owner in owners:
            owner.release()


@contextlib.contextmanager
def painted(context: Any, picture: NDArray[np.uint8]) -> Iterator[Any]:
    """A framebuffer that shows the picture, whose first row is at the top."""
    height, width, components = picture.shape
    texture = context.texture((width, height), components, picture[::-1].tobytes())
    framebuffer = context.framebuffer([texture])
    with released(framebuffer, texture):
        yield framebuffer


def smooth(width: int, height: int) -> NDArray[np.uint8]:
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    return (np.dstack([x, y, (x + y) / 2, 1 - x]) * 255).astype(np.uint8)


def noise(width: int, height: int) -> NDArray[np.uint8]:
    random = np.random.default_rng(width * height)
    return random.integers(0, 256, (height, width, 4), np.uint8)


# ---- an OpenGL whose GPU is as slow as the test wants --------------------------------

SCREEN = 0  # the framebuffer's number among the buffers


class SlowGL:
    """The part of OpenGL that `Readback` needs.  The test decides when fences pass.

    Each read fills the buffer with the number of the frame.  Assertions: no call would
    wait, no buffer is mapped or read into again before its fence, nor while it is
    mapped for a copy, and no fence is polled once it is deleted.
    """

    has_storage = True
    draws_in_software = False

    def __init__(self, context: Any) -> None:
        self.context = context
        self.memory: dict[int, Any] = {}
        self.deleted: list[int] = []
        self.fences: dict[int, int] = {}  # fence -> its buffer
        self.flushed = 0  # the last fence that the GPU knows
        self.dropped: list[int] = []
        self.reading: set[int] = set()
        self.mapped: set[int] = set()  # those that are mapped for a copy
        self.polls = 0
        self.maps = 0
        self.bound = 0
        self.read_last = 0
        self.frames = 0
        self.fault: Exception | None = None

    def current(self) -> AbstractContextManager[object]:
        return nullcontext()

    def forget_errors(self) -> None: ...

    def check(self, doing: str) -> None:
        fault, self.fault = self.fault, None
        if fault:
            raise fault

    def GenBuffers(self, _count: int, name: Any) -> None:
        name._obj.value = len(self.memory) + 1

    def BindBuffer(self, _target: int, name: Any) -> None:
        self.bound = getattr(name, "value", name)

    def BufferStorage(self, _target: int, nbytes: int, *_: Any) -> None:
        self.memory[self.bound] = (ctypes.c_ubyte * nbytes)()

    BufferData = BufferStorage

    def MapBufferRange(self, _target: int, _start: int, _size: int, flags: int) -> int:
        assert self.bound not in self.reading, "this map would wait for the GPU"
        assert self.bound not in self.mapped, "GL_INVALID_OPERATION"
        self.maps += 1
        if flags == gl.MAP_READ:
            self.mapped.add(self.bound)
        return ctypes.addressof(self.memory[self.bound])

    def GetBufferParameteriv(self, _target: int, name: int, value: Any) -> None:
        assert name == gl.BUFFER_MAPPED
        value._obj.value = self.bound in self.mapped

    def UnmapBuffer(self, _target: int) -> None:
        self.mapped.remove(self.bound)

    def DeleteBuffers(self, _count: int, name: Any) -> None:
        self.deleted.append(name._obj.value)

    def FenceSync(self, *_: int) -> int:
        fence = len(self.fences) + 1
        self.fences[fence] = self.read_last
        return fence

    def Flush(self) -> None:
        self.flushed = len(self.fences)

    def ClientWaitSync(self, fence: int, _flags: int, timeout: int) -> int:
        assert timeout == 0, "this would wait for the GPU"
        assert fence <= self.flushed, "this fence might never pass"
        assert fence not in self.dropped, "GL_INVALID_VALUE"
        self.polls += 1
        busy = self.fences[fence] in self.reading
        return gl.TIMEOUT_EXPIRED if busy else gl.ALREADY_SIGNALED

    def DeleteSync(self, fence: int) -> None:
        self.dropped.append(fence)

    def read(self, _framebuffer: Any) -> None:
        """Read a frame, as `Transfer` would."""
        self.check("a frame was read back")
        assert not self.reading & {self.bound, SCREEN}, "this read would wait"
        assert self.bound not in self.mapped, "GL_INVALID_OPERATION"
        self.frames += 1
        self.read_last = self.bound
        self.reading.add(self.bound)
        ctypes.memset(self.memory[self.bound], self.frames, 8)

    def release(self) -> None: ...

    def draw(self) -> None:
        """Draw in software: a read would wait for the end of this."""
        self.draws_in_software = True
        self.read_last = SCREEN
        self.reading.add(SCREEN)

    def finish(self) -> None:
        """Let the GPU finish all its work."""
        self.reading.clear()


def slow_framebuffer(context: Any, size: tuple[int, int]) -> Any:
    framebuffer: Any = moderngl.Framebuffer.__new__(moderngl.Framebuffer)
    framebuffer.mglo, framebuffer.ctx = None, context
    framebuffer._size, framebuffer._color_attachments = size, None
    framebuffer._is_reference = True
    return framebuffer


def install(monkeypatch: Any, module: Any) -> Callable[[], SlowGL]:
    """Replace OpenGL by `SlowGL`; return a function that returns the latest one."""
    made: list[SlowGL] = []

    def functions(context: Any) -> SlowGL:
        made.append(SlowGL(context))
        return made[-1]

    monkeypatch.setattr(module, "Functions", functions)
    monkeypatch.setattr(module, "Transfer", lambda functions, _format: functions)
    return lambda: made[-1]


def slow_context() -> Any:
    return SimpleNamespace(mglo=None)
