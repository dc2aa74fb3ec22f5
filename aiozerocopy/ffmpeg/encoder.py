"""Encoder: frames in, and a film out, as bytes while it is made.

How the bytes reach many clients
    They are cut into pieces once, and all clients share these.  Each gets the pieces in
    order, from a key frame on.  The bytes that wait for a client are bounded: a slow
    client goes on at a later key frame, or is ended.  No client holds up the encoder,
    or another client.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import anyio
import anyio.lowlevel
from anyio.abc import ByteReceiveStream, ObjectReceiveStream

from aiozerocopy._core.change import Change
from aiozerocopy._core.errors import StreamBroken, StreamClosed
from aiozerocopy._core.failure import Failure
from aiozerocopy._core.receiving import RECEIVE_SIZE
from aiozerocopy._net.block import Block
from aiozerocopy.broadcast.clients import ClientTooSlow
from aiozerocopy.broadcast.frame_queue import FrameQueue
from aiozerocopy.ffmpeg.arguments import checked_rate, parted_at_inputs, words
from aiozerocopy.ffmpeg.cutters import MKVClusters, MP4Fragments, TSPackets, unmarked
from aiozerocopy.ffmpeg.destination import FRAGMENTS
from aiozerocopy.ffmpeg.run import FFmpegError
from aiozerocopy.ffmpeg.writer import TIMEOUT, Writer

if TYPE_CHECKING:
    import contextlib
    import os
    from collections.abc import Callable, Mapping, Sequence
    from fractions import Fraction

    from aiozerocopy.ffmpeg.codecs import Quality
    from aiozerocopy.ffmpeg.cutters import Cutter, Piece
    from aiozerocopy.ffmpeg.layouts import Audio
    from aiozerocopy.ffmpeg.run import Run
    from aiozerocopy.frames import Colour
    from aiozerocopy.streams import ReceiveStream

    Path = str | os.PathLike[str]
    Ending = Failure[Exception]

LIMIT = 8 << 20  # bytes that may wait for one client
GROUP = 2.0  # seconds from one key frame to the next


@dataclass(frozen=True)
class _Format:
    """A container that can be cut: FFmpeg's arguments for it, and its cutter."""

    muxer: str
    container: str  # determines the encoder
    cutter: Callable[[], Cutter]
    arguments: tuple[str, ...] = ()
    low_delay: tuple[str, ...] = ()  # for a piece per frame, if that is not the default


_MP4: dict[str, tuple[str, ...]] = {
    "arguments": ("-movflags", f"{FRAGMENTS}+skip_trailer"),
    "low_delay": ("-frag_duration", "1"),  # (frag_every_frame goes wrong with sound)
}
_MKV = ("-live", "1", "-cluster_time_limit", "0")
_FORMATS = {
    "mp4": _Format("mp4", "mp4", MP4Fragments, **_MP4),
    "mov": _Format("mov", "mov", MP4Fragments, **_MP4),
    "mkv": _Format("matroska", "mkv", MKVClusters, _MKV),
    "webm": _Format("webm", "webm", MKVClusters, _MKV),
    "mpegts": _Format("mpegts", "ts", TSPackets),
}
_ALIASES = {"ts": "mpegts", "matroska": "mkv"}


