"""A scene becomes a file: frames go through a pool and the fastest lane into FFmpeg."""

from __future__ import annotations

import hashlib
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from aiozerocopy import ffmpeg
from aiozerocopy.commands import ending
from aiozerocopy.commands.progress import counted, frames_bar
from aiozerocopy.commands.scenes import ShaderScene
from aiozerocopy.ffmpeg.codecs import KNOWN, encoder_for, named_in
from aiozerocopy.ffmpeg.destination import container_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from fractions import Fraction

    from aiozerocopy.commands.scenes import Scene
    from aiozerocopy.gl import Picture
    from aiozerocopy.pool import Frame, FramePool

SLOTS = 4
QUICK = "ultrafast"


async def quick_preset(
    codec: str | None, output: str, options: Sequence[str] = ()
) -> str | None:
    """Return the preset that is used if the user names none.

    Raises: as `encoder_for` and `find_ffmpeg`.
    """
    if named_in(options) is not None:
        return None
    container = "" if "-f" in options else container_of(output)
    encoder = await encoder_for(container, codec, ffmpeg.find_ffmpeg())
    known = None if encoder is None else KNOWN.get(encoder)
    return QUICK if known is not None and known.preset else None


def pad_in_silence() -> None:
    """Pad films of odd size without a warning."""
    warnings.filterwarnings("ignore", "4:2:0 has even sizes")


@dataclass
class Rendered:
    """The film, how its frames went to FFmpeg, and how long that took."""

    output: str
    frames: int
    nbytes: int
    seconds: float
    lane: str
    calls: int
    digests: list[str]


async def render(
    scene: Scene,
    output: str,
    title: str,
    *,
    size: tuple[int, int],
    fps: float | Fraction,
    frames: int,
    codec: str | None = None,
    preset: str | None = None,
    options: Sequence[str] = (),
    check: bool = False,
    **settings: Any,
) -> Rendered:
    """Render ``frames`` frames into ``output``, with a bar that has this title.

    With ``check``, note the hash of each frame.

    Raises:
        FFmpegError: FFmpeg is missing, refused or died.
        OSError, ValueError: as `ffmpeg.Writer`.
    """
    preset = preset or await quick_preset(codec, output, options)
    digests: list[str] = []
    begin = time.perf_counter()
    video = ffmpeg.Writer(
        output, size, fps, scene.pix_fmt, codec, options, preset=preset, **settings
    )
    try:
        with (
            scene.new_pool(SLOTS) as pool,
            frames_bar(title, frames, pool.frame_bytes) as tick,
        ):
            async with video:
                async for frame in _pictures(scene, pool, frames, video):
                    with frame:
                        if check:
                            digests.append(hashlib.sha256(frame.view).hexdigest())
                        last = await video.put(frame)
                    tick(video.lane)
                await last
                stats, lane = video.stats, video.lane
    except (KeyboardInterrupt, anyio.get_cancelled_exc_class()):
        if video.frames_written and not check:  # (a checked film is not kept)
            kept = f"{video.frames_written:,} of {counted(frames)}"
            ending.last_words.append(f"{video.written_to}: {kept} are in it")
        raise
    return Rendered(
        output,
        frames,
        stats.bytes_sent,
        time.perf_counter() - begin,
        lane,
        stats.send_calls,
        digests,
    )


def _pictures(
    scene: Scene, pool: FramePool, count: int, video: ffmpeg.Writer
) -> AsyncIterator[Frame | Picture]:
    """Return pictures in the driver's memory if they are converted, else frames."""
    if video.converts and isinstance(scene, ShaderScene):
        return scene.pictures(count)
    return scene.frames(pool, count)
