"""An open file of the caller's: what its object has buffered, or changes."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiozerocopy._core.fds import HasFileno


def number_of(file: int | HasFileno, *, reading: bool) -> int:
    """Return the fd of a file that stays the caller's.

    Raises: as `fd_of` and `settle`.
    """
    number = fd_of(file)
    settle(file, number, reading=reading)
    return number


def fd_of(source: int | HasFileno) -> int:
    """Return the number of an fd, or of an object's.

    Raises:
        ValueError: it is negative, or the object is closed.
        OSError: the object has none.
    """
    if isinstance(source, int):
        if source < 0:
            raise ValueError(f"{source} is not a file descriptor")
        return source
    try:
        number = source.fileno()
    except io.UnsupportedOperation:
        raise io.UnsupportedOperation(f"{source!r} has no fd") from None
    if number < 0:
        raise ValueError(f"{source!r} is closed")
    return number


def settle(file: object, number: int, *, reading: bool) -> None:
    """Write what the object has buffered; give back what it has read ahead.

    Afterwards the position of the fd is that of the object, which may be used on.

    Raises:
        TypeError: the object changes the bytes, or is a text file to be read.
        OSError: the bytes cannot be written.
    """
    _check_transparent(file)
    if reading and isinstance(file, io.TextIOBase):
        raise TypeError("a text file reads ahead: open it in binary mode")
    above: list[Any] = [file]
    if number in (1, 2):  # printed text goes out before our bytes, from every layer
        above.insert(0, (sys.stdout, sys.stderr)[number - 1])
    for layer in above:
        if hasattr(layer, "flush") and not getattr(layer, "closed", False):
            layer.flush()  # (an object that reads and writes gives back here)
    if reading and isinstance(file, io.BufferedReader) and file.seekable():
        position = file.tell()
        file.seek(0, os.SEEK_END)  # (a shorter way would stay in what was read ahead)
        file.seek(position)


def _check_transparent(file: object) -> None:
    """Refuse an object that changes the bytes between its user and its fd."""
    inner = getattr(file, "buffer", file)
    if isinstance(inner, io.BufferedIOBase) and not isinstance(
        inner, (io.BufferedReader, io.BufferedWriter, io.BufferedRandom)
    ):
        raise TypeError(
            f"{type(inner).__name__} changes the bytes between you and its file: pass "
            "the file under it, or use its own methods"
        )
    if hasattr(file, "getpeercert"):
        raise TypeError(
            "an SSLSocket cannot be wrapped, as its bytes would go out unencrypted: "
            "wrap a plain socket, and use anyio's TLSStream over the stream"
        )