class Encoder(Writer, ByteReceiveStream):
    """An FFmpeg that takes frames and gives bytes; use it with ``async with``.

    Frames go in as into a `Writer`, by the same arguments; `finish` ends them.  The
    film comes out by `receive`, or ``async for chunk in encoder``: chunks of any size,
    which end after the last frame.

    FFmpeg waits while nobody takes its chunks, and then `put`, `send` and `finish` wait
    too.  So take the chunks in another task: a single task would wait for itself once
    the pipes are full, unless the film has only a few small pictures.  FFmpeg is not
    killed because its chunks are taken slowly.

    ``format`` is "mp4" (in fragments, to be played while it comes), "mpegts", "webm",
    "mkv", "mov", or FFmpeg's name of any other format that can go through a pipe.
    ``group`` is the number of frames from one key frame to the next, by default as many
    as two seconds have.  MP4 and MOV come a group at a time, other formats a frame at a
    time.  With ``low_delay`` MP4 and MOV come a frame at a time, too, and the encoder
    holds no frames back.

    `clients` gives the film to many clients, and `output` is for a `relay` elsewhere.
    The end of the block ends FFmpeg: chunks that were not taken are lost.
    """

    _gives_output = True

    def __init__(
        self,
        size: tuple[int, int],
        fps: float | Fraction | str = 60,
        pix_fmt: str = "rgb24",
        format: str = "mp4",  # noqa: A002 - as FFmpeg says
        codec: str | None = None,
        options: Sequence[str] | Mapping[str, object] = (),
        audio: Audio | Path | Sequence[str] | None = None,
        ffmpeg: Path | None = None,
        *,
        quality: Quality | None = None,
        preset: str | None = None,
        bitrate: str | float | None = None,
        colour: Colour | None = None,
        convert: Literal["auto", "ffmpeg"] = "auto",
        flip: bool = False,
        low_delay: bool = False,
        group: int | None = None,
        timeout: float | None = TIMEOUT,
    ) -> None:
        """Check the arguments (ValueError, TypeError); FFmpeg starts at the opening."""
        if group is None:
            group = max(1, round(GROUP * checked_rate(fps)))
        if group < 1:
            raise ValueError(f"group must be at least 1, not {group}")
        self.format: str = _ALIASES.get(format, format)
        self._cut = _FORMATS.get(self.format)
        muxer, ours = self.format, ["-flush_packets", "1", "-g", str(group)]
        if self._cut is not None:
            muxer = self._cut.muxer
            ours += [*self._cut.arguments, *(self._cut.low_delay if low_delay else ())]
        inputs, own = parted_at_inputs(words(options))
        super().__init__(
            ["-f", muxer, "pipe:1"],
            size,
            fps,
            pix_fmt,
            codec,
            [*inputs, *ours, *own],
            audio,
            ffmpeg,
            quality=quality,
            preset=preset,
            bitrate=bitrate,
            colour=colour,
            convert=convert,
            flip=flip,
            timeout=timeout,
        )
        self._choose = partial(self._choose, low_delay=low_delay)
        self.is_finished: bool = False  # no more frames will come

    def _container(self, _options: Sequence[str]) -> str:
        return self.format if self._cut is None else self._cut.container

    # -- chunks -------------------------------------------------------------------

    async def receive(self, max_bytes: int = RECEIVE_SIZE) -> bytes:
        """Return the next 1 to ``max_bytes`` bytes of the film.

        Cancelled, it loses nothing.

        Raises:
            EndOfStream: the film is complete.
            FFmpegError: FFmpeg failed, or no frame was sent.
            StreamClosed: the video was closed.
            BusyResourceError: another task is receiving.
        """
        running = self._open_running()
        try:  # (a signal handler that raises at the end of a ``with`` would lose bytes)
            return await self.output.receive(max_bytes)
        except anyio.EndOfStream:
            pass
        await self._look_at_end(running)
        raise anyio.EndOfStream

    @property
    def output(self) -> ReceiveStream:
        """FFmpeg's standard output, for `relay`: bytes need not enter this program.

        Do not close it.  Its end does not say whether FFmpeg has failed: `wait` does.

        Raises: StreamClosed, as `receive`.
        """
        output = self._open_running().process.stdout
        assert output is not None
        return output

    async def wait(self) -> None:
        """Wait until FFmpeg has ended, while something else takes its output.

        Raises: FFmpegError, StreamClosed, as `receive`.
        """
        await self._look_at_end(self._open_running())

    async def _look_at_end(self, running: Run) -> None:
        await running.process.wait()
        self.frames_written: int = running.status().frames
        if running.has_failed:
            raise running.failure()
        if running.video.stats.bytes_sent == 0:
            raise FFmpegError("no frame was sent, so there is no film")

    def clients(self, limit: int = LIMIT) -> Clients:
        """Give the film to any number of clients; use it with ``async with``.

        ``limit`` is how many bytes may wait for a slow client.

        Raises:
            ValueError: a format that cannot be cut into pieces, or a limit below 1.
        """
        if self._cut is None:
            known = ", ".join(_FORMATS)
            raise ValueError(f"clients() supports {known}, not {self.format!r}")
        if limit < 1:
            raise ValueError(f"limit must be at least 1 byte, not {limit}")
        return Clients(self, self._cut.cutter(), limit)

    # -- the end ------------------------------------------------------------------

    async def finish(self) -> None:
        """Send what was put, and tell FFmpeg that this was the last frame.

        It waits as `put` does, until the last frame is on its way to FFmpeg, but not
        until FFmpeg has written all.

        Raises: FFmpegError, StreamClosed, as `receive`.
        """
        running = self._open_running()
        self.is_finished = True
        await running.close_inputs()

    async def aclose(self) -> None:
        """End FFmpeg at once, and lose the chunks that were not taken."""
        running = self._running
        if self._closed or running is None:
            return
        try:
            self._closed = True
            running.process.kill()
            await running.end()
        finally:
            self.abort()


