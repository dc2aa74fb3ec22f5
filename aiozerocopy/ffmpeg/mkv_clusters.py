"""The clusters of a Matroska or WebM film, and which begin with a key frame (RFC 9559).

header     all before the first cluster: EBML, the beginning of the segment, the tracks
cluster    blocks, each with a frame of one track
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozerocopy.ffmpeg.cutter import Cutter, Piece

if TYPE_CHECKING:
    from collections.abc import Iterator

    Data = memoryview | bytearray

_SEGMENT, _CLUSTER, _TRACKS = 0x18538067, 0x1F43B675, 0x1654AE6B
_TRACK, _TRACK_NUMBER, _TRACK_TYPE = 0xAE, 0xD7, 0x83
_VIDEO = 1
_SIMPLE_BLOCK, _GROUP, _BLOCK, _REFERENCE = 0xA3, 0xA0, 0xA1, 0xFB


class MKVClusters(Cutter):
    """Cuts Matroska and WebM, with clusters that say how long they are."""

    def __init__(self) -> None:
        self._data = bytearray()  # that are not a whole element yet
        self._video = 0  # the number of the video track
        self._has_begun = False  # a cluster has come

    def feed(self, data: bytes) -> list[Piece]:
        self._data += data
        pieces = []
        while (head := _head(self._data, 0)) is not None:
            name, start, size = head
            if name == _SEGMENT:
                size = 0  # it is the rest of the film: look at what is in it
            elif size is None:
                raise ValueError(f"a Matroska element {name:X} without a size")
            end = start + size
            if len(self._data) < end:
                break
            element = bytes(self._data[:end])
            del self._data[:end]
            if name == _CLUSTER:
                self._has_begun = True
                key = self._begins_with_key(memoryview(element)[start:])
                pieces.append(Piece(element, key))
            elif not self._has_begun:  # an index at the end is of places in a file
                self.header += element
            if name == _TRACKS:
                self._look_at_tracks(memoryview(element)[start:])
        return pieces

    def _look_at_tracks(self, tracks: memoryview) -> None:
        for _, track in _children(tracks, _TRACK):
            told = {name: int.from_bytes(value, "big") for name, value in _all(track)}
            if told.get(_TRACK_TYPE) == _VIDEO:
                self._video = told[_TRACK_NUMBER]

    def _begins_with_key(self, cluster: memoryview) -> bool:
        """Can its first picture be decoded by itself?"""
        for name, body in _children(cluster, _SIMPLE_BLOCK, _GROUP):
            key, block = True, body
            if name == _GROUP:
                [(_, block)] = _children(body, _BLOCK)
                key = not [*_children(body, _REFERENCE)]
            track, at = _vint(block, 0)
            if track == self._video:
                return key if name == _GROUP else bool(block[at + 2] & 0x80)
        return False


def _all(body: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The elements inside of an element: which they are, and what is in them."""
    at = 0
    while (head := _head(body, at)) is not None:
        name, start, size = head
        if size is None:
            raise ValueError(f"a Matroska element {name:X} without a size")
        at = start + size
        yield name, body[start:at]


def _children(body: memoryview, *names: int) -> Iterator[tuple[int, memoryview]]:
    return ((name, child) for name, child in _all(body) if name in names)


def _head(data: Data, at: int) -> tuple[int, int, int | None] | None:
    """Which element begins here, where what is in it begins, and its size, if known.

    None if there are not enough bytes to tell.
    """
    if len(data) <= at or len(data) <= (end := at + _length(data[at])):
        return None
    if len(data) < end + _length(data[end]):
        return None
    size, start = _vint(data, end)
    unknown = (1 << 7 * (start - end)) - 1
    name = int.from_bytes(data[at:end], "big")
    return name, start, None if size == unknown else size


def _vint(data: Data, at: int) -> tuple[int, int]:
    """A number of as many bytes as its first bits say, and where it ends."""
    end = at + _length(data[at])
    marker = 1 << 7 * (end - at)
    return int.from_bytes(data[at:end], "big") & (marker - 1), end


def _length(first: int) -> int:
    if not first:
        raise ValueError("not a Matroska film")
    return 9 - first.bit_length()
