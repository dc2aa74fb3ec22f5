"""Writer: frames, and samples of audio, to a file, a URL, or whatever FFmpeg makes."""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import TYPE_CHECKING, Any

import anyio

from aiozerocopy._core.errors import StreamBroken, StreamClosed
from aiozerocopy._core.lifetime import Stats
from aiozerocopy.ffmpeg.arguments import (
    AT_ONCE,
    audio_arguments,
    checked_format,
    checked_rate,
    checked_size,
    input_arguments,
    output_arguments,
    words,
)
from aiozerocopy.ffmpeg.finding import find_ffmpeg
from aiozerocopy.ffmpeg.formats import Audio, Layout
from aiozerocopy.ffmpeg.probing import frame_layout
from aiozerocopy.ffmpeg.progress import Status
from aiozerocopy.ffmpeg.running import QUIETLY, Running, start
from aiozerocopy.process import GRACE

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from fractions import Fraction
    from types import TracebackType

    from typing_extensions import Buffer

    from aiozerocopy.streams import Ticket

    Path = str | os.PathLike[str]

TIMEOUT = 60.0  # seconds that FFmpeg may do nothing while somebody waits for it


class Writer:
    """An FFmpeg that takes frames; await it, or use it with ``async with``.

    ``output`` is a path, a URL (rtmp:, srt:, ...), or a list of FFmpeg's output
    arguments such as ``["-f", "null", "-"]``.  ``options`` go before it, and so may
    name more inputs and a map.  ``codec`` is FFmpeg's name of the encoder.  ``fps`` is
    a number, a Fraction or "30000/1001".

    ``audio`` is a path or URL, a list of FFmpeg's input arguments, or an `Audio`: then
    the samples come by `send_audio`.  Send pictures and sound from two tasks: FFmpeg
    lets neither get far ahead of the other, so both must be able to wait.

    ``ffmpeg`` names the binary.  ``peer`` is how it reads, see `open_writer`.  An
    FFmpeg that has done nothing for ``timeout`` seconds (None: for ever), while it had
    something to do, is killed.

    The end of the block finishes the file.  If an exception ends the block, the file
    has the frames sent before it.  `abort` finishes nothing.
    """

    def __init__(
        self,
        output: Path | Sequence[Path],
        size: tuple[int, int],
        fps: float | Fraction | str = 60,
        pix_fmt: str = "rgb24",
        codec: str | None = None,
        options: Sequence[str] = (),
        audio: Audio | Path | Sequence[str] | None = None,
        ffmpeg: Path | None = None,
        *,
        overwrite: bool = True,
        timeout: float | None = TIMEOUT,
        peer: str = "reads",
    ) -> None:
        """Look at the arguments; FFmpeg is started later.

        Raises:
            ValueError, TypeError: arguments that mean nothing.
        """
        self.size = checked_size(size)
        self.fps = checked_rate(fps)
        self.pix_fmt = checked_format(pix_fmt)
        self.audio: Audio | None = None
        self._sound: list[str] = []  # FFmpeg's arguments for sound from elsewhere
        if isinstance(audio, Audio):
            self.audio = audio
        elif audio is not None:
            self._sound = input_arguments(audio)
        self._layout: Layout | None = None
        self._running: Running | None = None
        self._closed = False
        if timeout is not None and timeout <= 0:
            raise ValueError(f"timeout is seconds, or None for ever, not {timeout}")
        self._ffmpeg = ffmpeg
        self._peer = peer
        self._timeout = timeout
        encoder = [] if codec is None else ["-c:v", codec]
        self._output = [*encoder, *words(options), *output_arguments(output)]
        self._overwrite = overwrite

    # -- the beginning ------------------------------------------------------------

    async def _open(self) -> Writer:
        """Start FFmpeg.

        Raises:
            FileNotFoundError: there is no FFmpeg.
            ValueError: FFmpeg does not know the pixel format.
        """
        if self._running is not None:
            raise RuntimeError("this Writer was opened before")
        binary = os.fspath(self._ffmpeg or find_ffmpeg())
        self._layout = await frame_layout(self.pix_fmt, self.size, binary)

        def command(progress: str, audio: str) -> list[str]:
            return [binary, *self._arguments(progress, audio)]

        self._running = await start(
            command,
            has_audio=self.audio is not None,
            peer=self._peer,
            patience=self._timeout,
        )
        return self

    def _arguments(self, progress: str, audio: str) -> list[str]:
        width, height = self.size
        return [
            *(*QUIETLY, "-loglevel", "warning", "-progress", progress),
            "-y" if self._overwrite else "-n",
            *(*AT_ONCE, "-f", "rawvideo", "-pix_fmt", self.pix_fmt),
            *("-video_size", f"{width}x{height}", "-framerate", str(self.fps)),
            *("-i", "pipe:0"),
            *(*audio_arguments(self.audio, audio), *self._sound),
            *self._output,
        ]

    def __await__(self) -> Generator[Any, None, Writer]:
        return self._open().__await__()

    async def __aenter__(self) -> Writer:
        return await self._open()

    # -- frames and samples -------------------------------------------------------

    async def send(self, *planes: Buffer) -> None:
        """Send one frame, in one piece or in planes; then its memory is yours again.

        It is borrowed until then; cancelled, this behaves as `SendStream.send`.

        Raises:
            ValueError: not a frame's size, dtype or shape.
            TypeError, BufferError: no buffer, or not contiguous.  In all these cases
                nothing was sent, and the video goes on.
            FFmpegError: FFmpeg failed, and why.
            StreamClosed: the video was closed.
        """
        running = self._open_for_frames(planes)
        await running.video.send(*planes)

    async def put(self, *planes: Buffer) -> Ticket:
        """Queue one frame, waiting for room only.

        It stays borrowed until the ticket is done; ``await ticket`` waits for that.

        Raises: as `send`, and so does the ticket.
        """
        running = self._open_for_frames(planes)
        return await running.video.put(*planes)

    async def send_audio(self, samples: Buffer) -> None:
        """Send samples, all channels of one after the other; then they are yours.

        Do that in a task of its own.  If the sound ends before the pictures, call
        `close_audio` after the last samples.

        Raises: as `send`; RuntimeError if the Writer has no `Audio`.
        """
        running = self._open_running()
        if running.audio is None or self.audio is None:
            raise RuntimeError("this video has no audio of its own: audio=Audio(...)")
        self.audio.check(samples)
        await running.audio.send(samples)

    async def close_audio(self) -> None:
        """End the sound, so that FFmpeg does not wait for more of it.

        Raises: as `send_audio`.
        """
        running = self._open_running()
        if running.audio is not None:
            await running.audio.aclose()

    def _open_for_frames(self, planes: Sequence[Buffer]) -> Running:
        running = self._open_running()
        self.layout.check(planes)
        return running

    def _open_running(self) -> Running:
        if self._running is None:
            raise RuntimeError("this Writer is not open: await it, or use async with")
        if self._closed:
            raise StreamClosed("the video was closed")
        return self._running

    # -- what is known ------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """How a frame lies in memory, for a `FramePool` of its shape and dtype."""
        if self._layout is None:
            raise RuntimeError("this Writer is not open: await it, or use async with")
        return self._layout

    @property
    def frame_bytes(self) -> int:
        """The size of one frame."""
        return self.layout.nbytes

    @property
    def status(self) -> Status:
        """What FFmpeg has reported last: frames, fps, bitrate and more."""
        return Status() if self._running is None else self._running.child.status()

    @property
    def log(self) -> str:
        """What FFmpeg has said last: warnings and errors."""
        return "" if self._running is None else self._running.child.log

    @property
    def returncode(self) -> int | None:
        """FFmpeg's exit code, or minus the signal that ended it; None while it runs."""
        return None if self._running is None else self._running.process.returncode

    @property
    def pid(self) -> int:
        """FFmpeg's process id."""
        return self._open_running().process.pid

    @property
    def stats(self) -> Stats:
        """Counters of the stream of frames."""
        return Stats() if self._running is None else self._running.video.stats

    @property
    def lane(self) -> str:
        """How the frames travel: see `SendStream.lane`."""
        return self._open_running().video.lane

    # -- the end ------------------------------------------------------------------

    async def aclose(self) -> None:
        """Send what was put, and wait until FFmpeg has written all.

        Cancelled, it gives FFmpeg two seconds more to end the file.

        Raises:
            FFmpegError: FFmpeg failed, and why.
        """
        running = self._running
        if self._closed or running is None:
            return
        self._closed = True
        try:
            await running.finish()
        finally:
            await running.end()

    def abort(self) -> None:
        """Kill FFmpeg now.  What it has written is left as it is."""
        if self._running is not None:
            self._closed = True
            self._running.abort()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        if exc_val is None:
            await self.aclose()
            return
        # Finish the file if FFmpeg is quick enough, but let none of its errors hide the
        # exception that ended the block.
        with (
            anyio.CancelScope(shield=True),
            anyio.move_on_after(GRACE),
            contextlib.suppress(StreamBroken),
        ):
            await self.aclose()

    def __del__(self) -> None:
        running = getattr(self, "_running", None)
        if running is None or self._closed or running.is_inherited:
            return
        try:
            warnings.warn(
                f"unclosed {self!r}", ResourceWarning, stacklevel=1, source=self
            )
        finally:
            self.abort()

    def __repr__(self) -> str:
        code = self.returncode
        state = "not open" if self._running is None else "running"
        if code is not None:
            state = f"ended with code {code}"
        width, height = self.size
        return f"<Writer {width}x{height} {self.pix_fmt}, {state}>"
