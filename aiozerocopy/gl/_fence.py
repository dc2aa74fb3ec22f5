"""A fence among OpenGL's commands: passed once all that was queued before is done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozerocopy.gl import _functions as gl

if TYPE_CHECKING:
    from aiozerocopy.gl._functions import Functions


class Fence:
    """Polled, never waited for.  The context is current in all calls."""

    def __init__(self, functions: Functions) -> None:
        self._gl = functions
        self._sync: int | None = functions.FenceSync(gl.SYNC_GPU_COMMANDS_COMPLETE, 0)
        if not self._sync:
            functions.check("a fence was made")
            raise gl.GLError("no fence could be made")
        functions.Flush()  # or a fence polled without flushing might never pass

    def poll(self) -> bool:
        """Has it been passed?"""
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
        """Give it back; again is no error."""
        if self._sync is not None:
            self._gl.DeleteSync(self._sync)
            self._sync = None
