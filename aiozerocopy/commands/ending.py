"""The end of a command: its exit status, and one line that says what was wrong."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import errno
import logging
import os
import re
import signal
import socket
import ssl
import sys
import threading
import time
from subprocess import CalledProcessError
from typing import TYPE_CHECKING

import anyio

from aiozerocopy._core.errors import StreamBroken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FAILED = 1
AGAIN = 0.01  # seconds until a Ctrl-C that Python has dropped is raised again
INTERRUPTS = (KeyboardInterrupt, asyncio.CancelledError)
# (before Python 3.11 anyio.run turns the former into the latter)

# What the user can do about an error of the operating system.
_HELP = {
    errno.EADDRINUSE: "something else is there: choose another port or path",
    errno.EADDRNOTAVAIL: "a server needs an address of this machine, or 0.0.0.0",
    errno.ECONNREFUSED: "is the server running, and is this its address?",
    errno.EEXIST: "--overwrite replaces it",
    errno.ENOSPC: "make room there, or choose another place",
}
_NO_LISTENING = {
    errno.EACCES: "ports below 1024 are for root: choose another port",
    errno.ENOENT: "make the folder first",
}
_NO_SUCH_HOST = "check the name of the host"

_NOT_WRITTEN = (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF)

# Cut out of FFmpeg's messages: the speaker, and the words around an input's error.
_SPEAKER = re.compile(r"^(?:\[[^\]]* @ 0x[0-9a-f]+\] )+")
_OPENING = re.compile(
    r"^Error opening input: (.*)\nError opening input file (.*)\.$", re.M
)
# From FFmpeg 7 on, its last lines are consequences of the reason, not the reason.
_OUTCOME = re.compile(
    "Error (?:opening (?:in|out)put files?|initializing the muxer|sending frames"
    "|applying encoder options|while opening encoder)|Task finished|Terminating thread"
    "|Nothing was written|Could not open encoder"
)
_NO_FORMAT = re.compile(r"Unable to (?:find a suitable|choose an) output format")
LAST_LINES = 3  # of a program's output


def line_for(error: BaseException) -> str | None:
    """Return what went wrong, in one line; None for a bug, which is shown whole."""
    error = first_of(error)
    if isinstance(error, MemoryError):
        return "there is not enough memory for this: try a smaller size"
    if isinstance(error, StreamBroken):
        return _of_stream(error)
    if isinstance(error, OSError):
        return _of_system(error)
    if isinstance(error, (anyio.BrokenResourceError, anyio.EndOfStream)):
        return "the connection was lost"
    if isinstance(error, CalledProcessError):
        return f"{error.cmd[0]} failed (exit status {error.returncode})"
    # The texts of the package's own errors are for users.
    is_ours = type(error).__module__.partition(".")[0] == "aiozerocopy"
    if isinstance(error, ValueError) or is_ours:
        return in_one_line(str(error))
    return None


def first_of(error: BaseException) -> BaseException:
    """Return the first error of a group, which task groups make even of one."""
    while inner := getattr(error, "exceptions", ()):
        error = inner[0]
    return error


def in_one_line(text: str, most: int = 0) -> str:
    """Return a message without its decoration; at most the last ``most`` lines."""
    lines = [_SPEAKER.sub("", line.strip()) for line in text.splitlines()]
    text = _OPENING.sub(r"\2: \1", "\n".join(lines))
    said = [line for line in text.splitlines() if re.search(r"\w", line)]
    said = [line for line in said if not _OUTCOME.match(line)] or said
    return "; ".join(dict.fromkeys(said[-most:]))


def _of_stream(error: StreamBroken) -> str:
    """Return FFmpeg's last lines, or the error of a reader that has left."""
    if not error.stderr:
        return in_one_line(str(error))
    said = in_one_line(error.stderr, LAST_LINES)
    if _NO_FORMAT.search(said):
        said += "; name a film such as film.mp4 or film.mkv"
    return f"FFmpeg: {said}"


def _of_system(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error.strerror or error}"
    if error.errno is None or error.strerror is None:
        return in_one_line(str(error), LAST_LINES) or "there was no answer in time"
    where = f"{error.filename}: " if error.filename is not None else ""
    return f"{where}{error.strerror}{_help_for(error)}"


def _help_for(error: OSError) -> str:
    told = _HELP.get(error.errno or 0, "")
    if isinstance(error, socket.gaierror):
        told = _NO_SUCH_HOST
    elif error.strerror and error.strerror.startswith("cannot listen"):
        told = _NO_LISTENING.get(error.errno or 0, told)
    return f" ({told})" if told else ""


