"""The size of a pipe, and how to enlarge it."""

from __future__ import annotations

import contextlib
import fcntl

PIPE_SIZE = 1 << 20  # bytes, of the pipes that we make

# Python has names for these only if its own build machine had them.
F_SETPIPE_SZ = 1031
F_GETPIPE_SZ = 1032


def enlarge_pipe(fd: int, size: int) -> None:
    """Let a pipe hold size bytes, or as many as the system allows.  Never fails."""
    size = min(size, 1 << 30)
    while size > (capacity_of(fd) or size):
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, F_SETPIPE_SZ, size)
            return
        size //= 2  # above the limit of one pipe, or of all pipes of the user


def capacity_of(fd: int) -> int | None:
    """Return how many bytes a pipe holds; None: not a pipe, or not known."""
    try:
        return fcntl.fcntl(fd, F_GETPIPE_SZ)
    except (OSError, ValueError):
        return None
