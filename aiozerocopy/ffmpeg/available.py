"""What this FFmpeg has: its encoders, and those in hardware that work here.

It is asked once; a binary that was changed since is another one.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil

from aiozerocopy.ffmpeg.asking import ask
from aiozerocopy.ffmpeg.encoders import ALIASES, CONTAINERS, H264, KNOWN, RGB
from aiozerocopy.ffmpeg.running import failure

_HARDWARE = ("h264_nvenc", "h264_qsv", "h264_videotoolbox", "h264_vaapi")

# By the binary and when it was changed.
_encoders: dict[tuple[str, int], frozenset[str]] = {}
_hardware: dict[tuple[str, int], tuple[str, ...]] = {}
_formats: dict[tuple[str, int, str], tuple[str, ...]] = {}


async def encoder_for(container: str, codec: str | None, ffmpeg: str) -> str | None:
    """The encoder that was asked for, or the usual one; None leaves it to FFmpeg.

    Raises:
        ValueError: this FFmpeg has no such encoder.
        FFmpegError: it cannot even list them.
    """
    if codec == "auto":
        return await _quickest(container, ffmpeg)
    if codec is None:
        wanted = CONTAINERS.get(container, ())
        if not wanted:
            return None
        available = await encoders_of(ffmpeg)
        return next((name for name in wanted if name in available), None)
    if codec == "copy":
        raise ValueError("codec='copy' is for films: raw frames must be encoded")
    available = await encoders_of(ffmpeg)
    name = ALIASES.get(codec, codec)
    if name not in available:
        name = codec
    if name not in available:
        close = difflib.get_close_matches(codec, available, n=3)
        hint = f": did you mean {' or '.join(close)}?" if close else ""
        raise ValueError(f"{ffmpeg} has no encoder {codec!r}{hint}")
    return name


async def _quickest(container: str, ffmpeg: str) -> str | None:
    if CONTAINERS.get(container, H264) is H264:
        for name in await hardware_of(ffmpeg):
            return name
    return await encoder_for(container, None, ffmpeg)


def _key(ffmpeg: str) -> tuple[str, int]:
    path = shutil.which(ffmpeg) or ffmpeg
    return path, os.stat(path).st_mtime_ns


async def takes_rgb(codec: str, ffmpeg: str) -> bool:
    """May RGB stay what it is in this encoder?"""
    key = (*_key(ffmpeg), codec)
    if key not in _formats:
        _, told = await ask(ffmpeg, "-h", f"encoder={codec}")
        found = re.search(r"Supported pixel formats: (.*)", told)
        _formats[key] = () if found is None else tuple(found[1].split())
    formats = _formats[key]
    return not formats or any(name.startswith(RGB) for name in formats)


async def encoders_of(ffmpeg: str) -> frozenset[str]:
    """The names of all that it has."""
    key = _key(ffmpeg)
    if key not in _encoders:
        status, told = await ask(ffmpeg, "-encoders")
        lines = (line.split() for line in told.partition("------")[2].splitlines())
        names = frozenset(words[1] for words in lines if len(words) > 1)
        if status or not names:
            raise failure(status, told, f"{ffmpeg} does not work: it lists no encoders")
        _encoders[key] = names
    return _encoders[key]


async def hardware_of(ffmpeg: str) -> tuple[str, ...]:
    """The encoders in hardware that have just encoded a few frames."""
    key = _key(ffmpeg)
    if key not in _hardware:
        available = await encoders_of(ffmpeg)
        names = [name for name in _HARDWARE if name in available]
        _hardware[key] = tuple([name for name in names if await _works(name, ffmpeg)])
    return _hardware[key]


async def _works(codec: str, ffmpeg: str) -> bool:
    encoder = KNOWN[codec]
    filters = encoder.filters or f"format={encoder.pix_fmt}"
    status, _ = await ask(
        ffmpeg,
        *("-loglevel", "quiet", *encoder.before, "-f", "lavfi"),
        *("-i", "color=size=256x256", "-frames:v", "5", "-vf", filters),
        *("-c:v", codec, "-f", "null", "-"),
    )
    return status == 0