# ---- its clients --------------------------------------------------------------------


class Subscription(ObjectReceiveStream[bytes]):
    """The bytes for one client; close it when the client has left.

    First comes the header, then one piece after the other: together they are a film
    that begins with a key frame.
    """

    def __init__(self, clients: Clients, when_slow: Literal["skip", "end"]) -> None:
        self.skipped: int = 0  # pieces that the client missed, as it was slow
        self._clients = clients
        self._ends_when_slow = when_slow == "end"
        self._pieces: FrameQueue[Piece] = FrameQueue()
        self._waiting = 0  # bytes
        self._has_header = False
        self._ending: Ending | None = None  # raised after the last piece
        self._mark: Callable[[bytes], bytes] = unmarked
        self._change = Change()
        for piece in clients._latest:
            self._add(piece)
        # The client had no time yet to take these: they do not count towards the limit.
        self._limit = clients._limit + self._waiting

    async def receive(self) -> bytes:
        """Return the header, and after it the next piece.

        Raises:
            EndOfStream: the film has ended.
            ClientTooSlow: too much waited, and ``when_slow`` is "end".
            FFmpegError: FFmpeg failed, after the pieces that were received.
            ValueError: FFmpeg's bytes cannot be cut, for example because of your
                options.
            StreamClosed: the subscription was closed.
        """
        await anyio.lowlevel.checkpoint()
        while not self._pieces:
            if self._ending is not None:
                raise self._ending.again()
            await self._change.next()
        # (Lines without a call: a signal handler may raise at a new line or a call.)
        if not self._has_header and (header := self._clients._cutter.header):
            self._has_header = True; return header  # noqa: E702  # fmt: skip
        self._has_header = True
        pieces = self._pieces.frames
        waiting, data = self._waiting - len(pieces[0].data), self._mark(pieces[0].data)
        self._waiting = waiting; del pieces[0]; return data  # noqa: E702  # fmt: skip

    async def aclose(self) -> None:
        """Get no more pieces; a task that waits for one gets `StreamClosed`."""
        self._forget_pieces()
        self._end(Failure(StreamClosed("the subscription was closed")))
        await anyio.lowlevel.checkpoint()

    def _push(self, piece: Piece) -> None:
        self._add(piece)
        while self._waiting > self._limit and len(self._pieces) > 1:
            if self._ends_when_slow:
                self._forget_pieces()
                slow = ClientTooSlow(f"more than {self._limit:,} bytes waited")
                self._end(Failure(slow))
                return
            for dropped in self._pieces.drop_to(len(self._pieces) - 1):
                self._waiting -= len(dropped.data)
                self._skip()

    def _add(self, piece: Piece) -> None:
        if self._pieces.accepts(piece):
            self._pieces.append(piece)
            self._waiting += len(piece.data)
            self._change.happen()
        elif self._has_header:
            self._skip()

    def _skip(self) -> None:
        self.skipped += 1
        self._mark = self._clients._cutter.gap()

    def _end(self, ending: Ending) -> None:
        self._ending = ending
        self._clients._subscriptions.discard(self)
        self._change.happen()

    def _forget_pieces(self) -> None:
        self._pieces.drop_to(0)
        self._waiting = 0


