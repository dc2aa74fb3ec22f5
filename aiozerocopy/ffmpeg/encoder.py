"""Encoder: frames in, and a film out, as bytes while it is made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import anyio
from anyio.abc import ByteReceiveStream

from aiozerocopy._core.receiving import RECEIVE_SIZE
from aiozerocopy.ffmpeg.arguments import checked_rate, words
from aiozerocopy.ffmpeg.destination import FRAGMENTS
from aiozerocopy.ffmpeg.mkv_clusters import MKVClusters
from aiozerocopy.ffmpeg.mp4_fragments import MP4Fragments
from aiozerocopy.ffmpeg.run import FFmpegError
from aiozerocopy.ffmpeg.subscriptions import LIMIT, Clients
from aiozerocopy.ffmpeg.ts_packets import TSPackets
from aiozerocopy.ffmpeg.writer import TIMEOUT, Writer

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence
    from fractions import Fraction

    from aiozerocopy.ffmpeg.codecs import Quality
    from aiozerocopy.ffmpeg.cutter import Cutter
    from aiozerocopy.ffmpeg.layouts import Audio
    from aiozerocopy.ffmpeg.run import Run
    from aiozerocopy.frames import Colour
    from aiozerocopy.streams import ReceiveStream

    Path = str | os.PathLike[str]

GROUP = 2.0  # seconds from one key frame to the next


@dataclass(frozen=True)
class _Format:
    """A container that can be cut: FFmpeg's arguments for it, and what cuts it."""

    muxer: str
    container: str  # by which its encoder is chosen
    cutter: Callable[[], Cutter]
    arguments: tuple[str, ...] = ()
    low_delay: tuple[str, ...] = ()  # a piece for each frame, if it is not so anyway


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

    FFmpeg waits when nobody takes its chunks, and then `put`, `send` and `finish` wait
    too.  So take them in a task of its own; a single task must have no more under way
    than fits in the pipes, and that is known only of films of a few small pictures.
    However slow the taker, FFmpeg is not killed for it.

    ``format`` is "mp4" (in fragments, to be played while it comes), "mpegts", "webm",
    "mkv", "mov", or any other name of FFmpeg's for a format that goes through a pipe.
    ``group`` is how many frames there are from one key frame to the next, two seconds
    if nothing is said.  MP4 comes a group at a time, the others a frame at a time.
    With ``low_delay`` so does MP4, and the encoder is told to hold no frames back.

    For many clients see `clients`, and for bytes that only go on elsewhere `output`.
    The end of the block ends FFmpeg: chunks that were
    not taken are lost.
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
        low_delay: bool = False,
        group: int | None = None,
        timeout: float | None = TIMEOUT,
    ) -> None:
        """Check the arguments.  FFmpeg starts when the Encoder is opened.

        Raises:
            ValueError, TypeError: arguments that mean nothing.
        """
        if group is None:
            group = max(1, round(GROUP * checked_rate(fps)))
        if group < 1:
            raise ValueError(f"a group has at least one frame, not {group}")
        self.format: str = _ALIASES.get(format, format)
        self._cut = _FORMATS.get(self.format)
        muxer, ours = self.format, ["-flush_packets", "1", "-g", str(group)]
        if self._cut is not None:
            muxer = self._cut.muxer
            ours += [*self._cut.arguments, *(self._cut.low_delay if low_delay else ())]
        super().__init__(
            ["-f", muxer, "pipe:1"],
            size,
            fps,
            pix_fmt,
            codec,
            [*ours, *words(options)],
            audio,
            ffmpeg,
            quality=quality,
            preset=preset,
            bitrate=bitrate,
            colour=colour,
            convert=convert,
            timeout=timeout,
        )
        self._choose = partial(self._choose, low_delay=low_delay)
        self._finished = False

    def _container(self, _options: Sequence[str]) -> str:
        return self.format if self._cut is None else self._cut.container

    # -- chunks -------------------------------------------------------------------

    async def receive(self, max_bytes: int = RECEIVE_SIZE) -> bytes:
        """Return the next 1 to ``max_bytes`` bytes of the film.

        Cancelled, it loses nothing.

        Raises:
            EndOfStream: that was all, and all was well.
            FFmpegError: FFmpeg failed, and why; or there was no frame.
            StreamClosed: the video was closed.
            BusyResourceError: another task is receiving.
        """
        running = self._open_running()
        assert running.process.stdout is not None
        try:
            return await running.process.stdout.receive(max_bytes)
        except anyio.EndOfStream:
            pass
        await self._look_at_end(running)
        raise anyio.EndOfStream

    @property
    def output(self) -> ReceiveStream:
        """The same bytes as a stream of FFmpeg's own: for `relay`, or a `Splitter`.

        They need not come into this program then.  It is not to be closed, and its end
        does not say whether all was well: `wait` does.

        Raises:
            StreamClosed: the video was closed.
        """
        output = self._open_running().process.stdout
        assert output is not None
        return output

    async def wait(self) -> None:
        """Wait until FFmpeg has ended, whose output somebody else takes.

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
        """Give what comes to any number of clients; use it with ``async with``.

        ``limit`` is how many bytes may wait for one that is slow.

        Raises:
            ValueError: a format of which it is not known where a client may begin.
        """
        if self._cut is None:
            known = ", ".join(_FORMATS)
            raise ValueError(f"clients() has {known}, and not {self.format!r}")
        if limit < 1:
            raise ValueError(f"limit is a number of bytes, not {limit}")
        return Clients(self, self._cut.cutter(), limit)

    # -- the end ------------------------------------------------------------------

    @property
    def is_finished(self) -> bool:
        """No more frames will come."""
        return self._finished

    async def finish(self) -> None:
        """Send what was put, and let the chunks come to their end.

        It waits as `put` does, until the last frame is on its way to FFmpeg, and not
        until FFmpeg has written all.

        Raises:
            FFmpegError: FFmpeg failed, and why.
            StreamClosed: the video was closed.
        """
        running = self._open_running()
        self._finished = True
        await running.close_inputs()

    async def aclose(self) -> None:
        """End FFmpeg at once, and lose the chunks that were not taken."""
        running = self._running
        if self._closed or running is None:
            return
        self._closed = True
        try:
            running.process.kill()
            await running.end()
        finally:
            self._discard()
