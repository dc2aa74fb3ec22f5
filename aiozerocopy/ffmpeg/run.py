"""One run of FFmpeg: its pipes, reports, errors and end, and a watchdog for it."""

from __future__ import annotations

import errno
import fcntl
import math
import os
import re
import signal
import sys
import termios
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from aiozerocopy._core.errors import StreamBroken
from aiozerocopy._core.failure import Failure
from aiozerocopy._process.child import ChildStdin
from aiozerocopy._process.pipes import ChildPipes
from aiozerocopy.ffmpeg.binary import SILENT, environment, log
from aiozerocopy.process import Process, open_process

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from typing_extensions import Self

    from aiozerocopy._process.child import Tail
    from aiozerocopy.streams import ReceiveStream, SendStream

LAST_LINES = 20
REPORT_BYTES = 4 << 10  # a report has about 300 bytes, more with many streams


class FFmpegError(StreamBroken):
    """FFmpeg failed, or ended too early.

    ``returncode`` is its exit code, minus the signal that ended it, or None if it still
    runs; ``stderr`` has its last lines.  ``bytes_sent`` and ``total`` are as in
    `StreamBroken`.
    """


class SourceNotFound(FFmpegError, FileNotFoundError):
    """The film does not exist."""


class SourceIsFolder(FFmpegError, IsADirectoryError):
    """The film is a folder."""


class SourceForbidden(FFmpegError, PermissionError):
    """The film may not be read."""


_REFUSALS = {
    errno.ENOENT: SourceNotFound,
    errno.EISDIR: SourceIsFolder,
    errno.EACCES: SourceForbidden,
}


def failure(
    returncode: int | None, log: str, reason: str = "", source: str = ""
) -> FFmpegError:
    """Return an error that says how FFmpeg ended, and what it logged last.

    If the ``source`` is missing, a folder or forbidden, the error is a
    FileNotFoundError, IsADirectoryError or PermissionError, too.
    """
    error = FFmpegError(reason or _reason(returncode))
    said = log.rstrip().rpartition("\n")[2]
    for code, kind in _REFUSALS.items():
        why = os.strerror(code)
        if source and said in (f"{source}: {why}", f"Error opening input files: {why}"):
            error = kind(f"{why}: {source.removeprefix('file:')}")
            error.errno = code
    error.returncode = returncode
    error.stderr = "".join(log.splitlines(keepends=True)[-LAST_LINES:])
    return error


def _reason(returncode: int | None) -> str:
    if returncode is None:
        return "FFmpeg has closed its input"
    if returncode == 0:
        return "FFmpeg has ended by itself (because of -t, -frames or -shortest?)"
    if returncode < 0:
        return f"FFmpeg was ended by {signal.Signals(-returncode).name}"
    return "FFmpeg failed"


# Some FFmpegs log this and still exit with code 0.
_UNFINISHED = re.compile(
    r"^(?:\[.*?\] )?(?P<what>Error (?:writing trailer|closing file).*"
    r"|.*already exists\. Exiting.*)$",
    re.MULTILINE,
)


