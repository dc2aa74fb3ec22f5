"""What happens in a forked child, and at interpreter exit.

C takes care of its own locks and fds at a fork (pthread_atfork), even at one that
Python does not see.  In the child it answers calls on the parent's channels, ports,
pools and rings with -ECHILD (`azc_cancel` with AZC_OVER); new ones can be opened.
Python only counts the forks: it makes no call into C then, and takes no lock.
"""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from functools import partial
from typing import Any

import anyio

from aiozerocopy._core.binding import lib

PATIENCE = 1.0  # seconds to wait at exit until no thread uses borrowed memory

generation = 0  # how many forks lie between this process and the first


def _after_fork() -> None:
    global generation
    generation += 1


class OfOneProcess:
    """Something that cannot be used in a forked child."""

    def __init__(self) -> None:
        self._generation = generation

    @property
    def inherited(self) -> bool:
        """True in a forked child: the object is the parent's, and useless here."""
        return self._generation != generation


_ENDS = (
    anyio.ClosedResourceError,
    anyio.BrokenResourceError,
    anyio.EndOfStream,
    anyio.IncompleteRead,
)


def _hide_ends(hook: Any, args: threading.ExceptHookArgs) -> None:
    """Do not report a daemon thread that ends because exit has closed its streams.

    Python aborts if a report is using stderr when the interpreter ends.
    """
    error = args.exc_value
    split = getattr(error, "split", None)  # of an exception group
    if split(_ENDS)[1] if split else not isinstance(error, _ENDS):
        hook(args)


def silence_daemons() -> None:
    """Hide the errors of daemon threads whose streams exit closes; may be repeated."""
    threading.excepthook = partial(_hide_ends, threading.excepthook)


def stop() -> None:
    """Close every channel, and wait until no thread uses borrowed memory."""
    lost = lib.azc_unsent()
    silence_daemons()
    lib.azc_stop(int(PATIENCE * 1000))
    if lost:
        warnings.warn(
            f"{lost:,} bytes were still queued at the end of the program and are "
            "lost: close the streams (aclose or async with) before it ends",
            ResourceWarning,
            stacklevel=1,
        )


os.register_at_fork(after_in_child=_after_fork)
atexit.register(stop)