class Clients(Block):
    """The clients of one encoder: what `Encoder.clients` returns.

    Its ``async with`` block takes all chunks of the encoder.  If the encoder is
    finished at the end of the block, the rest of the film is given out first.
    Subscriptions end after the pieces that still wait for them.
    """

    def __init__(self, encoder: Encoder, cutter: Cutter, limit: int) -> None:
        self._encoder = encoder
        self._cutter = cutter
        self._limit = limit
        self._subscriptions: set[Subscription] = set()
        self._latest: FrameQueue[Piece] = FrameQueue()  # from the last key frame on
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._ending: Ending = Failure(anyio.EndOfStream())  # of all subscriptions

    def __len__(self) -> int:
        return len(self._subscriptions)

    def subscribe(self, when_slow: Literal["skip", "end"] = "skip") -> Subscription:
        """Return all pieces from the last key frame on, for one client.

        If more bytes wait for the client than the limit, it goes on at a later key
        frame.  With ``when_slow="end"``, for players that cannot skip, it gets
        `ClientTooSlow` instead.

        Raises:
            ValueError: another ``when_slow``.
        """
        if when_slow not in ("skip", "end"):
            raise ValueError(f"when_slow must be 'skip' or 'end', not {when_slow!r}")
        subscription = Subscription(self, when_slow)
        if self._ended.is_set():
            subscription._end(self._ending)
        else:
            self._subscriptions.add(subscription)
        return subscription

    # -- the pieces ---------------------------------------------------------------

    async def _begin(self, undo: contextlib.AsyncExitStack) -> None:
        tasks = await undo.enter_async_context(anyio.create_task_group())
        undo.callback(self._scope.cancel)  # (the group's scope would leave a cycle)
        tasks.start_soon(self._run)

    async def _run(self) -> None:
        try:
            with self._scope:
                async for chunk in self._encoder:
                    self._give(self._cutter.feed(chunk))
                self._give(self._cutter.rest())
        except (StreamBroken, StreamClosed) as error:
            self._give(self._cutter.rest())
            self._ending = Failure(error)
        except ValueError as error:
            self._ending = Failure(error)
            self._encoder.abort()  # else it would wait for ever for a taker of chunks
        finally:
            self._ended.set()
            for subscription in tuple(self._subscriptions):
                subscription._end(self._ending)

    def _give(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            self._remember(piece)
            for subscription in tuple(self._subscriptions):
                subscription._push(piece)

    def _remember(self, piece: Piece) -> None:
        """Keep the piece for newcomers, unless its group is beyond the limit."""
        if piece.key:
            self._latest = FrameQueue()
        if self._latest.accepts(piece):
            self._latest.append(piece)
        size = sum(len(each.data) for each in self._latest)
        if size > self._limit and len(self._latest) > 1:
            self._latest = FrameQueue()

    async def aclose(self, grace: float = math.inf) -> None:
        """Give out what a finished encoder still makes, then end all subscriptions."""
        try:
            if self._encoder.is_finished:
                with anyio.move_on_after(grace):
                    await self._ended.wait()
        finally:
            self._scope.cancel()
        await anyio.lowlevel.checkpoint()

    def __repr__(self) -> str:
        return f"<Clients: {len(self)} of {self._encoder!r}>"
