"""The pictures and sounds of an MPEG transport stream (ISO/IEC 13818-1).

header    its tables: the PAT, which tells where the PMT is, and the PMT, which tells
          the streams
gap       after one, the first packet of each stream says that some are missing
piece     all packets from the one where a picture or a piece of sound begins to the
          next such, so it is whole when the next begins
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozerocopy.ffmpeg.cutter import Cutter, Piece

if TYPE_CHECKING:
    from collections.abc import Iterable

_PACKET = 188
_SYNC = 0x47
# MPEG-1, MPEG-2, MPEG-4, H.264, H.265, H.266
_VIDEO = {0x01, 0x02, 0x10, 0x1B, 0x24, 0x33}


class TSPackets(Cutter):
    """Cuts MPEG-TS with one programme, whose tables are one packet each."""

    def __init__(self) -> None:
        self._data = bytearray()  # that are not a whole packet yet
        self._packets: list[bytes] = []  # of the piece that has begun
        self._key = False
        self._pat = self._pmt = b""
        self._pmt_pid = -1
        self._streams: dict[int, int] = {}  # what kind each is

    def feed(self, data: bytes) -> list[Piece]:
        self._data += data
        end = len(self._data) // _PACKET * _PACKET
        whole = bytes(self._data[:end])
        del self._data[:end]
        pieces = []
        for at in range(0, end, _PACKET):
            pieces += self._take(whole[at : at + _PACKET])
        return pieces

    def rest(self) -> list[Piece]:
        packets, self._packets = self._packets, []
        return [Piece(b"".join(packets), self._key)] if packets else []

    def gap(self) -> Gap:
        return Gap(self._streams)

    def _take(self, packet: bytes) -> list[Piece]:
        """The piece before this packet, if it begins another one."""
        if packet[0] != _SYNC:
            raise ValueError("not an MPEG transport stream")
        pieces: list[Piece] = []
        if packet[1] & 0x40:  # something begins here
            pid = (packet[1] & 0x1F) << 8 | packet[2]
            if pid == 0:
                self._pat = packet
                self.header = self._pat + self._pmt
                self._pmt_pid = _pmt_pid(_section(packet))
            elif pid == self._pmt_pid:
                self._pmt = packet
                self.header = self._pat + self._pmt
                self._streams = _streams(_section(packet))
            elif pid in self._streams:
                pieces = self.rest()
                is_video = self._streams[pid] in _VIDEO
                self._key = is_video and _is_random_access(packet)
        self._packets.append(packet)
        return pieces


class Gap:
    """Sets the discontinuity indicator, where there is a field that has one.

    FFmpeg gives one to each picture, and to each piece of sound.
    """

    def __init__(self, streams: Iterable[int]) -> None:
        self._unmarked = set(streams)

    def __call__(self, data: bytes) -> bytes:
        if not self._unmarked:
            return data
        packets = bytearray(data)
        for at in range(0, len(packets), _PACKET):
            pid = _thirteen_bits(data, at + 1)
            if pid in self._unmarked:
                self._unmarked.remove(pid)
                if packets[at + 3] & 0x20 and packets[at + 4] > 0:
                    packets[at + 5] |= 0x80
        return bytes(packets)


def _is_random_access(packet: bytes) -> bool:
    """Does its adaptation field say that decoding may begin here?"""
    has_field = packet[3] & 0x20 and packet[4] > 0
    return bool(has_field and packet[5] & 0x40)


def _section(packet: bytes) -> bytes:
    """A table, without its checksum."""
    at = 4
    if packet[3] & 0x20:
        at += 1 + packet[at]
    at += 1 + packet[at]
    length = (packet[at + 1] & 0x0F) << 8 | packet[at + 2]
    if at + 3 + length > _PACKET:
        raise ValueError("a table of the transport stream needs more than one packet")
    return packet[at : at + 3 + length - 4]


def _pmt_pid(pat: bytes) -> int:
    """Where the table of the first programme is."""
    for at in range(8, len(pat) - 3, 4):
        if pat[at : at + 2] != b"\0\0":  # that of the network
            return _thirteen_bits(pat, at + 2)
    return -1


def _streams(pmt: bytes) -> dict[int, int]:
    at = 12 + _twelve_bits(pmt, 10)
    streams = {}
    while at + 5 <= len(pmt):
        streams[_thirteen_bits(pmt, at + 1)] = pmt[at]
        at += 5 + _twelve_bits(pmt, at + 3)
    return streams


def _twelve_bits(data: bytes, at: int) -> int:
    return (data[at] & 0x0F) << 8 | data[at + 1]


def _thirteen_bits(data: bytes, at: int) -> int:
    return (data[at] & 0x1F) << 8 | data[at + 1]
