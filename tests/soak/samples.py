"""What a process has and does, each second: memory, fds, threads, the loop's beats."""

from __future__ import annotations

import ctypes
import json
import os
import time
from typing import TYPE_CHECKING

import anyio
from own_threads import thread_ids

if TYPE_CHECKING:
    from collections.abc import Mapping

BEAT = 0.01  # seconds
EVERY = 1.0


class Beats:
    """A task that wants to run every 10 ms, and how late it was at most."""

    def __init__(self) -> None:
        self._latest = 0.0

    async def run(self) -> None:
        while True:
            began = time.monotonic()
            await anyio.sleep(BEAT)
            self._latest = max(self._latest, time.monotonic() - began - BEAT)

    def latest(self) -> float:
        """Seconds, since this was asked for the last time."""
        latest, self._latest = self._latest, 0.0
        return latest


def sample(counts: Mapping[str, int], late: float = 0.0) -> str:
    """A line for the one who watches."""
    now = {
        "at": time.time(),
        "memory": private(),
        "used": used(),
        "fds": len(os.listdir("/proc/self/fd")) - 1,
        "threads": len(thread_ids()),
        "late": late,
        "bytes": counts["bytes"],
    }
    return json.dumps({"sample": now})


def private() -> int:
    """Bytes of memory that no other process shares."""
    with open("/proc/self/smaps_rollup") as file:
        fields = dict(line.split(":", 1) for line in file if ":" in line)
    parts = (fields["Private_Clean"], fields["Private_Dirty"])
    return sum(int(part.split()[0]) << 10 for part in parts)


class _Allocator(ctypes.Structure):
    """glibc's struct mallinfo2."""

    NAMES = (
        "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    )
    _fields_ = [(name, ctypes.c_size_t) for name in NAMES.split()]


def used() -> int:
    """Bytes that were allocated; private memory has the allocator's holes too."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except AttributeError:  # another C library, or an old one
        return private()
    mallinfo.restype = _Allocator
    now = mallinfo()
    return int(now.uordblks + now.hblkhd)


async def sampling(counts: Mapping[str, int], beats: Beats) -> None:
    while True:
        await anyio.sleep(EVERY)
        print(sample(counts, beats.latest()), flush=True)
