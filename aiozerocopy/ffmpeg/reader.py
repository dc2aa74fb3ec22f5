"""Reader: the frames of a video, each straight into a slot of a pool."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import ObjectReceiveStream

from aiozerocopy._core.errors import IncompleteReceive, StreamClosed
from aiozerocopy.ffmpeg.arguments import (
    checked_format,
    checked_rate,
    checked_size,
    input_arguments,
    words,
)
from aiozerocopy.ffmpeg.finding import environment, find_ffmpeg
from aiozerocopy.ffmpeg.probing import Facts, facts_in, frame_layout
from aiozerocopy.ffmpeg.running import QUIETLY, FFmpegError, failure
from aiozerocopy.pool import Frame, FramePool
from aiozerocopy.process import LAST_WORDS, Process, open_process

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from fractions import Fraction

    from aiozerocopy.ffmpeg.formats import Layout
    from aiozerocopy.streams import ReceiveStream

_LOG_BYTES = 1 << 20  # a file's metadata is logged before its first frame


class Reader(ObjectReceiveStream[Frame]):
    """An FFmpeg that decodes a video; await it, or use it with ``async with``.

    ``source`` is a path, a URL, or a list of FFmpeg's input arguments such as
    ``["-ss", "5", "-i", "a.mp4"]``.  ``options`` are for the output: filters, a map.
    With ``size`` (width and height) the frames are scaled, with ``fps`` some are left
    out or repeated.  They come at a constant rate.

    ``async for frame in video`` leases one slot of the pool after the other: release
    each when it is done with (``with frame:``), or the pool runs dry.  The pool has
    ``slots`` slots, or is the ``pool`` that is given.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[str],
        pix_fmt: str = "rgb24",
        *,
        size: tuple[int, int] | None = None,
        fps: float | Fraction | str | None = None,
        options: Sequence[str] = (),
        slots: int = 3,
        pool: FramePool | None = None,
        ffmpeg: str | os.PathLike[str] | None = None,
    ) -> None:
        """Look at the arguments; FFmpeg is started later.

        Raises:
            ValueError, TypeError: arguments that mean nothing.
        """
        self.pix_fmt = checked_format(pix_fmt)
        self.frames_received = 0
        self._source = input_arguments(source)
        self._output = [*words(options), "-pix_fmt", pix_fmt]
        if size is not None:
            width, height = checked_size(size)
            self._output += ["-s", f"{width}x{height}"]
        if fps is not None:
            self._output += ["-r", str(checked_rate(fps))]
        if slots < 1:
            raise ValueError(f"a pool needs at least one slot, not {slots}")
        self._slots = slots
        self._pool = pool
        self._own_pool = pool is None
        self._ffmpeg = ffmpeg
        self._process: Process | None = None
        self._facts: Facts | None = None
        self._layout: Layout | None = None
        self._ended = self._closed = False

    # -- the beginning ------------------------------------------------------------

    async def _open(self) -> Reader:
        """Start FFmpeg, and wait until it has the first frame.

        Raises:
            FileNotFoundError: there is no FFmpeg.
            FFmpegError: it cannot read the source, and why.
            ValueError: the frames do not fit in the pool.
        """
        if self._process is not None:
            raise RuntimeError("this Reader was opened before")
        binary = os.fspath(self._ffmpeg or find_ffmpeg())
        self._process = await open_process(
            [
                *(binary, *QUIETLY, "-loglevel", "info", *self._source),
                *(*self._output, "-f", "rawvideo", "pipe:1"),
            ],
            stdin=False,
            stdout=True,
            tail_bytes=_LOG_BYTES,
            env=environment(),
            start_new_session=True,
        )
        try:
            await self._look(binary)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def _look(self, binary: str) -> None:
        """Wait for the first byte, then read from the log what comes."""
        stream = self._stream
        try:
            stream._unread = await stream.receive(1)
        except anyio.EndOfStream:
            await self._end()
            return
        self._facts = facts_in(self.log)
        if self._facts is None:
            raise failure(None, self.log, "FFmpeg did not say how large a frame is")
        self._layout = await frame_layout(self.pix_fmt, self._facts.size, binary)
        if self._pool is None:
            self._pool = FramePool(
                self._layout.shape, self._layout.dtype, slots=self._slots
            )
        elif self._pool.frame_bytes != self._layout.nbytes:
            raise ValueError(
                f"{self._layout} has {self._layout.nbytes:,} bytes, and a frame of the "
                f"pool {self._pool.frame_bytes:,}"
            )

    def __await__(self) -> Generator[Any, None, Reader]:
        return self._open().__await__()

    async def __aenter__(self) -> Reader:
        return await self._open()

    # -- frames -------------------------------------------------------------------

    async def receive(self) -> Frame:
        """The next frame, in a slot that is leased to you.

        Waits for a free slot, then for the frame.  Cancelled, it loses nothing.

        Raises:
            EndOfStream: there are no more, and all was well.
            FFmpegError: FFmpeg failed, or ended inside a frame.
            StreamClosed: the video was closed.
        """
        stream = self._stream
        if self._closed:
            raise StreamClosed("the video was closed")
        if self._ended or self._pool is None:
            raise anyio.EndOfStream
        frame = await self._pool.acquire()
        try:
            await stream.receive_exactly(frame)
        except BaseException as error:
            frame.release()
            if isinstance(error, anyio.EndOfStream):
                await self._end()
            elif isinstance(error, IncompleteReceive):
                raise await self._incomplete(error) from error
            raise
        self.frames_received += 1
        return frame

    async def _end(self) -> None:
        """No more bytes come: raise if FFmpeg failed."""
        self._ended = True
        assert self._process is not None
        code = await self._process.wait()
        if code:
            raise failure(code, self.log) from None

    async def _incomplete(self, error: IncompleteReceive) -> FFmpegError:
        self._ended = True
        assert self._process is not None
        with anyio.move_on_after(LAST_WORDS):
            await self._process.wait()
        where = f"the video ended inside frame {self.frames_received:,}: {error}"
        return failure(self._process.returncode, self.log, where)

    @property
    def _stream(self) -> ReceiveStream:
        if self._process is None or self._process.stdout is None:
            raise RuntimeError("this Reader is not open: await it, or use async with")
        return self._process.stdout

    # -- what is known ------------------------------------------------------------

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the frames; (0, 0) if there are none at all."""
        return (0, 0) if self._facts is None else self._facts.size

    @property
    def fps(self) -> Fraction | None:
        """Frames a second, if FFmpeg knows."""
        return None if self._facts is None else self._facts.fps

    @property
    def duration(self) -> float | None:
        """Seconds from beginning to end of the source, if FFmpeg knows."""
        return None if self._facts is None else self._facts.duration

    @property
    def layout(self) -> Layout | None:
        """How a frame lies in memory."""
        return self._layout

    @property
    def pool(self) -> FramePool | None:
        """Where the frames are."""
        return self._pool

    @property
    def log(self) -> str:
        """What FFmpeg has said last."""
        return "" if self._process is None else self._process.stderr_tail

    @property
    def returncode(self) -> int | None:
        """FFmpeg's exit code, or minus the signal that ended it; None while it runs."""
        return None if self._process is None else self._process.returncode

    @property
    def pid(self) -> int:
        """FFmpeg's process id."""
        if self._process is None:
            raise RuntimeError("this Reader is not open: await it, or use async with")
        return self._process.pid

    # -- the end ------------------------------------------------------------------

    async def aclose(self) -> None:
        """End FFmpeg, however far it is.  Leased frames stay valid."""
        self._closed = True
        if self._own_pool and self._pool is not None:
            self._pool.close()
        if self._process is not None:
            self._process.kill()  # it has nothing to finish
            await self._process.aclose(grace=0)

    def __repr__(self) -> str:
        state = "not open" if self._process is None else "running"
        if self.returncode is not None:
            state = f"ended with code {self.returncode}"
        width, height = self.size
        return f"<Reader {width}x{height} {self.pix_fmt}, {state}>"
