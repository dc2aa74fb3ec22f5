"""How a call travels: one record to ask, one to answer.

A record's payload begins with 32 bytes, little-endian:

    0   u64   number of the call; the caller counts them
    8   u64   deadline: CLOCK_MONOTONIC of this machine in ns; 0: none
    16  u32   kind, see below
    20        zeros

Its `type_id` is the method that is called, also in the answer.  What is behind the 32
bytes are the buffers; of an error, its kind and its text in UTF-8, with a zero byte
in between.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from aiozerocopy.shm.records import Record

_HEAD = struct.Struct("<QQI12x")
HEAD_BYTES = _HEAD.size

CALL, FORGET, RESULT, ERROR = 1, 2, 3, 4
LONGEST_TEXT = 4000  # bytes of an error


class Head(NamedTuple):
    number: int
    deadline_ns: int
    kind: int

    def pack(self) -> bytes:
        return _HEAD.pack(*self)


def head_of(record: Record) -> Head | None:
    """None: it is too short to be part of a call."""
    return Head(*_HEAD.unpack_from(record.view)) if len(record) >= HEAD_BYTES else None


def worded(error: BaseException) -> bytes:
    """What is told of an exception."""
    text = f"{type(error).__name__}\0{error}".encode(errors="replace")
    return text[:LONGEST_TEXT]


def read(data: bytes) -> tuple[str, str]:
    """Its kind and its text."""
    kind, _, text = data.decode(errors="replace").partition("\0")
    return kind, text
