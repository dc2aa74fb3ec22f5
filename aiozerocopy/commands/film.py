"""From a scene to a file: frames through a pool and the fastest lane into FFmpeg."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiozerocopy import ffmpeg

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from aiozerocopy.commands.progress import Tick
    from aiozerocopy.commands.scenes import Scene

SLOTS = 4
OPTIONS = {
    "libx264": ["-preset", "ultrafast", "-crf", "20", "-pix_fmt", "yuv420p"],
    "libx265": ["-preset", "ultrafast", "-crf", "24", "-pix_fmt", "yuv420p"],
}


@dataclass
class Rendered:
    """What was rendered, how it went to FFmpeg, and how long it took."""

    output: str
    frames: int
    nbytes: int
    seconds: float
    lane: str
    calls: int
    digests: list[str]


def codec_options(codec: str) -> list[str]:
    """Quick settings for the usual codecs; FFmpeg's own for all others."""
    return OPTIONS.get(codec, [])


async def render(
    scene: Scene,
    output: str,
    *,
    size: tuple[int, int],
    fps: float | Fraction,
    frames: int,
    codec: str = "libx264",
    options: Sequence[str] | None = None,
    tick: Tick,
    check: bool = False,
    **settings: Any,
) -> Rendered:
    """Render so many frames into ``output``; with check, note the hash of each.

    Raises:
        FFmpegError: FFmpeg is missing, refused or died.
        OSError: as `open_process`.
    """
    if options is None:
        options = codec_options(codec)
    digests: list[str] = []
    begin = time.perf_counter()
    async with ffmpeg.Writer(
        output,
        size=size,
        fps=fps,
        pix_fmt=scene.pix_fmt,
        codec=codec,
        options=list(options),
        **settings,
    ) as video:
        with scene.new_pool(SLOTS) as pool:
            async for frame in scene.frames(pool, frames):
                with frame:
                    if check:
                        digests.append(hashlib.sha256(frame.view).hexdigest())
                    last = await video.put(frame)
                tick(video.lane)
            await last
        stats, lane = video.stats, video.lane
    return Rendered(
        output,
        frames,
        stats.bytes_sent,
        time.perf_counter() - begin,
        lane,
        stats.send_calls,
        digests,
    )
