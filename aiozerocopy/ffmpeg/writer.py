"""Writer: frames, and samples of audio, to a file, a URL or another FFmpeg output."""

from __future__ import annotations

import contextlib
import os
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import anyio

from aiozerocopy._core.borrows import and_end
from aiozerocopy._core.change import Change
from aiozerocopy._core.errors import StreamBroken, StreamClosed
from aiozerocopy._core.lifetime import Stats
from aiozerocopy.ffmpeg import arguments, codecs
from aiozerocopy.ffmpeg.binary import QUIETLY, find_ffmpeg
from aiozerocopy.ffmpeg.colours import Plan, plan
from aiozerocopy.ffmpeg.converters import SendingConverter
from aiozerocopy.ffmpeg.destination import (
    Destination,
    container_of,
    destination_of,
    muxer_of,
)
from aiozerocopy.ffmpeg.layouts import Audio, Layout, frame_layout, layout_of
from aiozerocopy.ffmpeg.run import FFmpegError, Run, Status, Video, start
from aiozerocopy.process import GRACE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from fractions import Fraction

    from typing_extensions import Self

    from aiozerocopy._core.leases import AnyBuffer
    from aiozerocopy.frames import Colour, Conversion
    from aiozerocopy.streams import SendStream, Ticket

    Path = str | os.PathLike[str]

TIMEOUT = 60.0  # seconds for which FFmpeg may do nothing while we wait for it


