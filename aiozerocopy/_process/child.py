"""A child that was started: its end, its last words, and streams that quote them."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from aiozerocopy._core.channel import own_pipe
from aiozerocopy._core.errors import IncompleteReceive, StreamBroken
from aiozerocopy._core.fork_and_exit import OfOneProcess
from aiozerocopy._core.lock import Lock
from aiozerocopy.streams import ReceiveStream, SendStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozerocopy._core.channel import OwnFd

# For Popen: Ctrl-C in the terminal is for the program alone, which ends its children in
# its own way.  A new session would work, too, but Linux shares the processors out
# between sessions (autogroup), and a pipeline across sessions gets slower.
NEW_GROUP: dict[str, Any] = (
    {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}
)
LAST_WORDS = 1.0  # seconds that an error waits for the child to end and say why
EXITS = 0.1  # seconds that the end of stdout waits for the child to end

_READ = 64 << 10
_READS = 64  # the most reads at once, if the child never stops
_SOON = 0.01  # seconds until the kernel may have memory again
_ENDING = 1.0  # seconds, at most, to wait for the thread


class ChildProcess(OfOneProcess):
    """The part of a process that the stream to it also knows."""

    def __init__(self, popen: subprocess.Popen[bytes], tail: Tail | None) -> None:
        super().__init__()
        self.popen = popen
        self._tail = tail

    async def wait(self) -> int:
        while (code := self.popen.poll()) is None:
            try:
                # (C passes the fd on: no exception in between can lose it.)
                (file,) = map(io.FileIO, map(os.pidfd_open, [self.popen.pid]))
            except (AttributeError, OSError):  # not Linux, or forbidden, or no fds
                await anyio.to_thread.run_sync(self.popen.wait, abandon_on_cancel=True)
                continue
            with file:
                # (If another thread has reaped it, the pid may be another process's.)
                if self.popen.poll() is None:
                    await anyio.wait_readable(file)
        return code

    def last_words(self) -> str:
        return "" if self._tail is None else self._tail.text()

    def quoted_in(self, error: StreamBroken) -> StreamBroken:
        """Add its exit code, if it has ended, and its last words to the error."""
        error.returncode = self.popen.poll()
        error.stderr = self.last_words()
        return error

    def end(self) -> None:
        """Kill it if it lives, and reap it; this waits a second at most."""
        if self.popen.poll() is None:
            self.popen.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(timeout=1)
        if self._tail is not None:
            self._tail.stop()


class ChildStdin(SendStream):
    """A stream that knows why its reader left."""

    child: ChildProcess | None = None
    # Turns our error into that of the object that started the child; None: no change.
    reword: Callable[[StreamBroken], StreamBroken | None] | None = None

    async def _explain(self, error: StreamBroken) -> StreamBroken:
        if self.child is None or error.errno != errno.EPIPE:
            return error
        with anyio.move_on_after(LAST_WORDS):
            await self.child.wait()
        return self._quote(self.child, error)

    def _explain_in_thread(self, error: StreamBroken) -> StreamBroken:
        if self.child is None or error.errno != errno.EPIPE:
            return error
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.popen.wait(timeout=LAST_WORDS)
        return self._quote(self.child, error)

    def _quote(self, child: ChildProcess, error: StreamBroken) -> StreamBroken:
        if self.reword is not None and (other := self.reword(error)) is not None:
            return other
        return child.quoted_in(error)


class ChildStdout(ReceiveStream):
    """A stream whose end says so if the child has failed."""

    child: ChildProcess | None = None

    async def _fill(self, *given: Any, **more: Any) -> int:
        try:
            return await super()._fill(*given, **more)
        except (anyio.EndOfStream, IncompleteReceive) as error:
            # (Here, and not later: the bytes of a call that is cancelled now are kept.)
            if self.child is not None:
                with anyio.move_on_after(EXITS):
                    if await self.child.wait():
                        text = str(error) or "the child's output has ended"
                        error.args = (str(self.child.quoted_in(StreamBroken(text))),)
            raise


# ---- the last bytes that it wrote to stderr -----------------------------------------


class Tail:
    """The last bytes that come out of a pipe, drained by a thread of its own.

    It owns its end of the pipe, and closes it even if the thread cannot start.  Why a
    thread: the event loop may be busy for seconds (in GL calls, in a debugger), and a
    child whose stderr is full stops.
    """

    _stop: OwnFd | None = None  # its closing ends the thread

    def __init__(self, end: OwnFd, limit: int) -> None:
        self._end = end
        os.set_blocking(end.fd, False)
        self._limit = limit
        self._data = bytearray()
        self._is_cut = False
        self._lock = Lock()
        self._thread = threading.Thread(
            target=self._run, name="aiozerocopy stderr", daemon=True
        )
        self._wake, self._stop = own_pipe()
        try:
            self._thread.start()
        except BaseException:
            for each in (end, self._wake, self._stop):
                each.close()
            raise

    def _run(self) -> None:
        ready = select.poll()
        ready.register(self._end.fd, select.POLLIN)
        ready.register(self._wake.fd, select.POLLIN)
        try:
            while not self._drain():
                if self._wake.fd in _those(ready):
                    self._drain()
                    break
        finally:  # (also for want of memory, say: the child must not wait for us)
            with self._lock:
                self._end.close()
                self._wake.close()

    def _drain(self) -> bool:
        """Read the bytes that are there; return True at the end.

        Any thread may call it: `text` must have all bytes that were written before,
        even if our thread has not run yet.
        """
        with self._lock:
            for _ in range(_READS):
                if self._end.fd < 0:
                    return True
                try:
                    data = os.read(self._end.fd, _READ)
                except BlockingIOError:
                    return False
                if not data:
                    return True
                self._keep(data)
        return False

    def _keep(self, data: bytes) -> None:
        self._data += data
        excess = len(self._data) - self._limit
        if excess > 0:
            del self._data[:excess]
            self._is_cut = True

    def text(self) -> str:
        """Return the last lines that were written until now."""
        self._drain()
        with self._lock:
            data = bytes(self._data)
        if self._is_cut:  # begin with a whole line, if there is one
            data = data[data.find(b"\n") + 1 :]
        return data.decode(errors="replace")

    def stop(self) -> None:
        """End the thread, even if a grandchild holds the pipe open.

        A finalizer may call it, in any thread (our own, too) and at the interpreter's
        end, when our thread no longer runs: so it takes no lock.
        """
        if self._stop is None or self._stop.fd < 0:
            return
        self._stop.close()
        thread = self._thread
        if sys.is_finalizing() or threading.current_thread() is thread:
            return
        if thread.is_alive():
            thread.join(_ENDING)

    __del__ = stop  # (until its own end the thread refers to us)


def _those(ready: select.poll) -> dict[int, int]:
    """Wait for fds, and return those that are ready; try again if memory is short."""
    while True:
        try:
            return dict(ready.poll())
        except OSError:  # noqa: PERF203
            time.sleep(_SOON)
