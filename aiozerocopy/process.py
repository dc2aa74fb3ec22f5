"""Children: our own pipes to and from them, their last words, and their end.

The pipes are made here, enlarged, and given to the child as fds: what a loop makes of
``stdin=PIPE`` has 64 KiB, and under uvloop it is a socket.  The child is started by
`subprocess.Popen` and not by the loop, for uvloop leaves second copies of these fds in
the child: one that closed its standard output would go unnoticed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import warnings
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import anyio.to_thread

from aiozerocopy import _native
from aiozerocopy._native import Channel
from aiozerocopy._tail import Tail
from aiozerocopy.connecting import Opening
from aiozerocopy.opening import PIPE_SIZE, enlarge_pipe, flags_for
from aiozerocopy.streams import ReceiveStream, SendStream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from aiozerocopy._errors import StreamBroken
    from aiozerocopy.opening import HasFileno

    Argument = str | bytes | os.PathLike[str] | os.PathLike[bytes]

GRACE = 10.0  # seconds that a child has to end by itself, once its stdin is closed
AFTER_TERMINATE = 2.0  # seconds from SIGTERM to SIGKILL
LAST_WORDS = 1.0  # seconds that an error waits for the child to end and tell why
TAIL_BYTES = 64 << 10


def open_process(
    command: str | bytes | Sequence[Argument],
    *,
    stdin: bool | int | HasFileno | None = True,
    stdout: bool | int | HasFileno | None = False,
    stderr: bool | str | int | HasFileno | None = "tail",
    pipe_size: int = PIPE_SIZE,
    tail_bytes: int = TAIL_BYTES,
    peer: str = "unknown",
    cwd: Argument | None = None,
    env: Mapping[str, str] | None = None,
    start_new_session: bool = False,
) -> Opening[Process]:
    """Start a child; to be awaited, or used with ``async with``.

    ``command`` is a list of arguments, or a str or bytes for the shell.  For ``stdin``
    and ``stdout``, True is a pipe of ours (`Process.stdin`, `Process.stdout`), False is
    /dev/null, None is what we have ourselves, and an fd or open file is that: it stays
    the caller's.  ``stderr`` knows the same, and instead of True "tail": its last
    ``tail_bytes`` are kept (`Process.stderr_tail`).

    The pipes hold ``pipe_size`` bytes, or what the system allows.  ``peer`` is what is
    known of how the child reads its stdin, see `open_writer`: "reads" lets frames of
    a pool go without a copy.  ``env`` replaces ours.

    Raises:
        FileNotFoundError, PermissionError: of the command or ``cwd``, which they name.
        ValueError, TypeError: arguments that mean nothing.
    """
    options = {
        "args": _argv(command),
        "shell": isinstance(command, (str, bytes)),
        "cwd": cwd,
        "env": env,
        "start_new_session": start_new_session,
    }
    stdio = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    given = {name: _given(name, value) for name, value in stdio.items()}
    flags = flags_for(peer)

    def spawn() -> Process:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as undo:
            writer = reader = tail = None
            if stdin is True:
                given["stdin"], fd = _pipe_to_child(theirs)
                writer = _ChildStdin(_own_end(fd, _native.OUT | flags, pipe_size))
                undo.callback(writer.abort)
            if stdout is True:
                fd, given["stdout"] = _pipe_from_child(theirs)
                reader = ReceiveStream(_own_end(fd, _native.IN, pipe_size))
                undo.callback(reader.abort)
            if stderr == "tail":
                fd, given["stderr"] = _pipe_from_child(theirs)
                tail = Tail(fd, tail_bytes)
                undo.callback(tail.stop)
            popen = subprocess.Popen(**options, **given)
            undo.pop_all()
        return Process(_Child(popen, tail), writer, reader)

    async def start() -> Process:
        await anyio.lowlevel.checkpoint()
        return spawn()  # awaiting nothing, so that nobody can cancel half a child

    return Opening(start())


def _argv(command: str | bytes | Sequence[Argument]) -> Any:
    if isinstance(command, (str, bytes)):
        return command
    argv = [os.fspath(argument) for argument in command]
    if not argv:
        raise ValueError("the command is empty")
    return argv


def _given(name: str, value: object) -> Any:
    """What Popen understands, for all that is not a pipe of ours."""
    if value is False:
        return subprocess.DEVNULL
    if value is None or (value is True and name != "stderr"):
        return None
    if name == "stderr" and value == "tail":
        return None
    if isinstance(value, int):
        special = [subprocess.DEVNULL]
        if name == "stderr":
            special.append(subprocess.STDOUT)
        usable = (value >= 0 and value is not True) or value in special
    else:
        usable = hasattr(value, "fileno")
    if not usable:
        kinds = "'tail', False" if name == "stderr" else "True, False"
        raise ValueError(
            f"{name} is {kinds}, None, an fd or an open file, not {value!r}"
        )
    return value


# ---- pipes ---------------------------------------------------------------------


def _pipe_to_child(theirs: contextlib.ExitStack) -> tuple[int, int]:
    """The child's end, closed with ``theirs`` and on exec, and ours."""
    read_fd, write_fd = os.pipe()
    theirs.callback(os.close, read_fd)
    return read_fd, write_fd