# ---- the end of the process ---------------------------------------------------------

last_words: list[str] = []  # said when a command is interrupted


def ended(name: str, run: Callable[[], int]) -> int:
    """Run a command, however it ends, and return its exit status."""
    by_signal = _end_as_by_ctrl_c()
    logging.getLogger("asyncio").addFilter(_is_no_race)
    last_words.clear()
    try:
        with _ctrl_c_comes_again():
            return _run(run)
    except BaseException as error:
        first = first_of(error)
        if not isinstance(first, INTERRUPTS):
            status = _failed(name, first, error)
            if status is None:
                raise
            return status
        _of_stdout(first)
        complain(name, ": ".join(["interrupted", *last_words]))
        # If Ctrl-C came while Python executed a string, as an import of a dataclass
        # does, Python ends itself by SIGINT whatever we return.  Executing another
        # string clears that.
        exec("")
        # A shell reports this status for a program that a signal has ended.
        return 128 + (signal.SIGTERM if by_signal else signal.SIGINT)


def _failed(name: str, first: BaseException, error: BaseException) -> int | None:
    """Say in one line what went wrong; return the exit status, None without a line."""
    if not isinstance(first, Exception):
        return None
    cause = _of_stdout(first) or error
    if isinstance(cause, BrokenPipeError):  # the reader, such as `head`, has left
        return 128 + signal.SIGPIPE
    line = line_for(cause)
    if line is None:
        return None
    complain(name, line)
    return FAILED


def _run(run: Callable[[], int]) -> int:
    if sys.stdout is None:
        raise OSError("standard output is closed: redirect it to /dev/null instead")
    try:
        return run()
    finally:
        sys.stdout.flush()


def _of_stdout(error: BaseException) -> OSError | None:
    """Return standard output's own error, if it has one; then stop writing there."""
    if sys.stdout is None:
        return None
    try:
        unnamed = isinstance(error, OSError) and error.filename is None
        if unnamed and getattr(error, "errno", 0) in _NOT_WRITTEN:
            sys.stdout.write("\n")  # does standard output raise this error?
        sys.stdout.flush()
    except OSError as again:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)
        return type(again)(again.errno, again.strerror, "standard output")
    return None


def complain(name: str, line: str) -> None:
    """Write one line on stderr, in place of the line of progress."""
    if sys.stderr is None:  # closed; print would use standard output
        return
    wiped = "\r\x1b[K" if sys.stderr.isatty() else ""
    print(f"{wiped}{name}: {line}", file=sys.stderr, flush=True)


def _is_no_race(record: logging.LogRecord) -> bool:
    """False for asyncio's log of a future that Ctrl-C cancels while it is being set."""
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, asyncio.InvalidStateError)


@contextlib.contextmanager
def _ctrl_c_comes_again() -> Iterator[None]:
    """Raise a KeyboardInterrupt again that Python has dropped.

    It drops exceptions in destructors, and in callbacks such as those of an import.
    """
    others, is_over = sys.unraisablehook, False
    main = threading.get_ident()

    def interrupt() -> None:
        time.sleep(AGAIN)  # until the callback has returned
        if not is_over:
            signal.pthread_kill(main, signal.SIGINT)

    def take(dropped: sys.UnraisableHookArgs) -> None:
        if dropped.exc_type is KeyboardInterrupt:
            # (threading takes locks, which the main thread may have)
            _thread.start_new_thread(interrupt, ())
        else:
            others(dropped)

    sys.unraisablehook = take
    try:
        yield
    finally:
        is_over, sys.unraisablehook = True, others


def _end_as_by_ctrl_c() -> list[int]:
    """Have SIGTERM end the command as Ctrl-C does; the list tells that it came.

    A shell script starts programs in the background (``aiozerocopy serve &``) with
    Ctrl-C ignored.  Then we block it instead, until SIGTERM comes.
    """
    came: list[int] = []
    ctrl_c = {signal.SIGINT}

    def end(number: int, _frame: object) -> None:
        came.append(number)
        # A blocked SIGINT that waits and this one become one; two would raise a second
        # KeyboardInterrupt, wherever the program is by then.
        signal.raise_signal(signal.SIGINT)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ctrl_c)

    if threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.pthread_sigmask(signal.SIG_BLOCK, ctrl_c)
            # (asyncio takes over only this handler)
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, end)
    return came
