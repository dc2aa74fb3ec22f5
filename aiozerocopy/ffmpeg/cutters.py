"""Cutters cut encoded bytes into pieces: a client may begin with one, or miss some."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Piece(NamedTuple):
    """Bytes that belong together: a fragment, a cluster, a packet of a stream."""

    data: bytes
    key: bool  # it begins with a picture that can be decoded without those before it


class Cutter:
    """Cuts one kind of container into units, of which it makes pieces."""

    # A client needs this before its first piece; it is known once there is a piece.
    header: bytes = b""

    def __init__(self) -> None:
        self._data = bytearray()  # not a whole unit yet

    def feed(self, data: bytes) -> list[Piece]:
        """Return the pieces that these bytes complete.  The bytes may end anywhere.

        Raises: ValueError: the bytes are not of this container.
        """
        self._data += data
        pieces = []
        while 0 < (size := self._unit_size()) <= len(self._data):
            unit = bytes(self._data[:size])
            del self._data[:size]
            pieces += self._take(unit)
        return pieces

    def _unit_size(self) -> int:
        """Return the size of the first unit in the data; 0 if not known yet."""
        raise NotImplementedError

    def _take(self, unit: bytes) -> list[Piece]:
        """Return the piece that this unit completes, if it completes one."""
        raise NotImplementedError

    def rest(self) -> list[Piece]:
        """Return the last piece, once there are no more bytes.

        There is none in containers whose pieces say how long they are.
        """
        return []

    def gap(self) -> Callable[[bytes], bytes]:
        """Return a function for all further pieces of a client that missed some."""
        return unmarked


def unmarked(data: bytes) -> bytes:
    """Return the data unchanged: players of the container notice missing pieces."""
    return data


# ---- fragments of MP4 (ISO/IEC 14496-12) -------------------------------------------

_BOX_HEAD = 8  # of a box: its size, and its kind
_LONG_BOX_HEAD = 16  # the size is 1, and the real size follows the kind
_NO_SYNC = 0x10000  # in a sample's flags: decoding it needs other samples


class MP4Fragments(Cutter):
    """Cuts fragmented MP4 and MOV.

    header      ``ftyp`` and ``moov``: all boxes before the first fragment
    fragment    ``moof`` and ``mdat``, with what stands before them, such as ``styp``
    """

    header: bytes

    def __init__(self) -> None:
        super().__init__()
        self._boxes: list[bytes] = []  # of the piece that has begun
        self._key: bool | None = None  # of that piece, once its ``moof`` is there
        self._video = 0  # the number of the video track
        self._usual_flags = 0  # of its samples

    def _unit_size(self) -> int:
        if len(self._data) < _BOX_HEAD:
            return 0
        size = _number(self._data, 0, 4)
        if size == 1:
            if len(self._data) < _LONG_BOX_HEAD:
                return 0
            size = _number(self._data, 8, 8)
        return _checked(size)

    def _take(self, unit: bytes) -> list[Piece]:
        kind, body = unit[4:8], memoryview(unit)[_BOX_HEAD:]
        if kind == b"mfra":
            return []  # an index of places in a file: a client gets no file
        self._boxes.append(unit)
        if kind == b"moov":
            self._look_at_tracks(body)
            self.header = self._taken()
        elif kind == b"moof":
            self._key = self._begins_with_key(body)
        elif kind == b"mdat":
            if self._key is None:
                raise ValueError("not an MP4 in fragments: pictures before a 'moof'")
            key, self._key = self._key, None
            return [Piece(self._taken(), key)]
        return []

    def _taken(self) -> bytes:
        taken = b"".join(self._boxes)
        self._boxes.clear()
        return taken

    def _look_at_tracks(self, moov: memoryview) -> None:
        for track in _boxes(moov, b"trak"):
            [head] = _boxes(track, b"tkhd")
            [media] = _boxes(track, b"mdia")
            [handler] = _boxes(media, b"hdlr")
            if bytes(handler[8:12]) == b"vide":
                self._video = _number(head, 20 if head[0] else 12, 4)
        for extends in _boxes(moov, b"mvex"):
            for usual in _boxes(extends, b"trex"):
                if _number(usual, 4, 4) == self._video:
                    self._usual_flags = _number(usual, 20, 4)

    def _begins_with_key(self, moof: memoryview) -> bool:
        """Can the first sample of the video track be decoded by itself?"""
        for track in _boxes(moof, b"traf"):
            [head] = _boxes(track, b"tfhd")
            runs = [*_boxes(track, b"trun")]
            if _number(head, 4, 4) == self._video and runs:
                usual = _usual_flags(head, self._usual_flags)
                return not _first_flags(runs[0], usual) & _NO_SYNC
        return False


def _usual_flags(tfhd: memoryview, otherwise: int) -> int:
    """Return a fragment's flags for samples that have none of their own."""
    has = _number(tfhd, 1, 3)
    if not has & 0x20:
        return otherwise
    before = 8 * bool(has & 1) + 4 * sum(bool(has & bit) for bit in (2, 8, 0x10))
    return _number(tfhd, 8 + before, 4)


