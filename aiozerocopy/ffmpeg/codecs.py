"""Codecs: the usual one of each container, and its arguments for our words.

FFmpeg is asked once which encoders it has, and again if its binary has changed.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from aiozerocopy.ffmpeg.binary import ask
from aiozerocopy.ffmpeg.run import failure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Quality = Literal["lossless", "high", "medium", "low"]

# The beginnings of the names of RGB formats.
RGB = ("rgb", "bgr", "argb", "abgr", "0rgb", "0bgr", "gbr", "pal", "x2", "bayer")
# FFmpeg converts these to YUV through a palette: older versions always by BT.601, and
# some choose grey for an encoder that takes it.
PALETTES = ("pal8", "rgb8", "bgr8", "rgb4_byte", "bgr4_byte")

QUALITIES = ("lossless", "high", "medium", "low")
PRESETS = (
    *("ultrafast", "superfast", "veryfast", "faster", "fast", "medium"),
    *("slow", "slower", "veryslow"),
)

# By the end of a file's name: the encoders that its container takes, the best first.
H264 = ("libx264", "libopenh264", "mpeg4")
CONTAINERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("mp4", "m4v", "mov", "mkv", "ts", "m2ts", "flv", "avi"), H264),
    "mpegts": H264,  # (of a URL)
    "webm": ("libvpx-vp9", "libvpx", "libsvtav1"),
    "gif": ("gif",),
    "apng": ("apng",),
}


@dataclass(frozen=True)
class Codec:
    """An encoder of FFmpeg's: what it takes, and its arguments for our words.

    ``pix_fmt`` is the format of its frames unless the user names another; None leaves
    the choice to FFmpeg.  ``before`` goes before the inputs, ``filters`` after ours.
    """

    pix_fmt: str | None = "yuv420p"
    quality: Mapping[str, Sequence[str]] = field(default_factory=dict)
    preset: Mapping[str, Sequence[str]] = field(default_factory=dict)
    has_bitrate: bool = True
    # For lossless pictures: from RGB, and from YUV, which stays as it is.
    lossless_rgb: tuple[str, str] | None = None  # encoder and format
    lossless: tuple[str, ...] = ()
    low_delay: tuple[str, ...] = ()  # to hold no frames back
    before: tuple[str, ...] = ()
    filters: str = ""


def _steps(option: str, *values: object) -> dict[str, tuple[str, ...]]:
    """Return a value for each of `PRESETS`."""
    return {
        word: (option, str(value)) for word, value in zip(PRESETS, values, strict=True)
    }


def _qualities(template: str, high: int, medium: int, low: int) -> dict[str, list[str]]:
    """Return arguments that contain a number, for each word but "lossless"."""
    return {
        word: template.format(number).split()
        for word, number in zip(QUALITIES[1:], (high, medium, low), strict=True)
    }


_SAME = _steps("-preset", *PRESETS)
_NVENC = Codec(
    quality=_qualities("-rc vbr -cq {} -b:v 0", 19, 24, 30),
    preset=_steps("-preset", *("p1", "p1", "p2", "p3", "p3", "p4", "p5", "p6", "p7")),
    low_delay=("-tune", "ull", "-zerolatency", "1", "-delay", "0", "-bf", "0"),
)
_QSV = Codec(
    pix_fmt="nv12",
    quality=_qualities("-global_quality {}", 19, 24, 30),
    preset=_SAME | _steps("-preset", *("veryfast",) * 3, *PRESETS[3:]),
    low_delay=("-async_depth", "1", "-bf", "0"),
)
_VAAPI = Codec(
    pix_fmt="nv12",
    quality=_qualities("-qp {}", 20, 25, 31),
    low_delay=("-async_depth", "1", "-bf", "0"),
    before=("-vaapi_device", "/dev/dri/renderD128"),
    filters="format=nv12,hwupload",
)
_VIDEOTOOLBOX = Codec(
    pix_fmt="nv12",
    quality=_qualities("-q:v {}", 75, 60, 45),
    low_delay=("-realtime", "1", "-bf", "0"),
)

# A palette for each picture.
_PALETTES = (
    "split[picture][colours];[colours]palettegen=stats_mode=single"
    ":reserve_transparent=0[palette];[picture][palette]paletteuse=new=1"
)

KNOWN: dict[str, Codec] = {
    "libx264": Codec(
        quality=_qualities("-crf {}", 17, 22, 28),
        preset=_SAME,
        lossless_rgb=("libx264rgb", "rgb24"),
        lossless=("-qp", "0"),
        low_delay=("-tune", "zerolatency"),
    ),
    "libx265": Codec(
        quality=_qualities("-crf {}", 19, 25, 31),
        preset=_SAME,
        lossless_rgb=("libx265", "gbrp"),
        lossless=("-x265-params", "lossless=1"),
        low_delay=("-tune", "zerolatency"),
    ),
    "libvpx-vp9": Codec(
        quality=_qualities("-crf {} -b:v 0", 22, 31, 42),
        preset={
            word: ("-deadline", deadline, "-cpu-used", str(step))
            for word, deadline, step in zip(
                PRESETS, 3 * ["realtime"] + 6 * ["good"], range(8, -1, -1), strict=True
            )
        },
        lossless_rgb=("libvpx-vp9", "gbrp"),
        lossless=("-lossless", "1"),
        low_delay=("-deadline", "realtime", "-lag-in-frames", "0"),
    ),
    "libsvtav1": Codec(
        quality=_qualities("-crf {}", 23, 32, 44),
        preset=_steps("-preset", *range(12, 3, -1)),
        low_delay=("-svtav1-params", "pred-struct=1"),
    ),
    "mpeg4": Codec(quality=_qualities("-q:v {}", 2, 5, 10)),
    "mjpeg": Codec("yuvj420p", _qualities("-q:v {}", 2, 5, 10)),
    "libopenh264": Codec(),
    "prores_ks": Codec(
        "yuv422p10le", _qualities("-profile:v {}", 3, 2, 0), has_bitrate=False
    ),
    "ffv1": Codec(None, has_bitrate=False),
    "gif": Codec(None, has_bitrate=False, filters=_PALETTES),
    "apng": Codec(None, has_bitrate=False),
    **dict.fromkeys(("h264_nvenc", "hevc_nvenc", "av1_nvenc"), _NVENC),
    **dict.fromkeys(("h264_qsv", "hevc_qsv", "av1_qsv"), _QSV),
    **dict.fromkeys(("h264_vaapi", "hevc_vaapi", "av1_vaapi"), _VAAPI),
    **dict.fromkeys(("h264_videotoolbox", "hevc_videotoolbox"), _VIDEOTOOLBOX),
}
# Common names of encoders.
ALIASES = {"h264": "libx264", "hevc": "libx265", "h265": "libx265", "x264": "libx264"}
ALIASES |= {"x265": "libx265", "vp9": "libvpx-vp9", "av1": "libsvtav1"}
ALIASES |= {"prores": "prores_ks"}


@dataclass(frozen=True)
class Choice:
    """An encoder of FFmpeg's, its arguments, and the pixel format that it gets."""

    codec: str | None
    arguments: tuple[str, ...] = ()
    pix_fmt: str | None = None
    before: tuple[str, ...] = ()
    filters: str = ""
    is_lossless: bool = False


