"""Child processes: `open_process`, and the `Process` that it starts.

`subprocess.Popen` starts the child, not the loop: uvloop leaves second copies of the
pipes in the child, so nobody would notice that the child closed its standard output.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import subprocess
import warnings
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from aiozerocopy._process.child import LAST_WORDS as LAST_WORDS
from aiozerocopy._process.child import (
    NEW_GROUP,
    ChildProcess,
    ChildStdin,
    ChildStdout,
)
from aiozerocopy._process.pipes import ChildPipes
from aiozerocopy.opening import Opening, flags_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiozerocopy.opening import HasFileno
    from aiozerocopy.streams import ReceiveStream, SendStream

    Argument = str | bytes | os.PathLike[str] | os.PathLike[bytes]

GRACE = 10.0  # seconds that `aclose` gives a child to read its stdin, and to end
AFTER_TERMINATE = 2.0  # seconds from SIGTERM to SIGKILL
TAIL_BYTES = 64 << 10


def open_process(
    command: str | bytes | Sequence[Argument],
    *,
    stdin: bool | int | HasFileno | None = True,
    stdout: bool | int | HasFileno | None = False,
    stderr: bool | str | int | HasFileno | None = "tail",
    pass_fds: Sequence[int | HasFileno] = (),
    tail_bytes: int = TAIL_BYTES,
    peer: str = "unknown",
    cwd: Argument | None = None,
    env: Mapping[str, str] | None = None,
    start_new_group: bool = False,
) -> Opening[Process]:
    """Start a child; to be awaited, or used with ``async with``.

    ``command`` is a list of arguments, or a str or bytes for the shell.  For ``stdin``
    and ``stdout``, True means a new pipe (`Process.stdin`, `Process.stdout`), False
    /dev/null, None that of this process; or give an fd or an open file, which stays
    yours.  ``stderr`` accepts "tail" instead of True: its last ``tail_bytes`` are kept
    (`Process.stderr_tail`).

    ``pass_fds`` are more fds or open files that the child gets, under the same numbers:
    the other ends of pipes and sockets, which you close once it has started.  They
    stay yours, and need not be inheritable.

    The pipes hold 1 MiB, or what the system allows.  ``peer`` says how the child reads
    its stdin, see `open_writer`: with "reads" frames of a pool go without a copy.
    ``env`` replaces the environment of this process.

    Ctrl-C in the terminal reaches the whole process group.  With ``start_new_group`` it
    does not reach the child.  (On Python 3.10 the child then gets its own session.)

    Raises:
        FileNotFoundError, PermissionError: they name the command or ``cwd``.
        ValueError, TypeError: an argument has a wrong value or type.
        OSError: one of ``pass_fds`` is not open.
    """
    stdio = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    options = {
        "args": _argv(command),
        "shell": isinstance(command, (str, bytes)),
        **{name: _given(name, value) for name, value in stdio.items()},
        "pass_fds": [_checked_fd(given) for given in pass_fds],
        "cwd": cwd,
        "env": env,
        **(NEW_GROUP if start_new_group else {}),
    }
    flags_for(peer)  # (to refuse an unknown kind of peer at once)

    def spawn() -> Process:
        into = out_of = tail = None
        with ChildPipes() as pipes:
            if stdin is True:
                options["stdin"], into = pipes.into(ChildStdin, peer)
            if stdout is True:
                options["stdout"], out_of = pipes.out_of(ChildStdout)
            if stderr == "tail":
                options["stderr"], tail = pipes.tail(tail_bytes)
            # (Made before the child, so that no exception in between can lose it.)
            popen: subprocess.Popen[bytes] = object.__new__(subprocess.Popen)
            popen.pid = 0
            try:
                subprocess.Popen.__init__(popen, **options)
                process = Process(ChildProcess(popen, tail), into, out_of)
                pipes.keep()
            except BaseException:
                if popen.pid:
                    popen.kill()
                    popen.wait()
                raise
        return process

    async def start() -> Process:
        await anyio.lowlevel.checkpoint()
        return spawn()  # without an await: a cancel must not leave half a child

    return Opening(start())


def _argv(command: str | bytes | Sequence[Argument]) -> Any:
    if isinstance(command, (str, bytes)):
        return command
    argv = [os.fspath(argument) for argument in command]
    if not argv:
        raise ValueError("the command is empty")
    return argv


def _given(name: str, value: object) -> Any:
    """Return Popen's value for a stdio argument that is not our pipe."""
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
            f"{name} must be {kinds}, None, an fd or an open file, not {value!r}"
        )
    return value