def _first_flags(trun: memoryview, otherwise: int) -> int:
    has = _number(trun, 1, 3)
    at = 8 + 4 * bool(has & 1)
    if has & 4:
        return _number(trun, at, 4)
    if has & 0x400:
        before = 4 * sum(bool(has & bit) for bit in (0x100, 0x200))
        return _number(trun, at + before, 4)
    return otherwise


def _boxes(body: memoryview, kind: bytes) -> Iterator[memoryview]:
    """Yield the bodies of the boxes of one kind inside a box."""
    at = 0
    while at + _BOX_HEAD <= len(body):
        size = _checked(_number(body, at, 4))
        if bytes(body[at + 4 : at + 8]) == kind:
            yield body[at + _BOX_HEAD : at + size]
        at += size


def _checked(size: int) -> int:
    if size < _BOX_HEAD:
        raise ValueError(f"not an MP4 in fragments: a box of {size} bytes")
    return size


def _number(data: memoryview | bytearray, at: int, size: int) -> int:
    return int.from_bytes(data[at : at + size], "big")


# ---- clusters of Matroska and WebM (RFC 9559) --------------------------------------

_SEGMENT, _CLUSTER, _TRACKS = 0x18538067, 0x1F43B675, 0x1654AE6B
_TRACK, _TRACK_NUMBER, _TRACK_TYPE = 0xAE, 0xD7, 0x83
_VIDEO_TRACK = 1
_SIMPLE_BLOCK, _GROUP, _BLOCK, _REFERENCE = 0xA3, 0xA0, 0xA1, 0xFB


class MKVClusters(Cutter):
    """Cuts Matroska and WebM, with clusters that say how long they are.

    header      everything before the first cluster, such as EBML and the tracks
    cluster     blocks, each with a frame of one track
    """

    header: bytes

    def __init__(self) -> None:
        super().__init__()
        self._video = 0  # the number of the video track
        self._has_begun = False  # a cluster has come

    def _unit_size(self) -> int:
        head = _head(self._data, 0)
        if head is None:
            return 0
        name, start, size = head
        # A segment is the rest of the film: its head is a unit, its elements follow.
        return start if name == _SEGMENT else start + _known(name, size)

    def _take(self, unit: bytes) -> list[Piece]:
        head = _head(memoryview(unit), 0)
        assert head is not None  # or there would be no unit
        name, start, _ = head
        body = memoryview(unit)[start:]
        if name == _CLUSTER:
            self._has_begun = True
            return [Piece(unit, self._begins_with_key(body))]
        if not self._has_begun:  # (later comes an index of places in a file)
            self.header += unit
        if name == _TRACKS:
            self._look_at_tracks(body)
        return []

    def _look_at_tracks(self, tracks: memoryview) -> None:
        for _, track in _elements(tracks, _TRACK):
            told = {
                name: int.from_bytes(value, "big") for name, value in _elements(track)
            }
            if told.get(_TRACK_TYPE) == _VIDEO_TRACK:
                self._video = told[_TRACK_NUMBER]

    def _begins_with_key(self, cluster: memoryview) -> bool:
        """Can the cluster's first picture be decoded by itself?"""
        for name, body in _elements(cluster, _SIMPLE_BLOCK, _GROUP):
            key, block = True, body
            if name == _GROUP:
                [(_, block)] = _elements(body, _BLOCK)
                key = not [*_elements(body, _REFERENCE)]
            track, at = _vint(block, 0)
            if track == self._video:
                return key if name == _GROUP else bool(block[at + 2] & 0x80)
        return False


def _elements(body: memoryview, *names: int) -> Iterator[tuple[int, memoryview]]:
    """Yield the names and bodies of the elements (of these names) in an element."""
    at = 0
    while (head := _head(body, at)) is not None:
        name, start, size = head
        at = start + _known(name, size)
        if not names or name in names:
            yield name, body[start:at]


