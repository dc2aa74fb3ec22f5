"""Reader: the frames of a video, each straight into a slot of a pool."""

from __future__ import annotations

import contextlib
import os
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Literal, cast, overload

import anyio
from anyio.abc import ObjectReceiveStream

from aiozerocopy._core import extras
from aiozerocopy._core.errors import IncompleteReceive, StreamClosed
from aiozerocopy._core.pipe_size import PIPE_SIZE, enlarge_pipe
from aiozerocopy._process.pipes import ChildPipes
from aiozerocopy.ffmpeg import arguments
from aiozerocopy.ffmpeg.binary import QUIETLY, environment, find_ffmpeg, silence_told
from aiozerocopy.ffmpeg.colours import Request, conversion_of
from aiozerocopy.ffmpeg.converters import ReceivingConverter, let_go
from aiozerocopy.ffmpeg.facts import Times, facts_in
from aiozerocopy.ffmpeg.layouts import frame_layout
from aiozerocopy.ffmpeg.run import FFmpegError, Video, failure
from aiozerocopy.pool import Frame, FramePool
from aiozerocopy.process import LAST_WORDS, open_process

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    import numpy.typing as npt
    from typing_extensions import Self, TypeVar

    from aiozerocopy.ffmpeg.facts import Facts
    from aiozerocopy.ffmpeg.layouts import Layout
    from aiozerocopy.streams import ReceiveStream

    Memory = Frame | npt.NDArray[Any]  # of one frame
    Seconds = float | Fraction | str
    Picture = TypeVar("Picture", default=Frame, covariant=True)
else:
    from typing import TypeVar

    Picture = TypeVar("Picture", covariant=True)

_LOG_BYTES = 1 << 20  # a file's metadata is logged before its first frame
_UNKNOWN = "Unrecognized option 'fps_mode'"  # logged by an FFmpeg before 5.1
_PATIENCE = 1.0  # seconds without a released frame, after which a warning comes


