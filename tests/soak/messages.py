"""What is sent, and who checks what has arrived.

A message is a header and a payload that both sides know.  Its sequence is one more than
that of the last one, except that those which were cancelled may be missing: the header
says how many messages before it were.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from oracle import difference, is_payload, payload

if TYPE_CHECKING:
    from typing_extensions import Buffer

HEADER = struct.Struct("<QQQQ")  # stream, sequence, length, cancelled before; LAST
LAST = 1 << 63  # in the fourth word: the stream ends behind this message
PIECE = 1 << 20


def seed_of(stream: int, sequence: int) -> int:
    return stream * 1_000_003 + sequence


def write(view: memoryview, seed: int, offset: int) -> int:
    """Put up to 1 MiB of the payload into a view of all of it; return where it ends."""
    end = min(offset + PIECE, len(view))
    view[offset:end] = payload(seed, end - offset, offset)
    return end


class Wrong(Exception):
    """Something arrived that was not sent, or not in its place."""


class Verifier:
    """Takes one stream's bytes in pieces of up to 4 MiB; raises `Wrong`."""

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.received = self.messages = self.missing = 0
        self.ended = False  # the last message has come
        self._next = 0  # sequence
        self._header = bytearray()
        self._seed = self._length = self._offset = 0

    def feed(self, piece: Buffer) -> None:
        rest = memoryview(piece).cast("B")
        self.received += len(rest)
        while rest:
            if self.ended:
                raise Wrong(self._where("more after the last message"))
            if self._offset < self._length:
                rest = self._payload(rest)
            else:
                rest = self._head(rest)

    def _head(self, rest: memoryview) -> memoryview:
        n = HEADER.size - len(self._header)
        self._header += rest[:n]
        if len(self._header) == HEADER.size:
            stream, sequence, self._length, cancelled = HEADER.unpack(self._header)
            self._header.clear()
            if stream != self.stream:
                raise Wrong(self._where(f"wrong byte: a header of stream {stream:#x}"))
            missing = sequence - self._next
            if not 0 <= missing <= cancelled & ~LAST:
                raise Wrong(
                    self._where(
                        f"message {sequence} came where {self._next} was due, and "
                        f"{cancelled & ~LAST} were cancelled"
                    )
                )
            self.missing += missing
            self.messages += 1
            self._next = sequence + 1
            self.ended = bool(cancelled & LAST)
            self._seed, self._offset = seed_of(stream, sequence), 0
        return rest[n:]

    def _payload(self, rest: memoryview) -> memoryview:
        n = min(len(rest), self._length - self._offset)
        if not is_payload(self._seed, self._offset, rest[:n]):
            wanted = payload(self._seed, n, self._offset)
            raise Wrong(self._where(difference(rest[:n], wanted)))
        self._offset += n
        return rest[n:]

    def _where(self, text: str) -> str:
        return f"stream {self.stream}: {text} (before byte {self.received:,})"