class Watchdog:
    """Kills a child that does nothing for ``timeout`` seconds while we wait for it.

    The log warns after `SILENT` seconds.  The watchdog is a thread, so it works even if
    the event loop is blocked, and makes no send slower.  ``signs`` returns something
    that changes while the child works; ``lacks``, as words, what it waits for.
    """

    def __init__(
        self,
        process: Process,
        timeout: float,
        is_awaited: Callable[[], bool],
        signs: Callable[[], object],
        lacks: Callable[[], str] = str,
    ) -> None:
        self.barked: bool = False
        self.lacked: str = ""  # what the child waited for when it was killed
        self._lacks = lacks
        self._process = process
        self.timeout = timeout
        self._is_awaited = is_awaited
        self._signs = signs
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="aiozerocopy watchdog", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        looked, silent, said = time.monotonic(), 0.0, False
        before, busy = self._signs(), self._cpu_seconds()
        pause = min(self.timeout, 2 * SILENT) / 8
        while self._process.returncode is None and not self._stop.wait(pause):
            now, signs, cpu = time.monotonic(), self._signs(), self._cpu_seconds()
            # If this thread was not run for a while, perhaps the child was not either.
            silent += min(now - looked, self.timeout / 4)
            looked = now
            # A child that waits for input still uses a little CPU time, by polling;
            # one that takes minutes to encode a frame uses much.
            works = signs != before or cpu - busy > self.timeout / 100
            if works or not self._is_awaited():
                silent, said, before, busy = 0.0, False, signs, cpu
            elif silent >= self.timeout:
                self.lacked = self._lacks()
                self.barked = True
                self._process.kill()
                return
            elif silent >= SILENT and not said:
                said = True
                log.warning(
                    "FFmpeg (process %d) has done nothing for %.1f s%s; it is killed "
                    "after %g s",
                    *(self._process.pid, silent, self._lacks(), self.timeout),
                )

    def _cpu_seconds(self) -> float:
        """Return the child's CPU time so far; 0 where that is not known."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text()
            fields = stat.rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return 0.0

    def stop(self) -> None:
        self._stop.set()
        # (A finalizer may call it: in our own thread, or at the interpreter's exit,
        # when our thread does not run.)
        thread, this = self._thread, threading.current_thread()
        if not sys.is_finalizing() and thread is not this and thread.is_alive():
            thread.join()
        # (The old ones refer to our owner.)
        self._is_awaited, self._signs, self._lacks = bool, bool, str


class Run:
    """An FFmpeg that runs, and the pipes into it."""

    def __init__(
        self,
        process: Process,
        progress: Tail,
        video: ChildStdin,
        audio: ChildStdin | None,
    ) -> None:
        self.process = process
        self.video = video
        self.audio = audio
        self.inputs: list[ChildStdin] = [video] if audio is None else [video, audio]
        told = weakref.WeakMethod(self._reworded)  # (weak: we refer to the streams)

        def reword(error: StreamBroken) -> StreamBroken | None:
            tell = told()
            return None if tell is None else tell(error)

        for stream in self.inputs:
            stream.child, stream.reword = process._child, reword
        self._progress = progress
        self._watchdog: Watchdog | None = None
        self._is_closing = False  # its inputs were closed, and its end is awaited

    def watch(self, timeout: float) -> None:
        """Kill FFmpeg if it does nothing for ``timeout`` seconds while we wait."""
        output = self.process.stdout

        def is_awaited() -> bool:
            if output is not None and (
                self.process.returncode is not None or _has_bytes(output)
            ):
                return False  # FFmpeg waits for its output to be taken
            return self._is_closing or any(
                one.stats.messages_queued for one in self.inputs
            )

        def signs() -> object:
            status = self.status()
            sent = [stream.stats.bytes_sent for stream in self.inputs]
            return sent, status.frames, status.size

        self._watchdog = Watchdog(self.process, timeout, is_awaited, signs, self._lacks)
        self._watchdog.start()  # (from now on `abort` ends it)

    def status(self) -> Status:
        return status_in(self._progress.text())

    def _lacks(self) -> str:
        """Say which input FFmpeg waits for, while it reads no more of the other."""
        if self.audio is None:
            return ""
        both = [("picture", "video", self.video), ("sample", "audio", self.audio)]
        for (what, name, lacking), (_, _, full) in (both, both[::-1]):
            if full.stats.messages_queued and not _has_bytes(lacking):
                return (
                    f" while it waited for {what}s (send pictures and sound from two "
                    f"tasks, and call close_{name}() after the last {what})"
                )
        return ""

    # -- its end ------------------------------------------------------------------

    def _reworded(self, error: StreamBroken) -> FFmpegError:
        told = self.failure()
        told.errno, told.__cause__ = error.errno, error.__cause__
        told.bytes_sent, told.total = error.bytes_sent, error.total
        return told

    def failure(self) -> FFmpegError:
        reason, log = "", self.process.stderr_tail
        if self._watchdog is not None and self._watchdog.barked:
            seconds = self._watchdog.timeout
            lacked = self._watchdog.lacked
            reason = f"FFmpeg did nothing for {seconds:g} s{lacked} and was ended"
        elif unfinished := _UNFINISHED.search(log):
            reason = f"FFmpeg failed: {unfinished['what']}"
        return failure(self.process.returncode, log, reason)

    @property
    def has_failed(self) -> bool:
        code = self.process.returncode
        return code is not None and (
            code != 0 or bool(_UNFINISHED.search(self.process.stderr_tail))
        )

    async def close_inputs(self) -> None:
        """Send what the inputs accepted and close them, both at once: FFmpeg may wait
        for the end of one before it reads the other."""
        self._is_closing = True
        failures: list[Failure[StreamBroken]] = []

        async def close(stream: ChildStdin) -> None:
            try:
                await stream.aclose()
            except StreamBroken as error:
                failures.append(Failure(error))

        if self.audio is None:
            await self.video.aclose()
            return
        async with anyio.create_task_group() as tasks:
            for stream in self.inputs:
                tasks.start_soon(close, stream)
        if failures:
            raise failures[0].again()

    async def finish(self) -> None:
        """Wait until FFmpeg has written all; always end it.  Raises: FFmpegError."""
        try:
            await self.close_inputs()
            await self.process.wait()
            if self.has_failed:
                raise self.failure()
        finally:
            await self.end()

    async def end(self) -> None:
        """End FFmpeg, even if we are cancelled; if it still runs, it has two seconds
        to finish its file."""
        try:
            for stream in self.inputs:
                stream.abort()
            await self.process.aclose(grace=0)
        finally:
            self.abort()

    def abort(self) -> None:
        """Kill FFmpeg if it still runs; end the threads that read and watch it."""
        self.process.abort()  # first, or it would finish a file from part of the video
        for stream in self.inputs:
            stream.abort()
        self._progress.stop()
        if self._watchdog is not None:
            self._watchdog.stop()


def _has_bytes(pipe: SendStream | ReceiveStream) -> bool:
    """Can bytes be received?  May be called in any thread."""
    count = bytearray(4)
    try:
        fcntl.ioctl(pipe.fileno(), termios.FIONREAD, count)
    except (OSError, ValueError):  # the stream is closed
        return True
    return any(count)


async def start(
    command: Callable[[str, str], list[str]],
    *,
    has_audio: bool,
    patience: float | None,
    gives_output: bool = False,
) -> Run:
    """Start FFmpeg, which reads video from its stdin.

    ``command`` gets FFmpeg's names of two pipes: the one for its reports, and the one
    with the audio.  FFmpeg has a process group of its own: Ctrl-C in the terminal goes
    to the program only, which closes the pipes, so that FFmpeg finishes its file.
    """
    with ChildPipes() as pipes:
        video_fd, video = pipes.into(ChildStdin, "reads")
        audio_fd, audio = pipes.into(ChildStdin, "reads") if has_audio else (None, None)
        progress_fd, progress = pipes.tail(REPORT_BYTES)
        process = await open_process(
            command(f"pipe:{progress_fd}", f"pipe:{audio_fd}"),
            stdin=video_fd,
            stdout=gives_output,
            pass_fds=[fd for fd in (progress_fd, audio_fd) if fd is not None],
            env=environment(),
            start_new_group=True,
        )
        pipes.keep()
    run = Run(process, progress, video, audio)
    try:
        if patience is not None:
            run.watch(patience)
        return run
    except BaseException:
        run.abort()  # else its threads would keep it alive
        raise


# ---- FFmpeg's reports ----------------------------------------------------------------


@dataclass(frozen=True)
class Status:
    """FFmpeg's last report; it sends two a second, and one at the end."""

    frames: int = 0  # encoded so far
    fps: float = 0.0
    bitrate: float | None = None  # bits a second
    size: int | None = None  # bytes of output
    out_time: float = 0.0  # seconds of output
    duplicated: int = 0
    dropped: int = 0
    speed: float | None = None  # seconds of output in a second
    ended: bool = False  # this was the last report