def chosen(
    codec: str | None,
    *,
    quality: str | None = None,
    preset: str | None = None,
    bitrate: str | float | None = None,
    is_rgb: bool = True,
    low_delay: bool = False,
) -> Choice:
    """Return the encoder's own arguments for our words.

    Raises: ValueError: the encoder has no argument for a word.
    """
    known = None if codec is None else KNOWN.get(codec)
    asked = {"quality": quality, "preset": preset, "bitrate": bitrate}
    if known is None or codec is None:
        for word, value in asked.items():
            if value is not None:
                whose = codec or "an encoder that FFmpeg chooses"
                raise ValueError(
                    f"{word}= is not known for {whose}: give the encoder's own "
                    "option in options=[...]"
                )
        return Choice(codec)
    if quality is not None and bitrate is not None:
        raise ValueError("give quality= or bitrate=, not both")
    arguments = [*known.low_delay] if low_delay else []
    arguments += _looked_up("preset", preset, known.preset, codec)
    pix_fmt = known.pix_fmt
    if quality == "lossless":
        if is_rgb and known.lossless_rgb is not None:
            codec, pix_fmt = known.lossless_rgb
        elif codec not in ("ffv1", "apng"):
            pix_fmt = None
            if not known.lossless:
                raise ValueError(f"{codec} cannot be lossless: try codec='libx264'")
        arguments += known.lossless
    else:
        arguments += _looked_up("quality", quality, known.quality, codec)
    if bitrate is not None:
        if not known.has_bitrate:
            raise ValueError(f"{codec} takes no bitrate=")
        arguments += ["-b:v", str(bitrate)]
    return Choice(
        codec,
        tuple(arguments),
        pix_fmt,
        known.before,
        known.filters,
        is_lossless=quality == "lossless",
    )


