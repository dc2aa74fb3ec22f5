"""A running FFmpeg: the pipes into it, what goes wrong with it, and its end."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from aiozerocopy import _native
from aiozerocopy._errors import StreamBroken
from aiozerocopy._tail import Tail
from aiozerocopy.ffmpeg.finding import environment
from aiozerocopy.ffmpeg.progress import REPORT_BYTES, Status, Watchdog, parse
from aiozerocopy.opening import PIPE_SIZE, flags_for
from aiozerocopy.process import (
    LAST_WORDS,
    TAIL_BYTES,
    Process,
    _Child,
    _own_end,
    _pipe_from_child,
    _pipe_to_child,
)
from aiozerocopy.streams import SendStream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LAST_LINES = 20
QUIETLY = ["-nostdin", "-hide_banner", "-nostats"]


class FFmpegError(StreamBroken):
    """FFmpeg failed, or ended before its time.

    ``returncode`` is its exit code, or minus the signal that ended it, and None if it
    still runs; ``stderr`` has its last lines.  ``bytes_sent`` and ``total`` are as in
    `StreamBroken`.
    """


def failure(returncode: int | None, log: str, reason: str = "") -> FFmpegError:
    """The error for how FFmpeg ended, and what it said."""
    error = FFmpegError(reason or _reason(returncode))
    error.returncode = returncode
    error.stderr = "".join(log.splitlines(keepends=True)[-LAST_LINES:])
    return error


def _reason(returncode: int | None) -> str:
    if returncode is None:
        return "FFmpeg has closed its input"
    if returncode == 0:
        return "FFmpeg has ended by itself"
    if returncode < 0:
        return f"FFmpeg was ended by {signal.Signals(-returncode).name}"
    return "FFmpeg failed"


# Some FFmpegs say this, and then that all went well (exit code 0).
_UNFINISHED = re.compile(
    r"^.*(?:Error (?:writing trailer|closing file)|already exists. Exiting).*$",
    re.MULTILINE,
)


class Child(_Child):
    """What the process and the streams into it know of FFmpeg."""

    def __init__(
        self, popen: subprocess.Popen[bytes], log: Tail, progress: Tail
    ) -> None:
        super().__init__(popen, log)
        self._progress = progress
        self._watchdog: Watchdog | None = None
        self._hint = ""
        self.is_closing = False  # its inputs were closed, and its end is awaited

    def watch(self, inputs: Sequence[Input], timeout: float) -> None:
        """End it once it has done nothing for so long, while somebody waits for it."""

        def is_awaited() -> bool:
            return self.is_closing or any(_counters(stream)[1] for stream in inputs)

        def signs() -> object:
            status = self.status()
            sent = [_counters(stream)[0] for stream in inputs]
            return sent, status.frames, status.size

        if len(inputs) > 1:
            self._hint = " (are picture and sound sent from two tasks?)"
        self._watchdog = Watchdog(self.popen, timeout, is_awaited, signs)

    def status(self) -> Status:
        return parse(self._progress.text())

    def failure(self) -> FFmpegError:
        if self._watchdog is not None and self._watchdog.barked:
            seconds = self._watchdog.timeout
            reason = f"FFmpeg did nothing for {seconds:g} s and was ended{self._hint}"
        elif unfinished := _UNFINISHED.search(self.last_words()):
            reason = unfinished[0]
        else:
            reason = ""
        return failure(self.popen.poll(), self.last_words(), reason)

    @property
    def has_failed(self) -> bool:
        """Did it end, and not well?"""
        code = self.popen.poll()
        if code is None:
            return False
        return code != 0 or bool(_UNFINISHED.search(self.last_words()))

    def end(self) -> None:
        super().end()
        self._progress.stop()
        if self._watchdog is not None:
            self._watchdog.stop()


def _counters(stream: Input) -> tuple[int, int]:
    """Bytes that were sent and messages that were not, asked in another thread."""
    try:
        stats = stream.stats
    except TypeError:  # it is being closed in this very moment
        return 0, 0
    return stats.bytes_sent, stats.messages_queued


class Input(SendStream):
    """A way into FFmpeg.  Its end is told as what it is: an `FFmpegError`."""

    child: Child | None = None

    async def _explain(self, error: StreamBroken) -> None:
        if self.child is not None and error.errno == errno.EPIPE:
            with anyio.move_on_after(LAST_WORDS):
                await self.child.wait()
            raise self._translated(self.child, error) from error.__cause__

    def _explain_in_thread(self, error: StreamBroken) -> None:
        if self.child is not None and error.errno == errno.EPIPE:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.child.popen.wait(timeout=LAST_WORDS)
            raise self._translated(self.child, error) from error.__cause__

    def _translated(self, child: Child, error: StreamBroken) -> FFmpegError:
        told = child.failure()
        told.errno = error.errno
        told.bytes_sent, told.total = error.bytes_sent, error.total
        return told


@dataclass
class Running:
    """FFmpeg with pipes into it."""

    process: Process
    child: Child
    video: Input
    audio: Input | None

    @property
    def is_inherited(self) -> bool:
        """In a forked child: it is the parent's."""
        return self.video._out.inherited

    @property
    def inputs(self) -> list[Input]:
        return [self.video] if self.audio is None else [self.video, self.audio]

    async def close_inputs(self) -> None:
        """Send what they accepted and close them, each in its own time: FFmpeg may
        want the end of one before it goes on with the other."""
        self.child.is_closing = True
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
        if self.child.has_failed:
            raise self.child.failure()

    def abort(self) -> None:
        """End it at once.  In this order, or it would take a part for all."""
        self.process.kill()
        for stream in self.inputs:
            stream.abort()


def start(
    command: Callable[[str, str], list[str]],
    *,
    has_audio: bool,
    peer: str,
    timeout: float | None,
) -> Running:
    """Start FFmpeg, which reads video from its stdin.

    ``command`` gets the names that FFmpeg knows its pipes by: where it reports, and
    where it reads audio.  Awaits nothing, so that nobody can cancel half a child.
    It is in a session of its own: Ctrl-C in the terminal is for the program, which
    closes the pipes, and then FFmpeg writes its file to the end.
    """
    flags = _native.OUT | flags_for(peer)
    with contextlib.ExitStack() as theirs, contextlib.ExitStack() as undo:

        def new_input() -> tuple[int, Input]:
            fd, ours = _pipe_to_child(theirs)
            stream = Input(_own_end(ours, flags, PIPE_SIZE))
            undo.callback(stream.abort)
            return fd, stream

        def new_tail(limit: int) -> tuple[int, Tail]:
            ours, fd = _pipe_from_child(theirs)
            tail = Tail(ours, limit)
            undo.callback(tail.stop)
            return fd, tail

        video_fd, video = new_input()
        audio_fd, audio = new_input() if has_audio else (os.devnull, None)
        progress_fd, progress = new_tail(REPORT_BYTES)
        log_fd, log = new_tail(TAIL_BYTES)
        popen = subprocess.Popen(
            command(f"pipe:{progress_fd}", f"pipe:{audio_fd}"),
            stdin=video_fd,
            stdout=subprocess.DEVNULL,
            stderr=log_fd,
            pass_fds=[fd for fd in (progress_fd, audio_fd) if isinstance(fd, int)],
            env=environment(),
            start_new_session=True,
        )
        undo.pop_all()
    child = Child(popen, log, progress)
    running = Running(Process(child, None, None), child, video, audio)
    for stream in running.inputs:
        stream.child = child
    if timeout is not None:
        child.watch(running.inputs, timeout)
    return running