class Reader(Video, ObjectReceiveStream[Picture], Generic[Picture]):
    """An FFmpeg that decodes a video; await it, or use it with ``async with``.

    ``source`` is a path, a URL, or a list of FFmpeg's input arguments such as
    ``["-f", "v4l2", "-i", "/dev/video0"]``.  ``start`` and ``duration`` select a part
    of it: seconds, or text as FFmpeg writes times ("1:30").  ``options`` are for the
    output: filters, a map.  ``size`` (width and height) scales the frames.

    Each picture of the film comes once, with its own ``time``: seconds from the
    beginning of the film, as ``start`` counts them.  With ``fps`` they come at that
    rate: FFmpeg leaves out some pictures and repeats others.  If your ``options``
    contain ``-r``, ``-fps_mode``, ``-ss`` or a graph of filters, FFmpeg decides which
    pictures come, and their times are not known.

    Each frame of ``async for frame in video`` is a leased slot of the pool: release it
    when you are done with it (``with frame:``), or the pool runs dry.  The pool has
    ``slots`` slots, unless you give one as ``pool``.  With ``copy`` there is no pool:
    each frame is a new NumPy array, which you may keep.

    Most files have frames in yuv420p: `aiozerocopy.frames` converts these to rgb24,
    rgba and similar formats, in C.  With ``copy``, or if the Reader's own pool has a
    free slot, C converts the next frame while you look at the last.  FFmpeg converts
    all others, and with ``convert="ffmpeg"`` these too.  The film's tags say how.  A
    file without tags counts as BT.709 if it is at least 1280 wide or 720 high, and as
    BT.601 otherwise, as in players; for other sources without tags FFmpeg assumes
    BT.601.

    Once the Reader is open, it has the ``size``, ``layout`` and ``pool`` of its frames,
    even if none come, as after a ``start`` past the end; ``fps`` and ``duration``
    (seconds of the source) are None if FFmpeg does not know them.
    """

    @overload
    def __init__(
        self: Reader[Frame],
        source: str | os.PathLike[str] | Sequence[str],
        pix_fmt: str = ...,
        *,
        size: tuple[int, int] | None = ...,
        fps: float | Fraction | str | None = ...,
        start: Seconds | None = ...,
        duration: Seconds | None = ...,
        options: Sequence[str] = ...,
        slots: int = ...,
        pool: FramePool | None = ...,
        copy: Literal[False] = ...,
        convert: Literal["auto", "ffmpeg"] = ...,
        ffmpeg: str | os.PathLike[str] | None = ...,
    ) -> None: ...

    @overload
    def __init__(
        self: Reader[npt.NDArray[Any]],
        source: str | os.PathLike[str] | Sequence[str],
        pix_fmt: str = ...,
        *,
        size: tuple[int, int] | None = ...,
        fps: float | Fraction | str | None = ...,
        start: Seconds | None = ...,
        duration: Seconds | None = ...,
        options: Sequence[str] = ...,
        copy: Literal[True],
        convert: Literal["auto", "ffmpeg"] = ...,
        ffmpeg: str | os.PathLike[str] | None = ...,
    ) -> None: ...

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[str],
        pix_fmt: str = "rgb24",
        *,
        size: tuple[int, int] | None = None,
        fps: float | Fraction | str | None = None,
        start: Seconds | None = None,
        duration: Seconds | None = None,
        options: Sequence[str] = (),
        slots: int = 3,
        pool: FramePool | None = None,
        copy: bool = False,
        convert: Literal["auto", "ffmpeg"] = "auto",
        ffmpeg: str | os.PathLike[str] | None = None,
    ) -> None:
        """Check the arguments (ValueError, TypeError); FFmpeg starts at the opening."""
        self.pix_fmt: str = arguments.checked_format(pix_fmt)
        self.size: tuple[int, int] = (0, 0)  # until it is open
        self.fps: Fraction | None = None  # if FFmpeg knows it; the mean, if it varies
        self.duration: float | None = None  # seconds of the source, if FFmpeg knows it
        self.frames_received: int = 0
        self.time: float | None = None  # of the frame that was received last
        *before, dash_i, name = arguments.input_arguments(source)
        part = arguments.part_arguments(start, duration)
        self._input = [*before, *part, dash_i, name]
        self._source = source
        rate = None if fps is None else arguments.checked_rate(fps)
        own = arguments.words(options)
        told = arguments.timed(own, rate)
        if told is None and fps is not None:
            raise ValueError(
                f"fps={rate} cannot be added to {options!r}: put the rate there"
            )
        self._request = Request(pix_fmt, own if told is None else told)
        begin = 0 if start is None else arguments.checked_microseconds(start, "start")
        self._timing = begin, rate
        self._times: Times | None = None
        self._has_filters = bool(options)  # they may make many frames of one
        self._output: list[str] = [] if told is None else [*arguments.AS_THEY_COME]
        if size is not None:
            width, height = arguments.checked_size(size)
            self._output += ["-s", f"{width}x{height}"]
        if convert not in ("auto", "ffmpeg"):
            raise ValueError(f"convert must be 'auto' or 'ffmpeg', not {convert!r}")
        self._may_convert = convert == "auto" and size is None
        if slots < 1:
            raise ValueError(f"slots must be at least 1, not {slots}")
        if copy and pool is not None:
            raise ValueError("copy=True makes new arrays: do not give a pool as well")
        self._slots = slots
        self.pool: FramePool | None = pool  # where the frames are; None with copy
        self._own_pool = pool is None
        self._copies = copy
        self._ffmpeg = ffmpeg
        self.layout: Layout | None = None
        self._converter: ReceivingConverter[Memory] | None = None
        self._come: list[Memory] = []  # at most one frame, which has no time yet
        self._unread: list[Picture] = []  # `sync` puts frames back here, too
        self._ended = self._closed = self._has_warned = False

    # -- the beginning ------------------------------------------------------------

    async def _open(self) -> Self:
        """Start FFmpeg, and wait until it has the first frame.

        Raises:
            FileNotFoundError: there is no FFmpeg, or no such film.
            FFmpegError: it cannot read the source.  If the film does not exist, is a
                folder, or may not be read, the error is a FileNotFoundError,
                IsADirectoryError or PermissionError too.
            ValueError: the frames do not fit in the pool.
        """
        if self._process is not None:
            raise RuntimeError("this Reader was opened before")
        binary = os.fspath(self._ffmpeg or find_ffmpeg())
        try:
            with silence_told(binary):
                facts = await self._ask(binary)
            if facts is not None:
                await self._prepare(facts, binary)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def _ask(self, binary: str) -> Facts | None:
        """Start FFmpeg, and start it again while there is a better request."""
        request = self._request
        if not self._is_file():
            return await self._start(binary, request)
        if self._may_convert and request.may_be_as_they_are():
            request = replace(request, as_they_are=True)
        facts = await self._start(binary, request)
        while (better := request.better(facts)) != request:
            await self._stop()
            request = better
            facts = await self._start(binary, request)
        if facts is not None and request.as_they_are:
            conversion = conversion_of(facts, self.pix_fmt)
            assert conversion is not None  # or there was a better request
            self._converter = ReceivingConverter(conversion, self._stream)
        return facts

    def _is_file(self) -> bool:
        """Can the source be opened twice?  (A device or a FIFO cannot.)"""
        source = self._source
        return isinstance(source, (str, os.PathLike)) and os.path.isfile(source)

    async def _start(self, binary: str, request: Request) -> Facts | None:
        """Return what FFmpeg logs before its first frame; None if no frame comes."""
        with ChildPipes() as pipes:
            end, lines = pipes.lines()
            if self._has_filters:
                enlarge_pipe(end, PIPE_SIZE)
            self._times = Times(lines, *self._timing)
            self._process = await open_process(
                [
                    *(binary, *QUIETLY, "-loglevel", "info", *self._input),
                    *(*request.arguments(), *self._output, "pipe:1"),
                ],
                stdin=end,
                stdout=True,
                tail_bytes=_LOG_BYTES,
                env=environment(),
                start_new_group=True,
            )
            pipes.keep()
        stream = self._stream
        try:
            stream._unread = await request.first_bytes(stream)
        except anyio.EndOfStream:
            if "-fps_mode" in self._output and _UNKNOWN in self.log:
                self._output[self._output.index("-fps_mode")] = "-vsync"
                await self._stop()
                return await self._start(binary, request)
            if request.as_they_are:  # (YUV4MPEG cannot have frames of every format)
                return None
            await self._end()  # if it raises nothing, there are no frames in that part
            return facts_in(self.log)
        facts = facts_in(self.log)
        if facts is None:
            raise failure(None, self.log, "FFmpeg did not say how large a frame is")
        return facts

    async def _prepare(self, facts: Facts, binary: str) -> None:
        """Find out how a frame lies in memory, and make or check the pool."""
        self.size, self.fps = facts.frames.size, facts.fps
        self.duration = facts.duration
        self.layout = layout = await frame_layout(self.pix_fmt, self.size, binary)
        if self._copies:
            return
        if self.pool is None:
            self.pool = FramePool(layout.shape, layout.dtype, slots=self._slots)
        elif self.pool.frame_bytes != layout.nbytes:
            raise ValueError(
                f"{layout} has {layout.nbytes:,} bytes, and a frame of the "
                f"pool {self.pool.frame_bytes:,}"
            )

    # -- frames -------------------------------------------------------------------

    async def receive(self) -> Picture:
        """Return the next frame: a slot that is leased to you, or an array of yours.

        It waits for a free slot, then for the frame.  Cancelled, it loses nothing.

        Raises:
            EndOfStream: there are no more frames, and FFmpeg has not failed.
            FFmpegError: FFmpeg failed, or ended inside a frame.
            StreamClosed: the video was closed.
        """
        stream = self._stream
        if self._closed:
            raise StreamClosed("the video was closed")
        if not self._unread:
            if not self._come:
                await self._next(stream)
            self._count()
        first = self._unread[0]
        # (One line without a call: a signal handler may raise at a new line or a call.)
        del self._unread[0]; return first  # noqa: E702  # fmt: skip

    async def _next(self, stream: ReceiveStream) -> None:
        """Put the next frame into `_come`."""
        if self._ended or self.layout is None:
            raise anyio.EndOfStream
        try:
            # (one line each: no signal handler runs before the frame is stored)
            if self._converter is None:
                await self._as_it_is(stream)
            else:
                self._come += (await self._converter.receive(self._room, self._spare),)
        except anyio.EndOfStream:
            await self._end()
            raise
        except IncompleteReceive as error:
            raise await self._incomplete(error) from error

    async def _as_it_is(self, stream: ReceiveStream) -> None:
        frame = await self._room()  # (as deep as the other call: for `stacklevel`)
        try:
            await stream.receive_exactly(frame); self._come += (frame,)  # noqa: E702  # fmt: skip
        except BaseException:
            let_go(frame)
            raise

    def _count(self) -> None:
        """Give the frame that has come its time, and put it into `_unread`."""
        times, come = self._times, cast("list[Picture]", self._come)
        assert times is not None
        time, left = times.next()
        self.time = time
        for frame in self._come:
            if isinstance(frame, Frame):
                frame.time = time
        # (one line without a call, as in `receive`)
        times.left = left; self.frames_received += 1; self._unread += come; del come[:]  # noqa: E702  # fmt: skip

    def _spare(self) -> Memory | None:
        """Return memory for one more frame, if there is some to spare."""
        if self.pool is None:
            return self._array()
        with contextlib.suppress(anyio.WouldBlock):
            return self.pool.acquire_nowait() if self._own_pool else None
        return None

    def _array(self) -> npt.NDArray[Any]:
        with extras.optional("copy=True", "numpy"):
            import numpy

        assert self.layout is not None
        return numpy.empty(self.layout.shape, self.layout.dtype)

    async def _room(self) -> Memory:
        if self.pool is None:
            return self._array()
        if self._has_warned or self.pool.stats.free:
            return await self.pool.acquire()
        with anyio.move_on_after(_PATIENCE):
            return await self.pool.acquire()
        self._has_warned = True
        warnings.warn(
            f"{self!r} waits for a free slot: none of {self.pool.slots} frames was "
            f"released for {_PATIENCE:g} s. Release each frame after its use (with "
            "frame: ...), give more slots=, or get copies with copy=True",
            RuntimeWarning,
            stacklevel=6,  # the line of the caller's ``async for``
        )
        return await self.pool.acquire()

    async def _end(self) -> None:
        """No more bytes come: raise if FFmpeg failed."""
        assert self._process is not None
        code = await self._process.wait()
        self._give_up()  # (if cancelled before this, the next call comes here again)
        if code:
            raise failure(code, self.log, source=self._input[-1]) from None

    async def _incomplete(self, error: IncompleteReceive) -> FFmpegError:
        assert self._process is not None
        with anyio.move_on_after(LAST_WORDS):
            await self._process.wait()
        self._give_up()
        where = f"the video ended inside frame {self.frames_received:,}: {error}"
        return failure(self._process.returncode, self.log, where)

    def _give_up(self) -> None:
        """Expect no more frames; their memory is free once C is done with it."""
        self._ended = True
        if self._converter is not None:
            self._converter.close()

    @property
    def _stream(self) -> ReceiveStream:
        if self._process is None or self._process.stdout is None:
            raise self._not_open()
        return self._process.stdout

    # -- the end ------------------------------------------------------------------

    async def aclose(self) -> None:
        """End FFmpeg, wherever in the film it is.  Leased frames stay valid."""
        self._closed = True
        if self._own_pool and self.pool is not None:
            self.pool.close()
        self._unread.clear()
        self._come.clear()
        await self._stop()
        self._give_up()

    async def _stop(self) -> None:
        if self._times is not None:
            self._times.close()
        if self._process is not None:
            self._process.kill()  # it has nothing to finish
            await self._process.aclose(grace=0)
