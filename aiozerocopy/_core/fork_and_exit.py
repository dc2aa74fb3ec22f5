"""What becomes of it all at a fork, and at the end of the program.

C looks after its own locks and fds at a fork (pthread_atfork), so that a fork from
elsewhere is covered too, and answers every call in the child with -ECHILD.  Here is
only what Python must know of it: no call into C, and no lock.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import warnings

from aiozerocopy._core.binding import lib
from aiozerocopy._core.borrows import borrowed

PATIENCE = 1.0  # seconds for the threads to let go of memory, at exit

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
    # A system call that a peer holds up may still have some: never free that.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(borrowed))


os.register_at_fork(after_in_child=_after_fork)
atexit.register(stop)