def _known(name: int, size: int | None) -> int:
    if size is None:
        raise ValueError(f"a Matroska element {name:X} without a size")
    return size


def _head(data: memoryview | bytearray, at: int) -> tuple[int, int, int | None] | None:
    """Return an element's name, where its body begins, and its size, if known.

    None if there are too few bytes to tell.
    """
    if len(data) <= at or len(data) <= (end := at + _length(data[at])):
        return None
    if len(data) < end + _length(data[end]):
        return None
    size, start = _vint(data, end)
    unknown = (1 << 7 * (start - end)) - 1
    name = int.from_bytes(data[at:end], "big")
    return name, start, None if size == unknown else size


def _vint(data: memoryview | bytearray, at: int) -> tuple[int, int]:
    """Return a number whose first bits give its length in bytes, and where it ends."""
    end = at + _length(data[at])
    marker = 1 << 7 * (end - at)
    return int.from_bytes(data[at:end], "big") & (marker - 1), end


def _length(first: int) -> int:
    if not first:
        raise ValueError("not a Matroska film")
    return 9 - first.bit_length()


# ---- packets of MPEG-TS (ISO/IEC 13818-1) ------------------------------------------

_PACKET = 188
_SYNC = 0x47
_TABLES = (b"\0", b"\2")  # the PAT and the PMT, in this order


class TSPackets(Cutter):
    """Cuts MPEG-TS with one programme, whose tables are one packet each.

    header    its tables: the PAT and the PMT
    gap       after it, the first packet of each stream says that packets are missing
    piece     the packets from the start of a picture, or of a piece of sound, up to the
              next such start, which shows that the piece is complete
    """

    header: bytes

    def __init__(self) -> None:
        super().__init__()
        self._packets: list[bytes] = []  # of the piece that has begun
        self._key = False
        self._tables = dict.fromkeys(_TABLES, b"")
        self._streams: set[int] = set()  # of pictures and sound

    def _unit_size(self) -> int:
        return _PACKET

    def rest(self) -> list[Piece]:
        packets, self._packets = self._packets, []
        return [Piece(b"".join(packets), self._key)] if packets else []

    def gap(self) -> Callable[[bytes], bytes]:
        """Set the discontinuity indicator of each stream's next packet.

        Only if the packet has an adaptation field: FFmpeg writes one for each picture,
        and for each piece of sound.
        """
        return partial(_with_gap, set(self._streams))

    def _take(self, unit: bytes) -> list[Piece]:
        """Return the piece before this packet, if the packet begins another."""
        if unit[0] != _SYNC:
            raise ValueError("not an MPEG transport stream")
        pieces: list[Piece] = []
        if unit[1] & 0x40:  # something begins here
            start = 5 + unit[4] if unit[3] & 0x20 else 4
            head = unit[start : start + 4]
            if head.startswith(b"\0\0\1"):
                self._streams.add(_low_bits(13, unit, 1))
                pieces = self.rest()
                is_video = b"\xe0" <= head[3:] < b"\xf0"
                self._key = is_video and _is_random_access(unit)
            elif head:
                self._take_table(unit, start + 1 + head[0])
        self._packets.append(unit)
        return pieces

    def _take_table(self, unit: bytes, start: int) -> None:
        kind = unit[start : start + 1]
        if kind not in self._tables:
            return
        if start + 3 + _low_bits(12, unit, start + 1) > _PACKET:
            raise ValueError("a table of the stream needs more than one packet")
        self._tables[kind] = unit
        self.header = b"".join(self._tables.values())


def _with_gap(unmarked: set[int], data: bytes) -> bytes:
    packets = bytearray(data)
    for at in range(0, len(packets) if unmarked else 0, _PACKET):
        pid = _low_bits(13, data, at + 1)
        if pid in unmarked:
            unmarked.remove(pid)
            if packets[at + 3] & 0x20 and packets[at + 4] > 0:
                packets[at + 5] |= 0x80
    return bytes(packets)


def _is_random_access(packet: bytes) -> bool:
    """Does the packet's adaptation field say that decoding may begin here?"""
    has_field = packet[3] & 0x20 and packet[4] > 0
    return bool(has_field and packet[5] & 0x40)


def _low_bits(count: int, data: bytes, at: int) -> int:
    """Return the low bits of a number of two bytes."""
    return int.from_bytes(data[at : at + 2], "big") & ((1 << count) - 1)
