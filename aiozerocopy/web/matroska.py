"""Matroska around planes that are as they are: how `child` sends them to FFmpeg.

A film begins with `film_of`.  Before each frame goes `head_of`: the heads of a cluster
and of the block in it, which say how long the frame is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiozerocopy.web.pixels import PictureFormat

_FOURCC = {"yuv420p": b"I420", "nv12": b"NV12"}  # Matroska's names


def film_of(picture: PictureFormat, frame_ms: int) -> bytes:
    """The beginning of a film of such pictures, ``frame_ms`` apart."""
    form = picture.form
    size = _number("b0", picture.width) + _number("ba", picture.height)
    video = _element("e0", size + _element("2eb524", _FOURCC[form.name]))
    numbers = _number("d7", 1) + _number("73c5", 1) + _number("83", 1)
    lasts = _number("23e383", frame_ms * 1_000_000)
    track = numbers + _element("86", b"V_UNCOMPRESSED") + lasts + video
    return b"".join(
        (
            _element("1a45dfa3", _element("4282", b"matroska")),
            bytes.fromhex("18538067 01ffffffffffffff"),  # a segment of unknown length
            _element("1549a966", _number("2ad7b1", 1_000_000)),  # times are in ms
            _element("1654ae6b", _element("ae", track)),
        )
    )


def head_of(nbytes: int, timestamp: int) -> bytes:
    """What goes before a frame."""
    block = _element("a3", b"\x81\0\0\x80", nbytes)
    return _element("1f43b675", _number("e7", timestamp) + block, nbytes)


def _element(name: str, content: bytes, more: int = 0) -> bytes:
    """An element, without the last ``more`` bytes of its content."""
    length = len(content) + more | 1 << 56
    return bytes.fromhex(name) + length.to_bytes(8, "big") + content


def _number(name: str, value: int) -> bytes:
    return _element(name, value.to_bytes(8, "big"))
