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


def unsent() -> int:
    """Bytes that are queued in all channels of this process."""
    return lib.azc_unsent()


def stop() -> None:
    """Close every channel, and wait until no thread reads borrowed memory."""
    lost = unsent()
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
