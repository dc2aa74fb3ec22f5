"""What happens in a forked child, and at interpreter exit.

C takes care of its own locks and fds at a fork (pthread_atfork), also at one that
Python does not see, and answers every call in the child with -ECHILD.  Python only
counts the forks: it makes no call into C then, and takes no lock.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import warnings

from aiozerocopy._core.binding import lib
from aiozerocopy._core.borrows import borrowed

PATIENCE = 1.0  # seconds to wait at exit until no thread uses borrowed memory

generation = 0  # how many forks lie between this process and the first


def _after_fork() -> None:
    global generation
    generation += 1


class OfOneProcess:
    """What is of no use in a forked child."""

    def __init__(self) -> None:
        self._generation = generation

    @property
    def inherited(self) -> bool:
        """True in a forked child: it is the parent's, and dead here."""
        return self._generation != generation


def stop() -> None:
    """Close every channel, and wait until no thread reads borrowed memory."""
    lost = lib.azc_unsent()
    if lost:
        warnings.warn(
            f"{lost:,} bytes were still queued at the end of the program and are "
            "lost: close the streams (aclose or async with) before it ends",
            ResourceWarning,
            stacklevel=1,
        )
    lib.azc_stop(int(PATIENCE * 1000))
    # A system call that a peer holds up may still use some: never free that.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(borrowed))


os.register_at_fork(after_in_child=_after_fork)
atexit.register(stop)