def _checked_fd(given: int | HasFileno) -> int:
    """Return the number of an open fd for the child.

    Raises:
        ValueError: stdin, stdout or stderr, or a negative number.
        OSError: it is not open; Popen's error would name the command.
    """
    fd = given if isinstance(given, int) else given.fileno()
    if isinstance(given, bool) or fd <= 2:
        raise ValueError(
            "pass_fds must be fds above 2 (up to 2 are stdin, stdout and stderr) or "
            f"open files, not {given!r}"
        )
    try:
        os.fstat(fd)
    except (OSError, OverflowError):
        raise OSError(errno.EBADF, f"fd {fd} in pass_fds is not open") from None
    return fd


class Process:
    """A running child; ``async with`` ends it with the block.

    ``stdin`` is a `SendStream` and ``stdout`` a `ReceiveStream`, or None where
    `open_process` was not asked for one.  A `StreamBroken` from ``stdin`` carries the
    child's ``returncode`` and its last words.  If the child has failed, an EndOfStream
    or IncompleteReceive from ``stdout`` quotes them.
    """

    def __init__(
        self,
        child: ChildProcess,
        stdin: ChildStdin | None,
        stdout: ChildStdout | None,
    ) -> None:
        self._child = child
        self.stdin: SendStream | None = stdin
        self.stdout: ReceiveStream | None = stdout
        for stream in (stdin, stdout):
            if stream is not None:
                stream.child = child

    @property
    def pid(self) -> int:
        """Its process id, which another process may get once this one is reaped."""
        return self._child.popen.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, or minus the signal that killed it; None while it runs."""
        return self._child.popen.poll()

    @property
    def stderr_tail(self) -> str:
        """The last lines of its stderr so far; "" unless ``stderr`` is "tail"."""
        return self._child.last_words()

    async def wait(self) -> int:
        """Wait until it ends; return its exit code.  Any number of tasks may wait."""
        await anyio.lowlevel.checkpoint()
        return await self._child.wait()

    def send_signal(self, number: int) -> None:
        """Send a signal; this, `terminate` and `kill` do nothing if it has ended."""
        self._child.popen.send_signal(number)

    def terminate(self) -> None:
        """Ask it to end: SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it: SIGKILL."""
        self.send_signal(signal.SIGKILL)

    # -- its end ------------------------------------------------------------------

    def abort(self) -> None:
        """Kill it and reap it now (a second at most), and close stdin and stdout.

        Queued messages are lost: their senders get `StreamClosed`, or `StreamBroken` if
        they notice the child's end first.  For places where nothing can be awaited; may
        be called from any thread, and again.
        """
        if self._child.inherited:
            return  # in a forked child: the process is the parent's
        self._end_streams(signal.SIGKILL)
        self._child.end()

    def _end_streams(self, number: int) -> None:
        # The signal first: EOF on stdin would make it think that its input is complete.
        self.send_signal(number)
        for stream in (self.stdin, self.stdout):
            if stream is not None:
                stream.abort()

    async def aclose(self, grace: float | None = GRACE) -> None:
        """Send what stdin has accepted, close stdin and stdout, and wait for the end.

        After ``grace`` seconds (None: never), or at once if this is cancelled, the
        child gets SIGTERM, and SIGKILL if that does not help.  It is gone and reaped
        in any case.

        Raises:
            StreamBroken: something that stdin had accepted could not be sent, or not in
                time.
        """
        deadline = math.inf if grace is None else anyio.current_time() + grace
        try:
            try:
                await self._close_streams(grace)
            finally:
                with anyio.CancelScope(deadline=deadline):
                    await self._child.wait()
        finally:
            await self._end()

    async def _close_streams(self, linger: float | None) -> None:
        try:
            if self.stdin is not None:
                await self.stdin.aclose(linger=linger)
        finally:
            if self.stdout is not None:
                await self.stdout.aclose()

    async def _end(self) -> None:
        """End the child, even if this is cancelled."""
        try:
            with anyio.CancelScope(shield=True):
                self._end_streams(signal.SIGTERM)
                with anyio.move_on_after(AFTER_TERMINATE):
                    await self._child.wait()
                self.kill()
                await self._child.wait()
        finally:
            self._child.end()

    async def __aenter__(self) -> Process:
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if error is None:
            await self.aclose()
        else:
            await self._end()

    def __del__(self) -> None:
        if self._child.inherited:
            return  # in a forked child: the process is the parent's
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