def check(codec: object, quality: object, preset: object) -> None:
    """Refuse words that no encoder knows; `chosen` refuses those of another encoder.

    Raises: ValueError, TypeError.
    """
    if not isinstance(codec, (str, type(None))):
        raise TypeError(f"codec must be a name such as 'libx264', not {codec!r}")
    words = {"quality": (quality, QUALITIES), "preset": (preset, PRESETS)}
    for name, (word, known) in words.items():
        if word is not None and word not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, not {word!r}")


def _looked_up(
    name: str, word: str | None, table: Mapping[str, Sequence[str]], codec: str
) -> Sequence[str]:
    if word is None:
        return ()
    if word not in table:
        words = ["lossless", *table] if name == "quality" else table
        known = ", ".join(words)
        those = f"one of {known}" if table else "it has none"
        raise ValueError(f"{codec} has no {name}={word!r}: {those}")
    return table[word]


def last_value(options: Sequence[str], *names: str) -> str | None:
    """Return the value of the last option that has one of these names."""
    found = [value for name, value in itertools.pairwise(options) if name in names]
    return found[-1] if found else None


def named_in(options: Sequence[str]) -> str | None:
    return last_value(options, "-c:v", "-vcodec", "-codec:v", "-c:v:0", "-c")


# ---- which encoders this FFmpeg has, and which of those in hardware work -------------

_HARDWARE = ("h264_nvenc", "h264_qsv", "h264_videotoolbox", "h264_vaapi")

# FFmpeg's answers, by its path and the time when the binary was changed.
_encoders: dict[tuple[str, int], frozenset[str]] = {}
_hardware: dict[tuple[str, int], tuple[str, ...]] = {}
_formats: dict[tuple[str, int, str], tuple[str, ...]] = {}


async def encoder_for(container: str, codec: str | None, ffmpeg: str) -> str | None:
    """Return the encoder that ``codec`` names, or the usual one; None: FFmpeg chooses.

    Raises:
        ValueError: this FFmpeg has no such encoder.
        FFmpegError: it cannot list its encoders.
    """
    if codec == "copy":
        raise ValueError("codec='copy' is for films: raw frames must be encoded")
    if codec == "auto":
        if CONTAINERS.get(container, H264) is H264:
            for name in await hardware_of(ffmpeg):
                return name
        codec = None
    if codec is None:
        wanted = CONTAINERS.get(container, ())
    else:
        wanted = (ALIASES.get(codec, codec), codec)
    available = await encoders_of(ffmpeg) if wanted else frozenset()
    for name in wanted:
        if name in available:
            return name
    if codec is None:
        return None
    close = difflib.get_close_matches(codec, available, n=3)
    hint = f": did you mean {' or '.join(close)}?" if close else ": see its -encoders"
    raise ValueError(f"{ffmpeg} has no encoder {codec!r}{hint}")


def _key(ffmpeg: str) -> tuple[str, int]:
    path = shutil.which(ffmpeg) or ffmpeg
    return path, os.stat(path).st_mtime_ns


async def takes_rgb(codec: str, ffmpeg: str) -> bool:
    """Does the encoder take RGB as it is?"""
    key = (*_key(ffmpeg), codec)
    if key not in _formats:
        _, told, _ = await ask(ffmpeg, "-h", f"encoder={codec}")
        found = re.search(r"Supported pixel formats: (.*)", told)
        _formats[key] = () if found is None else tuple(found[1].split())
    formats = _formats[key]
    return not formats or any(name.startswith(RGB) for name in formats)


async def encoders_of(ffmpeg: str) -> frozenset[str]:
    key = _key(ffmpeg)
    if key not in _encoders:
        status, told, _ = await ask(ffmpeg, "-encoders")
        lines = (line.split() for line in told.partition("------")[2].splitlines())
        names = frozenset(words[1] for words in lines if len(words) > 1)
        if status or not names:
            raise failure(status, told, f"{ffmpeg} does not work: it lists no encoders")
        _encoders[key] = names
    return _encoders[key]


async def hardware_of(ffmpeg: str) -> tuple[str, ...]:
    """Return the hardware encoders that work here: they could encode a few frames."""
    key = _key(ffmpeg)
    if key not in _hardware:
        available = await encoders_of(ffmpeg)
        names = [name for name in _HARDWARE if name in available]
        _hardware[key] = tuple([name for name in names if await _works(name, ffmpeg)])
    return _hardware[key]


async def _works(codec: str, ffmpeg: str) -> bool:
    encoder = KNOWN[codec]
    filters = encoder.filters or f"format={encoder.pix_fmt}"
    status, _, _ = await ask(
        ffmpeg,
        *("-loglevel", "quiet", *encoder.before, "-f", "lavfi"),
        *("-i", "color=size=256x256", "-frames:v", "5", "-vf", filters),
        *("-c:v", codec, "-f", "null", "-"),
    )
    return status == 0
