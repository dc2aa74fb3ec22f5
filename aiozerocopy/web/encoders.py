"""Which encoders are installed: PyAV's in this process, or for H.264 FFmpeg as a child.

Those of PyAV are quicker, as they need no pipe and no other process.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from functools import partial
from typing import TYPE_CHECKING

from aiozerocopy.ffmpeg import binary
from aiozerocopy.web.child import by_ffmpeg
from aiozerocopy.web.codecs import AV1, H264
from aiozerocopy.web.hardware import Hardware
from aiozerocopy.web.pyav import in_process

if TYPE_CHECKING:
    from aiozerocopy.web.codecs import Codec, Encoders


def find_encoders(codec: Codec = H264, *, hardware: bool = False) -> Encoders | None:
    """Return the best that are installed; None without NumPy, which makes the planes.

    With ``hardware``, the GPU encodes H.264, if it has an encoder that works.
    """
    if not importlib.util.find_spec("numpy"):
        return None
    found = _of_the_cpu(codec)
    if hardware and codec is H264 and found and (ffmpeg := ffmpeg_if_any()):
        return Hardware(ffmpeg, found)
    return found


def _of_the_cpu(codec: Codec) -> Encoders | None:
    if importlib.util.find_spec("av"):
        with contextlib.suppress(Exception):  # it is broken, or lacks the library
            import av

            av.Codec(codec.library, "w")
            if codec is AV1:  # (its library prints to stderr)
                os.environ.setdefault("SVT_LOG", "0")
            return partial(in_process, codec)
    ffmpeg = ffmpeg_if_any() if codec is H264 else None
    return None if ffmpeg is None else partial(by_ffmpeg, ffmpeg)


def ffmpeg_if_any() -> str | None:
    with contextlib.suppress(FileNotFoundError):
        return binary.find_ffmpeg()
    return None
