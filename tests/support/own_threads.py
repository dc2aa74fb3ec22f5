"""The threads of this process, those of C and of the libraries included."""

from __future__ import annotations

import os
from pathlib import Path

TASKS = Path("/proc/self/task")


def thread_ids() -> set[int]:
    """All of them.

    The kernel ends a listing early at a thread that ends while it is being listed, and
    then later threads are missing.  That thread is not listed a second time, so two
    listings in a row that agree are whole.
    """
    names = None
    while names != (names := os.listdir(TASKS)):
        pass
    return set(map(int, names))
