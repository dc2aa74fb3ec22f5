"""What must hold of a process's samples: after a warm-up nothing grows."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Sample = dict[str, float]

# By how much the last quarter's median may be above the second quarter's: a share of
# it, and so much more.  (Streams come and go, and messages that were cancelled are
# copied for a while.)
MAY_GROW = {
    "memory": (0.1, 64 << 20),  # (with what the allocator keeps between two pieces)
    "used": (0.05, 24 << 20),
    "fds": (0.05, 24),
    "threads": (0.1, 8),
}


# Samples: a run of some seconds is over before all streams have begun, and on a busy
# machine that is no fault.  It shows the bytes alone.
LEAST = 100


def growth(samples: Sequence[Sample], what: str) -> float:
    values = [sample[what] for sample in samples]
    quarter = max(1, len(values) // 4)
    return median(values[-quarter:]) - median(values[quarter : 2 * quarter])


def grown(samples: Sequence[Sample]) -> list[str]:
    """What has grown, in words."""
    if len(samples) < LEAST:
        return []
    found = []
    for what, (share, more) in MAY_GROW.items():
        allowed = share * median([sample[what] for sample in samples]) + more
        if growth(samples, what) > allowed:
            line = (
                f"{what} grew by {growth(samples, what):,.0f}, {allowed:,.0f} at most"
            )
            found.append(line)
    return found
