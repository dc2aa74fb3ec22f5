"""Messages whose every byte is known, and a checker for what arrives.

A message is a 32-byte header (stream, sequence, length, seed) and a payload that both
sides know from (seed, offset).  No payload has the bytes of `POISON` and `CANARY`.
"""

from __future__ import annotations

import random
import struct
from collections import defaultdict
from typing import TYPE_CHECKING

import figures

if TYPE_CHECKING:
    from typing_extensions import Buffer

POISON = 0xDB  # fills a sender's buffer once the sender owns it again
CANARY = 0xCA  # fills memory that was never sent

HEADER = struct.Struct("<QQQQ")

# Random bytes, doubled so that every window of up to _PERIOD bytes is one slice.
_PERIOD = 4 << 20
_CLEAN = bytes(byte if byte not in (POISON, CANARY) else 0 for byte in range(256))
_TABLE = random.Random(20).randbytes(_PERIOD).translate(_CLEAN) * 2
_SEED_STEP = 7919


def seed_of(stream: int, sequence: int) -> int:
    return stream * 1_000_003 + sequence


def payload(seed: int, length: int, offset: int = 0) -> memoryview:
    """Return up to 4 MiB of a payload, beginning at an offset."""
    assert length <= _PERIOD
    start = (seed * _SEED_STEP + offset) % _PERIOD
    return memoryview(_TABLE)[start : start + length]


def message(stream: int, sequence: int, length: int) -> bytearray:
    """Make a message with a payload of length bytes."""
    seed = seed_of(stream, sequence)
    return bytearray(
        b"".join((HEADER.pack(stream, sequence, length, seed), payload(seed, length)))
    )


def poison(buffer: Buffer, value: int = POISON) -> None:
    """Overwrite a buffer, as its owner may once the send has returned."""
    view = memoryview(buffer).cast("B")
    view[:] = bytes([value]) * len(view)


class Checker:
    """Consumes a byte stream in pieces of any size and verifies every byte.

    Each stream's messages must come in order, whole, and next to each other.
    """

    def __init__(self) -> None:
        self.counts: defaultdict[int, int] = defaultdict(int)
        self.received = 0
        self._header = bytearray()
        self._seed = self._length = self._offset = 0
        self._inside = False

    def feed(self, piece: Buffer) -> None:
        rest = memoryview(piece).cast("B")
        self.received += len(rest)
        while rest:
            rest = self._feed_payload(rest) if self._inside else self._feed_header(rest)

    def _feed_header(self, rest: memoryview) -> memoryview:
        n = HEADER.size - len(self._header)
        self._header += rest[:n]
        if len(self._header) == HEADER.size:
            stream, sequence, self._length, word = HEADER.unpack(self._header)
            self._header.clear()
            self._seed, self._offset = seed_of(stream, sequence), 0
            self._inside = self._length > 0
            self._judge(stream, sequence, word)
        return rest[n:]

    def _judge(self, stream: int, sequence: int, seed: int) -> None:
        """Assert that this header, whose fourth word is the seed, is the next one."""
        expected = self.counts.get(stream, 0)
        assert seed == self._seed, self._where("not a header")
        assert sequence == expected, self._where(
            f"stream {stream}: message {sequence} came where {expected} was due"
        )
        self.counts[stream] += 1

    def _feed_payload(self, rest: memoryview) -> memoryview:
        n = min(len(rest), self._length - self._offset)
        start = (self._seed * _SEED_STEP + self._offset) % _PERIOD
        if not _TABLE.startswith(rest[:n], start):
            wanted = payload(self._seed, n, self._offset)
            raise AssertionError(self._where(difference(rest[:n], wanted)))
        self._offset += n
        self._inside = self._offset < self._length
        return rest[n:]

    def _where(self, text: str) -> str:
        return f"{text} (in the piece that ends at byte {self.received:,})"

    def finish(self) -> None:
        """Assert that the stream did not end in the middle of a message."""
        assert not self._inside, f"ended {self._offset:,} bytes into a message"
        assert not self._header, "ended inside a header"
        figures.count("bytes compared", self.received, "B")


def difference(got: memoryview, wanted: memoryview) -> str:
    at = next(i for i in range(len(got)) if got[i] != wanted[i])
    kind = {POISON: "poison", CANARY: "canary"}.get(got[at], "wrong")
    return f"{kind} byte {got[at]:#04x} for {wanted[at]:#04x} at {at:,} of {len(got):,}"


def assert_prefix(got: Buffer, sent: Buffer) -> None:
    """Assert that a fault shortened the stream and changed nothing else."""
    received, wanted = memoryview(got).cast("B"), memoryview(sent).cast("B")
    assert len(received) <= len(wanted), "more arrived than was sent"
    if received.tobytes() != wanted[: len(received)].tobytes():
        raise AssertionError(difference(received, wanted))
    figures.count("bytes compared", len(received), "B")


def assert_same(got: Buffer, sent: Buffer) -> None:
    """Assert that everything arrived."""
    assert_prefix(got, sent)
    arrived, expected = memoryview(got).nbytes, memoryview(sent).nbytes
    assert arrived == expected, f"{arrived:,} of {expected:,} bytes arrived"