def _pipe_from_child(theirs: contextlib.ExitStack) -> tuple[int, int]:
    """Our end, and the child's."""
    read_fd, write_fd = os.pipe()
    theirs.callback(os.close, write_fd)
    return read_fd, write_fd


def _own_end(fd: int, flags: int, size: int) -> Channel:
    """A channel over our end, which does not make the child's end non-blocking."""
    try:
        enlarge_pipe(fd, size)
        os.set_blocking(fd, False)
        return Channel(fd, flags | _native.OWN)
    except BaseException:
        os.close(fd)
        raise


# ---- the child -----------------------------------------------------------------


class _Child:
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


class _ChildStdin(SendStream):
    """A stream that knows why its reader left."""

    child: _Child | None = None

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

    def _quote(self, child: _Child, error: StreamBroken) -> None:
        error.returncode = child.popen.poll()
        error.stderr = child.last_words()


class Process:
    """A running child; ``async with`` ends it with the block.

    ``stdin`` is a `SendStream` and ``stdout`` a `ReceiveStream`, or None where
    `open_process` was not asked for one.  A `StreamBroken` from ``stdin`` carries the
    child's ``returncode`` and its last words.
    """

    def __init__(
        self,
        child: _Child,
        stdin: _ChildStdin | None,
        stdout: ReceiveStream | None,
    ) -> None:
        self._child = child
        self._generation = _native.generation
        self.stdin: SendStream | None = stdin
        self.stdout = stdout
        if stdin is not None:
            stdin.child = child

    @property
    def pid(self) -> int:
        """Its process id, which may be somebody else's once it is reaped."""
        return self._child.popen.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, or minus the signal that killed it; None while it runs."""
        return self._child.popen.poll()

    @property
    def stderr_tail(self) -> str:
        """The last lines of its stderr so far; "" unless that was to be "tail"."""
        return self._child.last_words()

    async def wait(self) -> int:
        """Wait until it ends; return its exit code.  Any number of tasks may wait."""
        await anyio.lowlevel.checkpoint()
        return await self._child.wait()

    def send_signal(self, number: int) -> None:
        """Send a signal.  Does nothing if it has ended; the same for the others."""
        self._child.popen.send_signal(number)

    def terminate(self) -> None:
        """Ask it to end: SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it: SIGKILL."""
        self.send_signal(signal.SIGKILL)

    # -- its end ------------------------------------------------------------------

    async def aclose(self, grace: float | None = GRACE) -> None:
        """Send what stdin accepted, close stdin and stdout, and wait for the end.

        After ``grace`` seconds (None: never), or at once if this is cancelled, the
        child gets SIGTERM, and SIGKILL if that does not help.  It is gone and reaped
        in any case.

        Raises:
            StreamBroken: something that stdin had accepted could not be sent.
        """
        try:
            with anyio.move_on_after(grace):
                try:
                    await self._close_streams()
                finally:
                    await self._child.wait()
        finally:
            await self._end()

    async def _close_streams(self) -> None:
        try:
            if self.stdin is not None:
                await self.stdin.aclose()
        finally:
            if self.stdout is not None:
                await self.stdout.aclose()

    async def _end(self) -> None:
        """See to it that the child has ended, whoever cancels us."""
        try:
            with anyio.CancelScope(shield=True):
                # Before its stdin ends, or it would take what it got for all.
                self.terminate()
                for stream in (self.stdin, self.stdout):
                    if stream is not None:
                        stream.abort()
                with anyio.move_on_after(AFTER_TERMINATE):
                    await self._child.wait()
                self.kill()
                await self._child.wait()
        finally:
            self._child.end()

    async def __aenter__(self) -> Process:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        if exc_val is None:
            await self.aclose()
        else:
            await self._end()

    def __del__(self) -> None:
        if self._generation != _native.generation:
            return  # a forked child's copy: it is the parent's
        try:
            if self.returncode is None:
                warnings.warn(
                    f"unclosed {self!r}", ResourceWarning, stacklevel=1, source=self
                )
        finally:
            self._child.end()

    def __repr__(self) -> str:
        code = self.returncode
        state = "running" if code is None else f"exited with code {code}"
        return f"<Process {self.pid} {state}>"
