"""A child that was started: its end, its last words, and a stream that tells them."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from aiozerocopy.streams import SendStream

if TYPE_CHECKING:
    from aiozerocopy._core.errors import StreamBroken
    from aiozerocopy._process.last_words import Tail

# For Popen: Ctrl-C in the terminal is for the program alone, which ends its children as
# they need it.  A new session would do as well, but Linux shares the processors out
# between sessions (autogroup), and those who feed each other lose by that.
NEW_GROUP: dict[str, Any] = (
    {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
)
LAST_WORDS = 1.0  # seconds that an error waits for the child to end and tell why


class ChildProcess:
    """What a process and the stream to it both know."""

    def __init__(self, popen: subprocess.Popen[bytes], tail: Tail | None) -> None:
        self.popen = popen
        self._tail = tail

    async def wait(self) -> int:
        while (code := self.popen.poll()) is None:
            try:
                fd = os.pidfd_open(self.popen.pid)
            except (AttributeError, OSError):  # not Linux, or forbidden, or no fds
                await anyio.to_thread.run_sync(self.popen.wait, abandon_on_cancel=True)
                continue
            try:
                await anyio.wait_readable(fd)
            finally:
                os.close(fd)
        return code

    def last_words(self) -> str:
        return "" if self._tail is None else self._tail.text()

    def end(self) -> None:
        """Kill it if it lives, and reap it; nothing is left of it afterwards."""
        if self.popen.poll() is None:
            self.popen.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(timeout=1)
        if self._tail is not None:
            self._tail.stop()


class ChildStdin(SendStream):
    """A stream that knows why its reader left."""

    child: ChildProcess | None = None

    async def _explain(self, error: StreamBroken) -> None:
        if self.child is not None and error.errno == errno.EPIPE:
            with anyio.move_on_after(LAST_WORDS):
                await self.child.wait()
            self._quote(self.child, error)

    def _explain_in_thread(self, error: StreamBroken) -> None:
        if self.child is not None and error.errno == errno.EPIPE:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.popen.wait(timeout=LAST_WORDS)
            self._quote(self.child, error)

    def _quote(self, child: ChildProcess, error: StreamBroken) -> None:
        error.returncode = child.popen.poll()
        error.stderr = child.last_words()