class Writer(Video):
    """An FFmpeg that takes frames; await it, or use it with ``async with``.

    ``output`` is a path, a URL (rtmp:, srt:, ...), or a list of FFmpeg's output
    arguments such as ``["-f", "null", "-"]``.  ``fps`` is a number, a Fraction or
    "30000/1001".  A film takes the place of an older one only when it is finished; a
    film that breaks off, as on a full disk, stays beside it: see ``written_to``.  That
    is so for a path whose suffix means one file, such as .mp4; not for pictures,
    playlists and lists of arguments.

    The film's name chooses an encoder, and a format that every player shows (4:2:0; odd
    sizes are padded).  ``codec`` names another encoder, as FFmpeg does; "auto" is one
    in hardware if one works here.  ``quality`` is "high", "medium", "low" or
    "lossless", ``preset`` "ultrafast" to "veryslow", ``bitrate`` such as "5M".
    ``options`` are FFmpeg's, as a list or a mapping (``{"crf": 20}``): they go last and
    win, and may contain more inputs or a map.

    ``colour`` says which kind of YUV the RGB becomes, and is written into the film.
    RGB that ends as 4:2:0 is converted here, in C, before it goes to FFmpeg, which is
    quicker.  With ``convert="ffmpeg"``, or filters in ``options``, FFmpeg does it.

    A frame may have any strides.  Our conversion reads rows that are apart or upside
    down in place; all else that is not contiguous is copied first.  ``flip`` is for
    frames whose first row is the lowest, as OpenGL reads them.

    ``audio`` is a path or URL, a list of FFmpeg's input arguments, or an `Audio`: then
    you send the samples by `send_audio`.  Send pictures and sound from two tasks:
    FFmpeg lets neither get far ahead of the other, so both must be able to wait.

    ``ffmpeg`` names the binary.  FFmpeg is killed if it does nothing for ``timeout``
    seconds (None: no limit) while it has something to do.

    The end of the block finishes the film.  If an exception ends the block, the film
    has the frames sent before it.  `abort` leaves nothing of it.
    """

    _gives_output = False  # does FFmpeg write the film to its stdout?

    def __init__(
        self,
        output: Path | Sequence[Path],
        size: tuple[int, int],
        fps: float | Fraction | str = 60,
        pix_fmt: str = "rgb24",
        codec: str | None = None,
        options: Sequence[str] | Mapping[str, object] = (),
        audio: Audio | Path | Sequence[str] | None = None,
        ffmpeg: Path | None = None,
        *,
        quality: codecs.Quality | None = None,
        preset: str | None = None,
        bitrate: str | float | None = None,
        colour: Colour | None = None,
        convert: Literal["auto", "ffmpeg"] = "auto",
        flip: bool = False,
        overwrite: bool = True,
        timeout: float | None = TIMEOUT,
    ) -> None:
        """Check the arguments (ValueError, TypeError); FFmpeg starts at the opening."""
        self.size: tuple[int, int] = arguments.checked_size(size)
        self.fps: Fraction = arguments.checked_rate(fps)
        self.pix_fmt: str = arguments.checked_format(pix_fmt)
        self.frames_written: int = 0  # in the film, once it is finished
        self.audio: Audio | None = None
        self._sound: list[str] = []  # FFmpeg's arguments for sound from elsewhere
        if isinstance(audio, Audio):
            self.audio = audio
        elif audio is not None:
            self._sound = arguments.input_arguments(audio)
        self._layout: Layout | None = None
        self._running: Run | None = None
        self._converter: SendingConverter | None = None
        self._destination: Destination | None = None
        self._closed = self._is_closing = False
        self._change = Change()  # of _is_closing
        self._warn: Callable[[str], None] = partial(warnings.warn, stacklevel=4)
        if timeout is not None and not timeout > 0:
            raise ValueError(
                f"timeout must be seconds, or None for no limit, not {timeout}"
            )
        if convert not in ("auto", "ffmpeg"):
            raise ValueError(f"convert must be 'auto' or 'ffmpeg', not {convert!r}")
        self._flip = flip
        layout = layout_of(self.pix_fmt, (1, 1))
        if flip and (layout is None or not layout.packed):
            raise ValueError(
                f"flip=True is for packed pixels such as rgb24 or rgba, not {pix_fmt}"
            )
        self._binary = "" if ffmpeg is None else os.fspath(ffmpeg)
        self._timeout = timeout
        self._codec = codec
        codecs.check(codec, quality, preset)
        has_bytes = layout is not None and layout.itemsize == 1
        is_rgb = has_bytes and pix_fmt.startswith(codecs.RGB)
        self._choose = partial(
            codecs.chosen,
            quality=quality,
            preset=preset,
            bitrate=bitrate,
            is_rgb=is_rgb or pix_fmt in codecs.PALETTES,
        )
        self._colour = arguments.checked_colour(colour)
        self._convert = convert
        self._output = output
        inputs, self._options = arguments.parted_at_inputs(arguments.words(options))
        self._sound += inputs
        *self._before_output, self._place = arguments.output_arguments(
            output, takes_stdout=self._gives_output
        )
        self._overwrite = overwrite
        # Where the film is, once it has ended.
        self.written_to: str = self._place.removeprefix("file:")

    # -- the beginning ------------------------------------------------------------

    async def _open(self) -> Self:
        """Start FFmpeg.

        Raises:
            FileNotFoundError: there is no FFmpeg.
            ValueError: FFmpeg does not know the pixel format, or has no such encoder,
                or the film's name has no suffix.
            FileExistsError: the film exists, and is not to be replaced.
            OSError: no file can be created there, or it is a folder.
        """
        if self._running is not None:
            raise RuntimeError(f"this {type(self).__name__} was opened before")
        self._binary = self._binary or find_ffmpeg()
        self._layout = await frame_layout(self.pix_fmt, self.size, self._binary)
        made = await self._plan()
        self._destination = destination_of(
            self._output, self._options, overwrite=self._overwrite
        )
        try:
            self._running = await start(
                lambda progress, audio: self._command(made, progress, audio),
                has_audio=self.audio is not None,
                patience=self._timeout,
                gives_output=self._gives_output,
            )
        except BaseException:
            self._discard()
            raise
        self._process = self._running.process
        if made.conversion is not None or self._flip:
            self._change_frames(self._running, made.conversion)
        return self

    async def _plan(self) -> Plan:
        options = [*self._options, *self._before_output]
        codec = codecs.named_in(options)
        ours = None
        if codec is None:
            container = self._container(options)
            ours = await codecs.encoder_for(container, self._codec, self._binary)
            codec = ours
        choice = self._choose(ours)
        ends_as_yuv = False
        if codec is not None and choice.pix_fmt is None and "-pix_fmt" not in options:
            ends_as_yuv = not await codecs.takes_rgb(codec, self._binary)
        made = plan(
            self.pix_fmt,
            self.size,
            choice,
            options,
            self._colour,
            ours=self._convert == "auto",
            ends_as_yuv=ends_as_yuv,
        )
        if made.is_padded:
            width, height = (side + side % 2 for side in self.size)
            self._warn(f"4:2:0 has even sizes: the film is padded to {width}x{height}")
        return made

    def _container(self, options: Sequence[str]) -> str:
        return "" if "-f" in options else container_of(self._place)

    def _command(self, made: Plan, progress: str, audio: str) -> list[str]:
        width, height = self.size
        output = made.of_output
        place = [*muxer_of(self._place, output), self._place]
        overwrite = self._overwrite
        if self._destination is not None:
            place, overwrite = self._destination.arguments(output), True
        return [
            *(self._binary, *QUIETLY, "-loglevel", "warning", "-progress", progress),
            *("-y" if overwrite else "-n", *made.before),
            *(*arguments.AT_ONCE, *made.of_input),
            *("-f", "rawvideo", "-pix_fmt", made.pix_fmt),
            *("-video_size", f"{width}x{height}", "-framerate", str(self.fps)),
            *("-i", "pipe:0"),
            *([] if self.audio is None else _raw_audio(self.audio, audio)),
            *self._sound,
            *(*output, *place),
        ]

    # -- frames and samples -------------------------------------------------------

    async def send(self, *planes: AnyBuffer) -> None:
        """Send one frame, in one piece or in planes; then its memory is yours again.

        Cancelled, it behaves as `SendStream.send`.

        Raises:
            ValueError: not the size, dtype or shape of a frame.
            TypeError, BufferError: no buffer, or one in a device's memory.  In all
                these cases nothing was sent, and the video goes on.
            FFmpegError: FFmpeg failed.
            StreamClosed: the video was closed.
        """
        await self._open_for_frames(planes).send(*planes)

    async def put(self, *planes: AnyBuffer) -> Ticket:
        """Queue one frame: wait for room only.

        It is borrowed until the ticket is done; ``await ticket`` waits for that.

        Raises: as `send`, and so does the ticket.
        """
        return await self._open_for_frames(planes).put(*planes)

    async def send_audio(self, samples: AnyBuffer) -> None:
        """Send samples, with interleaved channels; then their memory is yours again.

        An array has the shape ``(n, channels)``.  Send them in a task of its own.  Call
        `close_audio` after the last samples, and `close_video` after the last picture,
        as either may be the longer one.

        Raises: as `send`; RuntimeError if the Writer has no `Audio`.
        """
        running = self._open_running()
        if running.audio is None or self.audio is None:
            raise RuntimeError(
                "this video has no audio track: open it with audio=Audio(...)"
            )
        self.audio.check(samples)
        await running.audio.send(samples)

    async def close_audio(self) -> None:
        """End the sound, so that FFmpeg does not wait for more of it.

        Raises: as `send_audio`.
        """
        running = self._open_running()
        if running.audio is not None:
            await running.audio.aclose()

    async def close_video(self) -> None:
        """End the pictures, so that FFmpeg takes the rest of a longer sound.

        Raises: as `send`.
        """
        await self._open_running().video.aclose()

    def _open_for_frames(
        self, planes: Sequence[AnyBuffer]
    ) -> SendStream | SendingConverter:
        running = self._open_running()
        contiguous = self.layout.check(planes)
        if self._converter is None and not contiguous:
            self._change_frames(running)
        return self._converter or running.video

    def _change_frames(
        self, running: Run, conversion: Conversion | None = None
    ) -> None:
        """Send all further frames through a converter, so that they stay in order."""
        self._converter = SendingConverter(
            running.video, self.layout, conversion, flip=self._flip
        )

    def _open_running(self) -> Run:
        if self._running is None:
            raise self._not_open()
        if self._closed:
            raise StreamClosed("the video was closed")
        return self._running

    # -- properties ---------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        """How a frame lies in memory, for a `FramePool` of its shape and dtype."""
        if self._layout is None:
            raise self._not_open()
        return self._layout

    @property
    def converts(self) -> bool:
        """Is RGB converted here?  Then a frame is free as soon as `put` returns."""
        return self._converter is not None and self._converter.conversion is not None

    @property
    def status(self) -> Status:
        """FFmpeg's last report: frames, fps, bitrate and more."""
        return Status() if self._running is None else self._running.status()

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

        Cancelled, it gives FFmpeg two seconds more to end the file.  A second call
        waits until the first has ended.

        Raises:
            FFmpegError: FFmpeg failed.
            FileExistsError: a film has come meanwhile, and is not to be replaced.
        """
        running = self._running
        if running is None or running.process._child.inherited:
            return  # (in a forked child: the film is the parent's)
        if self._closed:
            while self._is_closing:
                await self._change.next()
            return
        await and_end(partial(self._finish, running), self._end_closing)

    def _end_closing(self) -> None:
        self._is_closing = False
        self._change.happen()

    async def _finish(self, running: Run) -> None:
        try:
            self._is_closing = self._closed = True
            await running.finish()
        except BaseException as error:
            running.abort()  # finish may not have begun
            if self._destination is not None:
                with anyio.CancelScope(shield=True):
                    frames = await self._destination.keep_what_plays(self._binary)
                self.frames_written = frames
                self._find_film(self._destination)
            self._tell_what_is_left(error)
            raise
        finally:
            if self._converter is not None:
                self._converter.close()
        await self._keep(running)

    async def _keep(self, running: Run) -> None:
        """Put the film into its place, now that FFmpeg has written all."""
        self.frames_written = running.status().frames
        if self._destination is None:
            return
        if self.frames_written == 0:
            self._destination.discard()
            sent = running.video.stats.bytes_sent > 0
            what = "FFmpeg wrote no frame (because of -ss, -t or a map?)"
            what = what if sent else "no frame was sent"
            raise FFmpegError(f"{what}, so there is no film")
        try:
            await self._destination.keep(self._binary, self._options)
        finally:
            self._find_film(self._destination)

    def _find_film(self, destination: Destination) -> None:
        if destination.film == destination.unfinished:
            self.written_to = str(destination.film)

    def _tell_what_is_left(self, error: BaseException | None) -> None:
        if self._destination is None or not isinstance(error, FFmpegError):
            return
        left = "nothing is left of the film"
        if self.frames_written:
            frames = self.frames_written
            left = f"{self.written_to} has the first {frames} frame{'s' * (frames > 1)}"
            if self._destination.film == self._destination.unfinished:
                left += ", and the older film is as it was"
        error.args = (f"{error.args[0]} ({left})", *error.args[1:])

    def _discard(self) -> None:
        if self._destination is not None:
            self._destination.discard()
        if self._converter is not None:
            self._converter.close()

    def abort(self) -> None:
        """Kill FFmpeg now.  A film is deleted; bytes that went elsewhere stay there."""
        running = self._running
        if running is None or running.process._child.inherited:
            return  # (in a forked child: the film is the parent's)
        self._closed = True
        running.abort()
        self._discard()

    async def __aexit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if error is None:
            await self.aclose()
            return
        was_closed = self._closed
        # Finish the file if FFmpeg is quick enough, but let none of its errors hide the
        # exception that ended the block.
        with (
            anyio.CancelScope(shield=True),
            anyio.move_on_after(GRACE),
            contextlib.suppress(StreamBroken, FileExistsError),
        ):
            await self.aclose()
        if not was_closed:  # (else `aclose` has told it)
            self._tell_what_is_left(error)

    def __del__(self) -> None:
        running = getattr(self, "_running", None)
        if running is None or self._closed or running.process._child.inherited:
            return
        try:  # (to keep what plays would take a second FFmpeg, and time)
            what = f"unclosed {self!r}: FFmpeg is killed"
            if self._destination is not None:
                what += f", and what it wrote of {self.written_to} is deleted"
            what += ". Close it, or use (async) with"
            # (Python hides a ResourceWarning.)
            warnings.warn(what, RuntimeWarning, stacklevel=1)
        finally:
            self.abort()


def _raw_audio(audio: Audio, pipe: str) -> list[str]:
    """Return FFmpeg's arguments for samples that the program sends."""
    rate, channels = str(audio.rate), str(audio.channels)
    raw = ["-f", audio.format, "-ar", rate, "-ac", channels]
    return [*arguments.AT_ONCE, *raw, "-i", pipe]
