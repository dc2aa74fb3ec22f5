"""Open files that travel with bytes over a UNIX socket (``SCM_RIGHTS``).

Who owns the fds
    to be sent   the caller's are duplicated; the duplicates belong to the message, are
                 borrowed with its bytes, and closed when it is over
    received     the waiting call's, until it returns them; then the caller's.  If the
                 call is interrupted, they are the stream's, as are the bytes that they
                 came with, and both come with the next call

Either way they lie in C's ``azc_fds``.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any, Protocol

from aiozerocopy._core.binding import check, constants, ffi, lib

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_FDS: int = constants.AZC_MOST_FDS  # with one message

close_fds = lib.azc_close_fds


class HasFileno(Protocol):
    def fileno(self) -> int: ...


def no_fds() -> Any:
    """Return an empty set; its fds are closed when it is released or collected."""
    return ffi.gc(ffi.new("azc_fds *"), close_fds)


def duplicates(files: Iterable[int | HasFileno]) -> Any:
    """Return duplicates of the files, closed when this is released or collected.

    Raises:
        ValueError: there are none, or too many.
        OSError: one is not open, or no more can be opened.
    """
    numbers = [file if isinstance(file, int) else file.fileno() for file in files]
    if not numbers:
        raise ValueError("fds must not be empty")
    if len(numbers) > MOST_FDS:
        raise ValueError(
            f"one message carries at most {MOST_FDS} fds, not {len(numbers)}"
        )
    fds = no_fds()
    check(lib.azc_dup_fds(fds, ffi.new("int[]", numbers), len(numbers)))
    return fds


def room_for(most: int) -> Any:
    """Return a set that can receive ``most`` fds; `close_fds` closes them."""
    return ffi.new("azc_fds *", {"room": most})


def set_of(numbers: list[int]) -> Any:
    """Return a set of fds that have come, as in `room_for`."""
    n = len(numbers)
    return ffi.new("azc_fds *", {"room": n, "count": n, "fds": numbers})


def numbers_in(fds: Any, most: int) -> list[int]:
    """Return the fds that have come.

    Raises:
        OSError: there were more than the caller expects; all of them are closed.
    """
    if fds.cut_off or fds.count > most:
        close_fds(fds)
        fds.cut_off = 0
        raise OSError(
            errno.EMSGSIZE,
            f"more fds came than maxfds={most}, or than this process may open: all of "
            "them were closed; the bytes come with the next receive",
        )
    return list(fds.fds[0 : fds.count])
