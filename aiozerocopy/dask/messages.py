"""A Dask message as bytes: its frames, and before them the size of each.

    8 bytes        how long the first block is
    first block    the number of frames, the size of each, then the first frames
    the rest       the other frames, one after the other

Numbers have 64 bits, in the machine's own byte order.  Dask's ``tcp://`` has the same
format.

The first block is received in one piece, and each other frame into memory of its own.
So the first block is for frames that are thrown away once they are read: an array in it
that is kept keeps the whole block alive.

The kernel clears fresh memory before we receive into it: measured, that is a third of
the CPU time that a worker spends on receiving large arrays.  So when the last view of a
large buffer is gone, its memory waits here for the next buffer of about that size.
"""

from __future__ import annotations

import itertools
import struct
from functools import partial
from typing import TYPE_CHECKING, Protocol

from distributed.protocol.utils import host_array
from distributed.utils import ensure_memoryview

from aiozerocopy.pool import finalizing_buffer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

    Frame = bytes | bytearray | memoryview

NUMBER = 8  # bytes
# Neighbours up to this size are sent as one buffer: copying these bytes costs less than
# borrowing one more buffer.
SMALL = 8 << 10
# What an array in the first block may keep alive: LITTLE bytes, or 1/PART of its size.
LITTLE, PART = 2048, 20

LARGE = 1 << 20  # bytes of memory that waits; malloc itself keeps smaller pieces
MOST = 256 << 20  # bytes that wait at most
UNIT = 64 << 10  # bytes: sizes are rounded up to it, since headers differ a little


class NotAMessage(ValueError):
    """The bytes that have arrived are not a message of Dask's."""


class Source(Protocol):
    async def receive_exactly(self, buffer: Buffer) -> None: ...


# ---- sending ------------------------------------------------------------------------


def pack(frames: Sequence[Frame]) -> tuple[list[Frame], int]:
    """Return the buffers to send for these frames, and their bytes in all."""
    views = list(map(ensure_memoryview, frames))
    sizes = [view.nbytes for view in views]
    first = NUMBER * (1 + len(sizes)) + sum(sizes[: _in_first_block(frames, sizes)])
    head = struct.pack(f"={2 + len(sizes)}Q", first, len(sizes), *sizes)
    return _joined([head, *views]), len(head) + sum(sizes)


def _in_first_block(frames: Sequence[Frame], sizes: Sequence[int]) -> int:
    """Return how many frames go into the first block.

    ``bytes`` do, mostly pickled or compressed.  So does the first other buffer, if
    there is little beside it, with further buffers of the same object; what follows is
    in the block only as long as that stays little.
    """
    kept: object = None
    beside, most = 0, 0  # bytes that `kept` keeps alive in vain, and their limit
    for number, (frame, size) in enumerate(zip(frames, sizes, strict=True)):
        owner = frame.obj if isinstance(frame, memoryview) else frame
        if not size or isinstance(owner, bytes):
            beside += size
        elif kept is None:
            kept, most = owner, max(LITTLE, size // PART)
        elif owner is not kept:
            return number
        if kept is not None and beside > most:
            return number
    return len(frames)


def _joined(buffers: Iterable[Frame]) -> list[Frame]:
    """Return the same bytes in fewer buffers: small neighbours become one."""
    pieces: list[Frame] = []
    for are_small, group in itertools.groupby(buffers, lambda one: len(one) <= SMALL):
        run = list(group)
        pieces += [b"".join(run)] if are_small else run
    return pieces


# ---- receiving ----------------------------------------------------------------------
# Each of these functions raises NotAMessage, and what ``source.receive_exactly`` does.


async def receive_frames(source: Source, most: int) -> list[memoryview]:
    """Return the frames of the next message, of at most ``most`` bytes."""
    return await receive_rest(source, await receive_number(source), most)


async def receive_number(source: Source) -> int:
    head = bytearray(NUMBER)
    await source.receive_exactly(head)
    return int(struct.unpack("=Q", head)[0])


async def receive_rest(source: Source, first: int, most: int) -> list[memoryview]:
    """Return the frames of a message whose first number was read."""
    _check_size(first, most)
    frames, sizes = unpack(await _receive(source, first))
    _check_size(first + sum(sizes), most)
    return [*frames, *[await _receive(source, size) for size in sizes]]


def _check_size(nbytes: int, most: int) -> None:
    if nbytes > most:
        raise NotAMessage(
            f"{nbytes:,} bytes are announced, and at most {most:,} are expected: the "
            "peer is not Dask, or uses another protocol"
        )


async def _receive(source: Source, nbytes: int) -> memoryview:
    """Return the next ``nbytes`` bytes, in memory of their own."""
    memory = memory_for(nbytes)
    if nbytes:
        await source.receive_exactly(memory)
    return memory


def unpack(block: memoryview) -> tuple[list[memoryview], Sequence[int]]:
    """Return the frames of the first block, and the sizes of the rest."""
    try:
        (count,) = struct.unpack_from("=Q", block)
        sizes = struct.unpack_from(f"={count}Q", block, NUMBER)
    except struct.error as error:
        raise NotAMessage(f"a first block of {len(block):,} bytes: {error}") from None
    frames: list[memoryview] = []
    start = NUMBER * (1 + count)
    for size in sizes:
        if start >= len(block):
            break
        frames.append(block[start : start + size])
        start += size
    if start != len(block):
        raise NotAMessage("the sizes of its frames do not add up")
    return frames, sizes[len(frames) :]


# ---- memory to receive into ---------------------------------------------------------

# A finalizer may run in any thread, between any two lines.  So every step is one
# operation on a dict, and memory belongs to the call that has popped it.
_waiting: dict[int, memoryview] = {}  # by their ids; oldest first


def memory_for(nbytes: int) -> memoryview:
    """Return memory of that size, from Dask's ``host_array``, with any content."""
    if nbytes < LARGE:
        return host_array(nbytes)
    memory = _popped(nbytes) or host_array(-(-nbytes // UNIT) * UNIT)
    return finalizing_buffer(memory[:nbytes], partial(_keep, memory))


def _popped(nbytes: int) -> memoryview | None:
    """Return waiting memory that is large enough, but not much larger, if any."""
    for key, memory in list(_waiting.items()):
        fits = nbytes <= len(memory) <= nbytes + nbytes // 8
        if fits and _waiting.pop(key, None) is not None:
            return memory
    return None


def _keep(memory: memoryview) -> None:
    _waiting[id(memory)] = memory
    total = sum(map(len, list(_waiting.values())))
    for key, oldest in list(_waiting.items()):
        if total <= MOST:
            break
        if _waiting.pop(key, None) is not None:
            total -= len(oldest)
