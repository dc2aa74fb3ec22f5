"""A loan: a pipe over which large messages go to a process of the same machine.

The memory of a message is lent to the reader (csrc/lender.h) and copied once, into the
reader's memory; a Unix socket copies twice.  Some lent memory cannot be taken back, so
it may change after an interruption: an interrupted message is void.  The reader cannot
see that in the pipe: the sender must confirm each whole message.

Who owns what.  The loan owns both ends.  The peer gets a duplicate of the reader's fd;
then ours is closed, so that we notice when the peer closes its own.  ``abort`` ends the
pipe: it lends nothing more, and takes out the bytes that the peer has not read.  For
that it opens the pipe's file a second time, which works even after the stream's close.
"""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from typing import TYPE_CHECKING

from aiozerocopy._core.binding import PORTABLE
from aiozerocopy.opening import PipeEnds, lending_pipe, pipe_capacity

if TYPE_CHECKING:
    from aiozerocopy.streams import ReceiveStream, SendStream

# The bytes that a pipe should hold, and the least with which it is not slower than a
# socket.  (Linux limits the pipes of a user as a whole, and then makes small ones.)
ROOM, TOO_LITTLE = 1 << 20, 256 << 10

CAN_LEND = sys.platform == "linux" and not PORTABLE


class Loan:
    """The pipe, once it is opened; it is opened once at most."""

    def __init__(self) -> None:
        self._ends: PipeEnds | None = None
        self._file: _File | None = None

    def open(self) -> bool:
        """Make the pipe; return False if it is too small to be worth it.

        Raises: OSError: no fds or no memory are free now.
        """
        self._ends = lending_pipe(ROOM)
        try:
            self._file = _File(self._ends.writer.fileno(), os.O_WRONLY)
        except BaseException:
            self._ends.reader.abort()
            self._ends.writer.abort()
            raise
        return (pipe_capacity(self._ends.writer) or 0) >= TOO_LITTLE

    @property
    def reader(self) -> ReceiveStream:
        """The end for the peer."""
        assert self._ends is not None
        return self._ends.reader

    @property
    def writer(self) -> SendStream:
        """Our end: a send returns when the peer has read all; if interrupted, abort."""
        assert self._ends is not None
        return self._ends.writer

    @property
    def is_refused(self) -> bool:
        """True once the kernel has refused to lend, and this pipe only copies."""
        return not self.writer._out.stats().lends

    def abort(self) -> None:
        """End the pipe; take back lent memory.  May be called from any thread."""
        if self._ends is None:
            return
        self._ends.reader.abort()
        self._ends.writer.abort()
        if self._file is not None:
            if not self.writer._out.inherited:  # (a forked child leaves it alone)
                self._file.empty()
            self._file.close()


class _File:
    """A pipe's file, opened once more, so that it shares no flags with other fds."""

    def __init__(self, fd: int, access: int) -> None:
        path, flags = f"/proc/self/fd/{fd}", access | os.O_NONBLOCK | os.O_CLOEXEC
        self.close = weakref.finalize(self, os.close, fd := os.open(path, flags))
        self._fd = fd

    def empty(self) -> None:
        """Take out the unread bytes; wait for a reader that is copying now.

        Without a free fd they stay in the pipe until the peer closes its end.
        """
        if not self.close.alive:
            return
        with contextlib.suppress(OSError):
            reading = _File(self._fd, os.O_RDONLY)
            while os.read(reading._fd, ROOM):  # ends with BlockingIOError
                pass
