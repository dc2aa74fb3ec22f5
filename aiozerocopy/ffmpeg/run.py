"""One run of FFmpeg: its input pipes, its errors, its end, and a watchdog for it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import signal
import termios
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from aiozerocopy._core import fork_and_exit
from aiozerocopy._core.errors import StreamBroken
from aiozerocopy._process.pipes import ChildPipes
from aiozerocopy.ffmpeg.binary import environment
from aiozerocopy.ffmpeg.status import REPORT_BYTES, Status, parse
from aiozerocopy.process import LAST_WORDS, Process, open_process
from aiozerocopy.streams import ReceiveStream, SendStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozerocopy._process.child import Tail

LAST_LINES = 20


class FFmpegError(StreamBroken):
    """FFmpeg failed, or ended before its time.

    ``returncode`` is its exit code, or minus the signal that ended it, and None if it
    still runs; ``stderr`` has its last lines.  ``bytes_sent`` and ``total`` are as in
    `StreamBroken`.
    """


def failure(returncode: int | None, log: str, reason: str = "") -> FFmpegError:
    """An error that tells how FFmpeg ended, and what it said last."""
    error = FFmpegError(reason or _reason(returncode))
    error.returncode = returncode
    error.stderr = "".join(log.splitlines(keepends=True)[-LAST_LINES:])
    return error


def _reason(returncode: int | None) -> str:
    if returncode is None:
        return "FFmpeg has closed its input"
    if returncode == 0:
        return "FFmpeg has ended by itself (told to by -t, -frames or -shortest?)"
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
    """Kills a child that has done nothing for ``timeout`` seconds while we waited.

    A thread, so it works even if the event loop is blocked, and costs a send nothing.
    ``is_awaited`` tells whether anything waits for the child; what ``signs`` returns
    changes while the child works.
    """

    def __init__(
        self,
        process: Process,
        timeout: float,
        is_awaited: Callable[[], bool],
        signs: Callable[[], object],
    ) -> None:
        self.barked: bool = False
        self._process = process
        self.timeout = timeout
        self._is_awaited = is_awaited
        self._signs = signs
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="aiozerocopy watchdog", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        looked, silent = time.monotonic(), 0.0
        before, busy = self._signs(), self._cpu_seconds()
        while not self._stop.wait(self.timeout / 8):
            now, signs, cpu = time.monotonic(), self._signs(), self._cpu_seconds()
            # If this thread did not run for long, the child may not have run either.
            silent += min(now - looked, self.timeout / 4)
            looked = now
            # A child that waits for input still uses a little CPU time, by polling;
            # one that takes minutes to encode a frame uses much.
            works = signs != before or cpu - busy > self.timeout / 100
            if works or not self._is_awaited():
                silent, before, busy = 0.0, signs, cpu
            elif silent >= self.timeout:
                self.barked = True
                self._process.kill()
                return

    def _cpu_seconds(self) -> float:
        """The child's CPU time so far; 0 where that is not known."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text()
            fields = stat.rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return 0.0

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()


class Input(SendStream):
    """A stream into FFmpeg, whose end it reports as an `FFmpegError`."""

    run: Run | None = None

    async def _explain(self, error: StreamBroken) -> None:
        if self.run is not None and error.errno == errno.EPIPE:
            with anyio.move_on_after(LAST_WORDS):
                await self.run.process.wait()
            raise self._translated(self.run, error) from error.__cause__

    def _explain_in_thread(self, error: StreamBroken) -> None:
        if self.run is not None and error.errno == errno.EPIPE:
            with contextlib.suppress(TimeoutError):
                self.run.process.wait_from_thread(LAST_WORDS)
            raise self._translated(self.run, error) from error.__cause__

    def _translated(self, run: Run, error: StreamBroken) -> FFmpegError:
        told = run.failure()
        told.errno = error.errno
        told.bytes_sent, told.total = error.bytes_sent, error.total
        return told