def status_in(text: str) -> Status:
    """Return the last whole report in FFmpeg's ``-progress`` output."""
    report: dict[str, str] = {}
    fields: dict[str, str] = {}
    for line in text.splitlines(keepends=True):
        name, _, value = line.partition("=")
        fields[name] = value.strip()
        if name == "progress" and line.endswith("\n"):
            report, fields = fields, {}

    def number(name: str) -> float | None:
        """Return the number; None for "N/A" and "inf"."""
        text = report.get(name, "").removesuffix("kbits/s").removesuffix("x")
        try:
            value = float(text)
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    bitrate, size = number("bitrate"), number("total_size")
    return Status(
        frames=int(number("frame") or 0),
        fps=number("fps") or 0.0,
        bitrate=None if bitrate is None else bitrate * 1000,
        size=None if size is None else int(size),
        out_time=max(number("out_time_us") or 0.0, 0.0) / 1e6,
        duplicated=int(number("dup_frames") or 0),
        dropped=int(number("drop_frames") or 0),
        speed=number("speed"),
        ended=report.get("progress") == "end",
    )


# ---- the base of Reader and Writer ---------------------------------------------------


class Video:
    """Base of `Reader` and `Writer`: an FFmpeg that starts when they are opened."""

    size: tuple[int, int]
    pix_fmt: str
    _process: Process | None = None

    async def _open(self) -> Self:
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    async def __aenter__(self) -> Self:
        return await self._open()

    def _not_open(self) -> RuntimeError:
        name = type(self).__name__
        return RuntimeError(f"this {name} is not open: await it, or use async with")

    @property
    def log(self) -> str:
        """What FFmpeg has logged last: warnings and errors.

        For a Reader, also what it says of the film.
        """
        return "" if self._process is None else self._process.stderr_tail

    @property
    def pid(self) -> int:
        """FFmpeg's process id."""
        if self._process is None:
            raise self._not_open()
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """FFmpeg's exit code, or minus the signal that ended it; None while it runs."""
        return None if self._process is None else self._process.returncode

    def __repr__(self) -> str:
        code = self.returncode
        state = "not open" if self._process is None else "running"
        if code is not None:
            state = f"ended with code {code}"
        width, height = self.size
        return f"<{type(self).__name__} {width}x{height} {self.pix_fmt}, {state}>"
