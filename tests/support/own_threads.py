"""The threads of this process, those of C and of the libraries included."""

import os
from pathlib import Path

TASKS = Path("/proc/self/task")


def thread_ids() -> set[int]:
    """All of them.

    The kernel ends a listing early at a thread that is just ending, and then later ones
    are missing.  Such a thread is listed at most once, and not counted as a link of the
    folder; so a listing is whole if the next one is the same and the count is right.
    """
    while True:
        names = os.listdir(TASKS)
        count = os.stat(TASKS).st_nlink - len((".", ".."))
        if names == os.listdir(TASKS) and len(names) == count:
            return set(map(int, names))
