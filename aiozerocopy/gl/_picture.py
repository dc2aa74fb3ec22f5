"""A picture, and the pixel-pack buffer whose memory it lends, with its fence."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from typing import TYPE_CHECKING, Any, ClassVar

import anyio.lowlevel

from aiozerocopy._core.leases import Lease
from aiozerocopy._core.memory import Claim, is_over
from aiozerocopy.gl import _functions as gl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aiozerocopy._core.change import RemoteChange
    from aiozerocopy.gl._functions import Functions

PERSISTENT = gl.MAP_READ | gl.MAP_PERSISTENT | gl.MAP_COHERENT
PIECE = 1 << 20  # bytes copied between two checkpoints: 0.1 to 0.3 ms


class Picture(Lease):
    """One frame in memory, read-only, top row first, YUV's planes below each other.

    Its memory is used again only after `release`, and only when no view, array or send
    of it is left.
    """

    KIND: ClassVar[str] = "picture"
    shape: tuple[int, ...]
    dtype: str

    def __init__(self, view: memoryview, shape: tuple[int, ...], pix_fmt: str) -> None:
        super().__init__(view)
        self.shape = shape
        self.pix_fmt = pix_fmt
        self.nbytes: int = view.nbytes
        self.dtype = "uint8"

    def release(self) -> None:
        """Release the picture; `view` cannot be used afterwards.  Idempotent."""
        view = self._view
        super().release()
        if view is not None:
            with contextlib.suppress(BufferError):  # an array or a send still has it
                view.release()

    def __repr__(self) -> str:
        state = "released" if self._view is None else f"{self.nbytes:,} bytes"
        return f"<Picture {self.pix_fmt} {self.shape}, {state}>"


class Fence:
    """A fence in OpenGL's queue: passed once all commands before it are done.

    It is polled, never waited for.  The context must be current in all calls.
    """

    def __init__(self, functions: Functions) -> None:
        self._gl = functions
        self._sync: int | None = functions.FenceSync(gl.SYNC_GPU_COMMANDS_COMPLETE, 0)
        if not self._sync:
            functions.check("a fence was made")
            raise gl.GLError("no fence could be made")
        functions.Flush()  # polling does not flush, and the fence might never pass

    def poll(self) -> bool:
        """Has the fence been passed?"""
        if self._sync is None:
            return True
        state = self._gl.ClientWaitSync(self._sync, 0, 0)
        if state == gl.TIMEOUT_EXPIRED:
            return False
        if state not in (gl.ALREADY_SIGNALED, gl.CONDITION_SATISFIED):
            self._gl.check("a fence was polled")
            raise gl.GLError(f"a fence cannot be waited for: {state:#x}")
        self.drop()
        return True

    def drop(self) -> None:
        """Delete the fence.  Idempotent."""
        if sync := self._sync:
            # (One line without a call in between: a signal handler may raise at a new
            # line or after a call, and a deleted fence must not be polled.)
            self._sync = None; self._gl.DeleteSync(sync)  # noqa: E702  # fmt: skip


class Slot:
    """One pixel-pack buffer, its fence, and the lease of its memory."""

    def __init__(
        self, functions: Functions, nbytes: int, persistent: bool, change: RemoteChange
    ) -> None:
        self._gl = functions
        self._change = weakref.ref(change)  # happens when its lease has ended
        self._thread = threading.get_ident()
        self._is_retired = False
        self.nbytes = nbytes
        self.is_reading = False  # set by its user, until the picture is lent
        self._fence: Fence | None = None
        self._lease: int | None = None  # the key of the last lease
        self._memory: Any = None  # our own, unless the buffer stays mapped
        self._name = ctypes.c_uint()
        functions.GenBuffers(1, ctypes.byref(self._name))
        with self._bound():
            if persistent:
                flags = PERSISTENT | gl.CLIENT_STORAGE
                functions.BufferStorage(gl.PIXEL_PACK_BUFFER, nbytes, None, flags)
                self._address = self._map(PERSISTENT)
            else:
                functions.BufferData(gl.PIXEL_PACK_BUFFER, nbytes, None, gl.STREAM_READ)
                self._memory = (ctypes.c_ubyte * nbytes)()
                self._address = ctypes.addressof(self._memory)

    @contextlib.contextmanager
    def _bound(self) -> Iterator[None]:
        try:
            self._gl.BindBuffer(gl.PIXEL_PACK_BUFFER, self._name)
            yield
        finally:
            self._gl.BindBuffer(gl.PIXEL_PACK_BUFFER, 0)

    def _map(self, flags: int) -> int:
        address: int | None = self._gl.MapBufferRange(
            gl.PIXEL_PACK_BUFFER, 0, self.nbytes, flags
        )
        if not address:
            self._gl.check("mapping a pixel-pack buffer")
            raise gl.GLError("a pixel-pack buffer could not be mapped")
        return address

    def _unmap(self) -> None:
        """End the mapping of `fetch`, if there is one; the buffer must be bound."""
        if self._memory is not None:
            is_mapped = ctypes.c_int()
            self._gl.GetBufferParameteriv(
                gl.PIXEL_PACK_BUFFER, gl.BUFFER_MAPPED, ctypes.byref(is_mapped)
            )
            if is_mapped:
                self._gl.UnmapBuffer(gl.PIXEL_PACK_BUFFER)

    @property
    def is_leased(self) -> bool:
        return self._lease is not None and not is_over(self._lease)

    @property
    def is_idle(self) -> bool:
        return not self.is_reading and not self.is_leased

    def begin(self, queue_reads: Callable[[], None]) -> None:
        """Queue the reads into the buffer, and a fence behind them."""
        self._drop_fence()  # of a frame that was given up, perhaps
        with self._bound():
            self._unmap()  # (an exception of a signal handler may have left it mapped)
            queue_reads()
        self._fence = Fence(self._gl)

    def poll(self) -> bool:
        """Has the GPU filled the buffer?  Never waits."""
        return self._fence is None or self._fence.poll()

    def _drop_fence(self) -> None:
        if self._fence is not None:
            self._fence.drop()
            self._fence = None

    async def fetch(self, check: Callable[[], None]) -> None:
        """Copy the bytes into our own memory, unless the buffer stays mapped.

        ``check`` raises if the buffer is gone or must no longer be touched.
        """
        if self._memory is None:
            return
        try:
            with self._gl.current(), self._bound():
                self._unmap()  # (as in `begin`)
                source = self._map(gl.MAP_READ)
            for start in range(0, self.nbytes, PIECE):
                size = min(PIECE, self.nbytes - start)
                ctypes.memmove(self._address + start, source + start, size)
                await anyio.lowlevel.checkpoint()
                check()
        finally:
            if self._name:  # (deleting a buffer unmaps it)
                with (
                    contextlib.suppress(gl.ContextLost),
                    self._gl.current(),
                    self._bound(),
                ):
                    self._unmap()

    def lend(self) -> memoryview:
        """Return a view of the picture; the slot is leased until all views are gone.

        Until then the lease keeps the slot, and with it the context and the memory.
        """
        claim = Claim(self._returned)
        self._lease = claim.key
        return claim.view(self._address, self.nbytes).toreadonly()

    def _returned(self) -> None:
        """Note that the lease has ended; in any thread, or in a garbage collection."""
        change = self._change()
        if self._is_retired:
            if threading.get_ident() == self._thread:
                with contextlib.suppress(gl.ContextLost), self._gl.current():
                    self.delete()
        elif change is not None:
            change.happen()

    def retire(self) -> None:
        """Delete the buffer once it is not leased; the context must be current."""
        self._is_retired = True
        if not self.is_leased:
            self.delete()

    def delete(self) -> None:
        """Delete the buffer and its mapped memory; the context must be current."""
        self._drop_fence()
        if self._name:
            self._gl.DeleteBuffers(1, ctypes.byref(self._name))
            self._name = ctypes.c_uint()
