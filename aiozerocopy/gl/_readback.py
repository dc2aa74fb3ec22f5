"""A ring of pixel-pack buffers: `submit` takes frames, `next` returns pictures."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import moderngl

from aiozerocopy._core.borrows import and_end
from aiozerocopy._core.change import RemoteChange, Turns, in_turn
from aiozerocopy.gl._functions import ContextLost, Functions, GLError, is_released
from aiozerocopy.gl._picture import Fence, Picture, Slot
from aiozerocopy.gl._planes import Format
from aiozerocopy.gl._transfer import Transfer, fastest

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

# Seconds between two looks at a fence.  (With 2 ms at most, llvmpipe gives 3 % fewer
# frames of 1080p.)
FIRST_NAP, LONGEST_NAP = 0.0001, 0.0005


class Readback:
    """Frames of a moderngl context, in memory, in the order of their submission.

    The top row of a picture comes first, as in films; moderngl's own ``read`` begins
    with the lowest.

    ``size`` is (width, height) of every framebuffer, ``pix_fmt`` one of ``rgba``,
    ``rgb24``, ``yuv420p`` and ``nv12``, or ``auto``: rgba or yuv420p, whichever reaches
    a pipe's reader first on this machine; `pix_fmt` then tells which.  YUV has the
    colours of ``matrix`` ("bt709" or "bt601") in the ``color_range`` "limited" or
    "full".

    At most ``depth`` frames are between their submission and the release of their
    picture.  ``mapping`` is "persistent" (pictures lie in memory that ends with the
    context), "copy" (they are copied into memory that outlives it), or "auto":
    persistent if the context supports it.

    It belongs to the thread that makes it.  `close` it, or use it in ``with``.

    Raises:
        ValueError: an impossible size, format, depth or mapping.
        GLError: OpenGL refused; `ContextLost`: the context is lost.
    """

    _closed = True  # until it is complete

    def __init__(
        self,
        context: Any,
        size: tuple[int, int],
        pix_fmt: str = "rgba",
        depth: int = 3,
        *,
        matrix: str = "bt709",
        color_range: str = "limited",
        mapping: str = "auto",
    ) -> None:
        width, height = size
        if depth < 1:
            raise ValueError(f"depth must be at least 1, not {depth}")
        if mapping not in ("auto", "persistent", "copy"):
            raise ValueError(
                f"mapping must be auto, persistent or copy, not {mapping!r}"
            )
        chosen = "rgba" if pix_fmt == "auto" else pix_fmt
        self._format = Format((width, height), chosen, matrix, color_range)
        if not hasattr(context, "mglo"):
            kind = type(context).__name__
            raise TypeError(f"a moderngl.Context is needed, not a {kind}")
        if is_released(context):
            raise ContextLost("the OpenGL context was released")
        if pix_fmt == "auto" and width % 2 == height % 2 == 0:
            chosen = fastest(context, (width, height))
            self._format = Format((width, height), chosen, matrix, color_range)
        self._thread = threading.get_ident()
        self._gl = Functions(context)
        if mapping == "persistent" and not self._gl.has_storage:
            raise ValueError("persistent mapping needs GL 4.4 or ARB_buffer_storage")
        is_mapped = mapping != "copy" and self._gl.has_storage
        self.size: tuple[int, int] = (width, height)
        self.pix_fmt: str = chosen
        self.shape: tuple[int, ...] = self._format.shape  # of a picture as an array
        self.nbytes: int = self._format.nbytes  # of one picture
        self.depth: int = depth
        self.mapping: str = "persistent" if is_mapped else "copy"
        self._submitted: deque[Slot] = deque()
        self._turns = Turns()  # of the calls of `next`
        # A frame was submitted, a slot is free, or this was closed.
        self._change = RemoteChange()
        self._slots: list[Slot] = []
        with self._gl.current():
            self._transfer = Transfer(self._gl, self._format)
            self._gl.forget_errors()
            of_each = self._gl, self.nbytes, is_mapped, self._change
            try:
                for _ in range(depth):
                    self._slots.append(Slot(*of_each))
                self._gl.check("the pixel-pack buffers were made")
            except GLError:
                self._delete_all()
                raise
        self._closed = False

    # ---- properties -------------------------------------------------------------

    @property
    def free(self) -> int:
        """How many frames can be submitted now."""
        return sum(slot.is_idle for slot in self._slots)

    @property
    def ffmpeg_options(self) -> list[str]:
        """The options that FFmpeg needs before ``-i`` to read these pictures."""
        width, height = self.size
        options = ["-f", "rawvideo", "-pix_fmt", self.pix_fmt]
        options += ["-video_size", f"{width}x{height}"]
        if self._format.is_yuv:
            space = {"bt601": "smpte170m"}.get(self._format.matrix, "bt709")
            tv = self._format.color_range == "limited"
            options += ["-colorspace", space, "-color_range", "tv" if tv else "pc"]
            options += ["-chroma_sample_location", "left"]
        return options

    # ---- frames in, pictures out ---------------------------------------------------

    def submit(self, framebuffer: Any) -> None:
        """Queue the reading of a framebuffer as it is now; you may draw to it at once.

        Raises:
            anyio.WouldBlock: all buffers are taken; `wait_room` waits for one.
            ValueError: a framebuffer of another size or context, one that was released,
                or one without colours or with integers.
            GLError: OpenGL refused; `ContextLost`: the context is lost.
            anyio.ClosedResourceError: the readback is closed.
        """
        slot = self._begin(framebuffer)
        # (One line without a call: a signal handler may raise at a new line or a call.)
        slot.is_reading = True; self._submitted += (slot,)  # noqa: E702  # fmt: skip
        self._change.happen()

    async def next(self) -> Picture:
        """Return the oldest submitted frame once it is read; wait for one if needed.

        Cancelled, it loses nothing.  Several tasks get one picture each, in order.
        """
        await self._read_oldest()
        slot = self._submitted[0]
        picture = self._lent(slot)
        # (one line without a call, as in `submit`)
        slot.is_reading = False; del self._submitted[0]; return picture  # noqa: E702  # fmt: skip

    @in_turn
    async def _read_oldest(self) -> None:
        await self._change.wait(lambda: self._closed or bool(self._submitted))
        self._check_usable()
        await self._finish(self._submitted[0])

    async def put(self, framebuffer: Any) -> None:
        """Submit a framebuffer when there is room, without blocking the event loop.

        (`submit` blocks until all is drawn if the driver draws in software.)  Do not
        draw to the framebuffer until this returns.  Raises what `submit` does;
        cancelled, it has submitted nothing.
        """
        await self._ready_for(framebuffer)
        self.submit(framebuffer)

    async def read(self, framebuffer: Any) -> Picture:
        """Submit a framebuffer as `put` does, and wait for its picture.

        Pictures of earlier submissions are left to `next`.  Raises what `submit` does.
        """
        await self._ready_for(framebuffer)
        slot = self._begin(framebuffer)
        return await and_end(partial(self._read, slot), partial(self._end_read, slot))

    async def _read(self, slot: Slot) -> Picture:
        slot.is_reading = True
        await self._finish(slot)
        return self._lent(slot)

    def _end_read(self, slot: Slot) -> None:
        slot.is_reading = False  # (the GPU finishes a cancelled frame before the next)
        self._change.happen()

    async def wait_room(self) -> None:
        """Wait until a frame can be submitted."""
        await self._change.wait(lambda: self._closed or self.free > 0)
        self._check_usable()

    def _begin(self, framebuffer: Any) -> Slot:
        self._check_framebuffer(framebuffer)
        slot = next((slot for slot in self._slots if slot.is_idle), None)
        if slot is None:
            raise anyio.WouldBlock
        with self._gl.current():
            slot.begin(lambda: self._transfer.read(framebuffer))
        return slot

    async def _finish(self, slot: Slot) -> None:
        """Wait until the frame is in memory."""
        await self._until(slot.poll)
        await slot.fetch(self._check_usable)

    def _lent(self, slot: Slot) -> Picture:
        return Picture(slot.lend(), self.shape, self.pix_fmt)

    async def _ready_for(self, framebuffer: Any) -> None:
        """Wait for room; with a software renderer, also until all is drawn.

        (A GPU queues reads, but in software a read blocks until all is drawn.)
        """
        self._check_framebuffer(framebuffer)
        if not self._gl.draws_in_software:
            await anyio.lowlevel.checkpoint()
        else:
            with self._gl.current():
                fence = Fence(self._gl)
            try:
                await self._until(fence.poll)
            finally:
                with contextlib.suppress(ContextLost), self._gl.current():
                    fence.drop()
        await self.wait_room()

    async def _until(self, passed: Callable[[], bool]) -> None:
        """Poll ``passed`` until it is true, while other tasks run."""
        await anyio.lowlevel.checkpoint()
        nap = FIRST_NAP
        while True:
            self._check_usable()
            with self._gl.current():
                if passed():
                    return
            await anyio.sleep(nap)
            nap = min(2 * nap, LONGEST_NAP)

    # ---- checks ----------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._closed:
            raise anyio.ClosedResourceError("the readback is closed")
        self._check_thread()
        if is_released(self._gl.context):
            raise ContextLost("the OpenGL context was released")

    def _check_thread(self) -> None:
        if threading.get_ident() != self._thread:
            raise RuntimeError("a readback belongs to the thread that made it")

    def _check_framebuffer(self, framebuffer: Any) -> None:
        self._check_usable()
        if not isinstance(framebuffer, moderngl.Framebuffer):
            kind = type(framebuffer).__name__
            raise TypeError(f"a moderngl.Framebuffer is needed, not a {kind}")
        if is_released(framebuffer):
            raise ValueError("the framebuffer was released")
        if framebuffer.ctx is not self._gl.context:
            raise ValueError("the framebuffer belongs to another context")
        if framebuffer.size != self.size:
            raise ValueError(
                "the framebuffer is {}x{}, and the readback {}x{}".format(
                    *framebuffer.size, *self.size
                )
            )
        _check_colors(framebuffer.color_attachments)

    # ---- the end -----------------------------------------------------------------

    def close(self) -> None:
        """Delete the buffers, each as soon as no picture uses it.

        Tasks that wait get anyio.ClosedResourceError.  Idempotent.
        """
        if self._closed:
            return
        self._check_thread()
        self._closed = True
        with contextlib.suppress(ContextLost), self._gl.current():
            self._delete_all()
        self._change.happen()

    def _delete_all(self) -> None:
        for slot in self._slots:
            slot.retire()
        self._transfer.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1)

    def __repr__(self) -> str:
        width, height = self.size
        state = "closed" if self._closed else f"{self.free} of {self.depth} free"
        return f"<Readback {self.pix_fmt} {width}x{height}, {self.mapping}, {state}>"


def _check_colors(attachments: Any) -> None:
    if attachments is None:  # of a window, or a framebuffer that moderngl has found
        return
    if not attachments:
        raise ValueError("the framebuffer has no colour attachment")
    first = attachments[0]
    if first.dtype.startswith(("i", "u")):
        raise ValueError(f"colours of dtype {first.dtype} are not between 0 and 1")
    if first.components < 3:
        raise ValueError(
            f"3 or 4 components a pixel are needed, not {first.components}"
        )
