"""Memory to receive into; that of a large buffer is used again once the buffer is gone.

The kernel clears fresh memory before anything is received there: measured, a third of
the CPU time that a worker spends to receive large arrays.  So when the last view of a
large buffer is gone, its memory waits here for the next buffer of about that size.

A finalizer may run in any thread, and between any two lines.  So every step is a single
operation on a dict, and a piece of memory belongs to whoever has popped it from there.
"""

from __future__ import annotations

from functools import partial

from distributed.protocol.utils import host_array

from aiozerocopy.pool import finalizing_buffer

LARGE = 1 << 20  # bytes; what is smaller comes from malloc, which keeps it anyway
MOST = 256 << 20  # bytes that wait here at most
UNIT = 64 << 10  # sizes are rounded up to this, since headers differ a little

_waiting: dict[int, memoryview] = {}  # by their ids; who has waited longest is first


def memory_for(nbytes: int) -> memoryview:
    """Memory of that size, from Dask's ``host_array``; its content is undefined."""
    if nbytes < LARGE:
        return host_array(nbytes)
    memory = _popped(nbytes) or host_array(-(-nbytes // UNIT) * UNIT)
    return finalizing_buffer(memory[:nbytes], partial(_keep, memory))


def _popped(nbytes: int) -> memoryview | None:
    """Some that is large enough, but not much larger; None if there is none."""
    for key, memory in tuple(_waiting.items()):
        fits = nbytes <= len(memory) <= nbytes + nbytes // 8
        if fits and _waiting.pop(key, None) is not None:
            return memory
    return None


def _keep(memory: memoryview) -> None:
    _waiting[id(memory)] = memory
    total = sum(map(len, tuple(_waiting.values())))
    for key, oldest in tuple(_waiting.items()):
        if total <= MOST:
            break
        if _waiting.pop(key, None) is not None:
            total -= len(oldest)
