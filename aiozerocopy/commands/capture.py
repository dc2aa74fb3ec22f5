"""``aiozerocopy capture -o screen.mp4``: the screen becomes a film, until Ctrl-C."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import anyio

from aiozerocopy import ffmpeg
from aiozerocopy.capture import X11Screen
from aiozerocopy.commands import ending
from aiozerocopy.commands.film import pad_in_silence, quick_preset
from aiozerocopy.commands.options import (
    Parser,
    add_film,
    add_screen,
    rate,
    refuse_pictures,
    seconds,
)
from aiozerocopy.commands.progress import counted
from aiozerocopy.ffmpeg.codecs import QUALITIES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from aiozerocopy.capture import Screenshot

SLOTS = 4


class Recorder:
    """Records with two tasks: one takes pictures, one sends the newest when due.

    So the film keeps its time, however slow the X server is.
    """

    def __init__(self, screen: X11Screen, film: ffmpeg.Writer, fps: float) -> None:
        self._screen = screen
        self._film = film
        self._fps = fps
        self._newest: Screenshot | None = None
        self._has_begun = anyio.Event()
        self.due: int = 0  # frames that the film should have by now

    async def run(self, frames: float, begun: str, *, damage: bool) -> None:
        """Record ``frames`` frames; print ``begun`` once the first was sent.

        Raises:
            ScreenError: the screen was lost, or its size has changed.
            FFmpegError: FFmpeg failed.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._take, damage)
            await self._send(frames, begun)
            tasks.cancel_scope.cancel()

    async def _take(self, damage: bool) -> None:
        async for picture in self._screen.frames(self._fps, damage=damage):
            if self._newest is not None:
                self._newest.release()
            self._newest = picture
            self._has_begun.set()

    async def _send(self, frames: float, begun: str) -> None:
        await self._has_begun.wait()
        began, sent = anyio.current_time(), 0
        while sent < frames:
            await anyio.sleep_until(began + sent / self._fps)
            self.due = 1 + math.floor((anyio.current_time() - began) * self._fps)
            assert self._newest is not None
            await self._film.send(self._newest.view)  # (a view outlives the picture)
            if not sent:
                print(begun, flush=True)
            sent += 1


def open_screen(options: argparse.Namespace, slots: int) -> X11Screen:
    """Return the screen that the options of `add_screen` name.

    Raises: as `X11Screen`.
    """
    return X11Screen(
        options.display, options.region, slots, options.monitor, options.cursor
    )


def _parser() -> Parser:
    parser = Parser(
        prog="aiozerocopy capture",
        description="Record an X11 screen into a film. Ctrl-C ends the recording, and "
        "leaves a complete film.",
    )
    add_film(parser)
    add_screen(parser)
    add = parser.add_argument
    add("--rate", type=rate, default=30, help="frames a second, such as 29.97")
    add(
        "--seconds",
        type=seconds,
        metavar="N",
        help="length of the film (default: until Ctrl-C)",
    )
    add(
        "--damage",
        action="store_true",
        help="copy only what the X server reports as changed",
    )
    add("--quality", choices=QUALITIES, help="quality (default: the encoder's own)")
    return parser


async def run(options: argparse.Namespace) -> str:
    """Record the film; return a line about it."""
    if not options.overwrite:
        refuse_pictures(options.output)
    fps = float(options.rate)
    frames = math.inf
    if options.seconds is not None:
        frames = max(1, round(options.seconds * fps))
    async with open_screen(options, SLOTS) as screen:
        film = ffmpeg.Writer(
            options.output,
            screen.size,
            options.rate,
            screen.pix_fmt,
            options.codec,
            quality=options.quality,
            preset=await quick_preset(options.codec, options.output),
            overwrite=options.overwrite,
        )
        begun = f"recording {screen.region} of the display {screen.display}"
        if frames == math.inf:
            begun += ": Ctrl-C ends it"
        recorder = Recorder(screen, film, fps)
        try:
            async with film:
                await recorder.run(frames, begun, damage=options.damage)
        except BaseException:
            if film.frames_written:
                ending.last_words.append(_told(options, film, recorder))
            raise
    return _told(options, film, recorder)


def _told(options: argparse.Namespace, film: ffmpeg.Writer, recorder: Recorder) -> str:
    frames = film.frames_written
    text = f"{film.written_to}: {counted(frames)}, {frames / float(options.rate):.2f} s"
    if (behind := recorder.due - frames) > float(options.rate):
        text += f"; FFmpeg was too slow for {behind:,} more frames: try a lower --rate"
    return text


def main(argv: Sequence[str]) -> int:
    """Record; return 0 or raise."""
    options = _parser().parse_args(argv)
    pad_in_silence()
    print(anyio.run(run, options))
    return 0
