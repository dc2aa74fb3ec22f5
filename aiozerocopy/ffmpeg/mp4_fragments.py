"""The fragments of an MP4, and which begin with a key frame (ISO/IEC 14496-12).

header      ``ftyp`` and ``moov``: all boxes before the first fragment
fragment    ``moof`` and ``mdat``, with what stands before them, such as ``styp``
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozerocopy.ffmpeg.cutter import Cutter, Piece

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = 8  # of a box: its size, and its kind
_LONG_HEAD = 16  # the size is 1, and the real one follows
_NO_SYNC = 0x10000  # in a sample's flags: it needs others to be decoded


class MP4Fragments(Cutter):
    """Cuts fragmented MP4 and MOV."""

    def __init__(self) -> None:
        self._data = bytearray()  # that are not a whole box yet
        self._boxes: list[bytes] = []  # of the piece that has begun
        self._key: bool | None = None  # of that piece, once its ``moof`` is there
        self._video = 0  # the number of the video track
        self._usual_flags = 0  # of its samples

    def feed(self, data: bytes) -> list[Piece]:
        self._data += data
        pieces = []
        while (box := self._next_box()) is not None:
            if (piece := self._take(box)) is not None:
                pieces.append(piece)
        return pieces

    def _next_box(self) -> bytes | None:
        if len(self._data) < _HEAD:
            return None
        size = _number(self._data, 0, 4)
        if size == 1:
            if len(self._data) < _LONG_HEAD:
                return None
            size = _number(self._data, 8, 8)
        if size < _HEAD:
            raise ValueError(f"not an MP4 in fragments: a box of {size} bytes")
        if len(self._data) < size:
            return None
        box = bytes(self._data[:size])
        del self._data[:size]
        return box

    def _take(self, box: bytes) -> Piece | None:
        kind = box[4:8]
        if kind == b"mfra":
            return None  # an index of places in a file, which is not what a client gets
        self._boxes.append(box)
        if kind == b"moov":
            self._look_at_tracks(memoryview(box)[_HEAD:])
            self.header = self._taken()
        elif kind == b"moof":
            self._key = self._begins_with_key(memoryview(box)[_HEAD:])
        elif kind == b"mdat":
            if self._key is None:
                raise ValueError("not an MP4 in fragments: pictures before a 'moof'")
            key, self._key = self._key, None
            return Piece(self._taken(), key)
        return None

    def _taken(self) -> bytes:
        taken = b"".join(self._boxes)
        self._boxes.clear()
        return taken

    def _look_at_tracks(self, moov: memoryview) -> None:
        for track in _children(moov, b"trak"):
            [head] = _children(track, b"tkhd")
            [media] = _children(track, b"mdia")
            [handler] = _children(media, b"hdlr")
            if bytes(handler[8:12]) == b"vide":
                self._video = _number(head, 20 if head[0] else 12, 4)
        for extends in _children(moov, b"mvex"):
            for usual in _children(extends, b"trex"):
                if _number(usual, 4, 4) == self._video:
                    self._usual_flags = _number(usual, 20, 4)

    def _begins_with_key(self, moof: memoryview) -> bool:
        """Can the first sample of the video track be decoded by itself?"""
        for track in _children(moof, b"traf"):
            [head] = _children(track, b"tfhd")
            runs = [*_children(track, b"trun")]
            if _number(head, 4, 4) == self._video and runs:
                usual = _usual_flags(head, self._usual_flags)
                return not _first_flags(runs[0], usual) & _NO_SYNC
        return False


def _usual_flags(tfhd: memoryview, otherwise: int) -> int:
    """What a fragment says of all samples of a track that say nothing themselves."""
    has = _number(tfhd, 1, 3)
    if not has & 0x20:
        return otherwise
    before = 8 * bool(has & 1) + 4 * sum(bool(has & bit) for bit in (2, 8, 0x10))
    return _number(tfhd, 8 + before, 4)


def _first_flags(trun: memoryview, otherwise: int) -> int:
    """Those of the first sample in a run."""
    has = _number(trun, 1, 3)
    at = 8 + 4 * bool(has & 1)
    if has & 4:
        return _number(trun, at, 4)
    if has & 0x400:
        before = 4 * sum(bool(has & bit) for bit in (0x100, 0x200))
        return _number(trun, at + before, 4)
    return otherwise


def _children(body: memoryview, kind: bytes) -> Iterator[memoryview]:
    """The bodies of those boxes inside of a box that are of this kind."""
    at = 0
    while at + _HEAD <= len(body):
        size = _number(body, at, 4)
        if size < _HEAD:
            raise ValueError(f"not an MP4 in fragments: a box of {size} bytes")
        if bytes(body[at + 4 : at + 8]) == kind:
            yield body[at + _HEAD : at + size]
        at += size


def _number(data: memoryview | bytearray, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "big")
