"""Each second's memory, fds, threads and delays of a process.

After a warm-up, memory, fds and threads may not grow.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from statistics import median

import anyio
from inventory import thread_ids

Sample = dict[str, float]

BEAT = 0.01  # seconds
EVERY = 1.0
# By how much the last quarter's median may exceed the second quarter's: a share of the
# median of all, plus a constant.  (Streams come and go, and cancelled messages are
# copied for a while.)
MAY_GROW = {
    "memory": (0.1, 64 << 20),  # (including what the allocator keeps)
    "fds": (0.05, 24),
    "threads": (0.1, 8),
}
# With fewer samples, growth is not checked: a run of some seconds may end before all
# streams have begun.
LEAST = 100


def grown(samples: Sequence[Sample]) -> list[str]:
    """Return what has grown, in words."""
    found = []
    quarter = len(samples) // 4
    for what, (share, more) in MAY_GROW.items() if len(samples) >= LEAST else ():
        values = [sample[what] for sample in samples]
        growth = median(values[-quarter:]) - median(values[quarter : 2 * quarter])
        allowed = share * median(values) + more
        if growth > allowed:
            found.append(f"{what} grew by {growth:,.0f}, {allowed:,.0f} at most")
    return found


async def sampling(counts: Mapping[str, int]) -> None:
    """Print a sample each second, with the longest delay of a beat in it."""
    late, said = 0.0, time.monotonic()
    while True:
        began = time.monotonic()
        await anyio.sleep(BEAT)
        late = max(late, time.monotonic() - began - BEAT)
        if time.monotonic() - said >= EVERY:
            now = {
                "at": time.time(),
                "memory": private(),
                "fds": len(os.listdir("/proc/self/fd")) - 1,
                "threads": len(thread_ids()),
                "late": late,
                "bytes": counts["bytes"],
            }
            print(json.dumps({"sample": now}), flush=True)
            late, said = 0.0, time.monotonic()


def private() -> int:
    """Return how many bytes of memory no other process shares."""
    with open("/proc/self/smaps_rollup") as file:
        lines = [line.split() for line in file]
    parts = ("Private_Clean:", "Private_Dirty:")
    return sum(int(line[1]) << 10 for line in lines if line[0] in parts)