class Run:
    """FFmpeg with pipes into it."""

    def __init__(
        self, process: Process, progress: Tail, video: Input, audio: Input | None
    ) -> None:
        self.process = process
        self.video = video
        self.audio = audio
        self.inputs: list[Input] = [video] if audio is None else [video, audio]
        for stream in self.inputs:
            stream.run = self
        self._progress = progress
        self._watchdog: Watchdog | None = None
        self._is_closing = False  # its inputs were closed, and its end is awaited
        self._generation = fork_and_exit.generation

    @property
    def is_inherited(self) -> bool:
        """In a forked child: it is the parent's."""
        return self._generation != fork_and_exit.generation

    def watch(self, timeout: float) -> None:
        """End it if it does nothing for so long while something waits for it."""
        output = self.process.stdout

        def is_awaited() -> bool:
            if output is not None and (self._has_ended or _has_bytes(output)):
                return False  # FFmpeg waits for its output to be taken
            return self._is_closing or any(_counters(one)[1] for one in self.inputs)

        def signs() -> object:
            status = self.status()
            sent = [_counters(stream)[0] for stream in self.inputs]
            return sent, status.frames, status.size

        self._watchdog = Watchdog(self.process, timeout, is_awaited, signs)

    def status(self) -> Status:
        return parse(self._progress.text())

    @property
    def log(self) -> str:
        return self.process.stderr_tail

    # -- its end ------------------------------------------------------------------

    def failure(self) -> FFmpegError:
        if self._watchdog is not None and self._watchdog.barked:
            seconds = self._watchdog.timeout
            reason = f"FFmpeg did nothing for {seconds:g} s and was ended"
            if self.audio is not None:
                reason += " (are picture and sound sent from two tasks?)"
        elif unfinished := _UNFINISHED.search(self.log):
            reason = f"FFmpeg failed: {unfinished['what']}"
        else:
            reason = ""
        return failure(self.process.returncode, self.log, reason)

    @property
    def _has_ended(self) -> bool:
        return self.process.returncode is not None

    @property
    def has_failed(self) -> bool:
        """Has it ended with an error?"""
        code = self.process.returncode
        if code is None:
            return False
        return code != 0 or bool(_UNFINISHED.search(self.log))

    async def close_inputs(self) -> None:
        """Send what they accepted and close them, both at once: FFmpeg may want the
        end of one before it goes on with the other."""
        self._is_closing = True
        errors: list[StreamBroken] = []

        async def close(stream: Input) -> None:
            try:
                await stream.aclose()
            except StreamBroken as error:
                errors.append(error)

        if self.audio is None:
            await self.video.aclose()
            return
        async with anyio.create_task_group() as tasks:
            for stream in self.inputs:
                tasks.start_soon(close, stream)
        if errors:
            raise errors[0]

    async def finish(self) -> None:
        """Wait until it has written all.

        Raises:
            FFmpegError: it could not.
        """
        await self.close_inputs()
        await self.process.wait()
        if self.has_failed:
            raise self.failure()

    def abort(self) -> None:
        """Kill it at once."""
        self.process.abort()  # first, or it would finish a file from part of the video
        for stream in self.inputs:
            stream.abort()
        self._end_threads()

    async def end(self) -> None:
        """End it, even if we are cancelled.  If it still runs, it has two seconds to
        finish its file."""
        try:
            for stream in self.inputs:
                stream.abort()
            await self.process.aclose(grace=0)
        finally:
            self._end_threads()

    def _end_threads(self) -> None:
        """Kill it if it still runs, and end the threads that read and watch it."""
        self.process.abort()
        self._progress.stop()
        if self._watchdog is not None:
            self._watchdog.stop()


def _counters(stream: Input) -> tuple[int, int]:
    """Bytes that were sent, and messages still queued.  From any thread."""
    stats = stream.stats
    return stats.bytes_sent, stats.messages_queued


def _has_bytes(output: ReceiveStream) -> bool:
    """Are there some to be received?  From any thread."""
    count = bytearray(4)
    try:
        fcntl.ioctl(output.fileno(), termios.FIONREAD, count)
    except (OSError, ValueError):  # it is closed
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

    ``command`` gets the names that FFmpeg knows its pipes by: where it reports, and
    where it reads audio.  If it ``gives_output``, that is its process's stdout.

    It is in a process group of its own: Ctrl-C in the terminal is for the program,
    which closes the pipes, and then FFmpeg writes its file to the end.
    """
    with ChildPipes() as pipes:
        video_fd, video = pipes.into(Input, "reads")
        audio_fd, audio = pipes.into(Input, "reads") if has_audio else (None, None)
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
    if patience is not None:
        run.watch(patience)
    return run
