"""A loan: a pipe over which large messages go to a process of the same machine.

The memory of a message is lent to the reader (csrc/lender.h) and copied once, into the
reader's memory; a Unix socket copies twice.  Memory that cannot be taken back is lent
too, so a message that is interrupted is void.  The reader does not see that in the
pipe: it must be told of each message that it is whole.

Who owns what.  The loan owns both ends.  The peer gets a duplicate of the reader's fd;
ours is closed then, so that we notice when the peer's goes.  ``abort`` ends the pipe:
it lends nothing more, and takes out of it what the peer has not read.  For that it
opens the pipe's file a second time, which still works when the stream has closed.
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

# Bytes that a pipe holds, and how few make it slower than a socket.  (The system limits
# what all pipes of a user hold together, and then makes small ones.)
ROOM, TOO_LITTLE = 1 << 20, 256 << 10

CAN_LEND = sys.platform == "linux" and not PORTABLE


class Loan:
    """The pipe, once it was opened; it is opened once at most."""

    def __init__(self) -> None:
        self._ends: PipeEnds | None = None
        self._file: _File | None = None

    def open(self) -> bool:
        """Make the pipe; False if none can be made that is worth it.

        Raises: OSError: not now, since there are no fds or no memory.
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
        """A send returns when the peer has read all; if interrupted, abort the loan."""
        assert self._ends is not None
        return self._ends.writer

    @property
    def is_refused(self) -> bool:
        """True once the kernel has refused to lend, and this pipe only copies."""
        return not self.writer._out.stats().lends

    def abort(self) -> None:
        """End the pipe, and take back what was lent.  May be called from any thread."""
        if self._ends is None:
            return
        self._ends.reader.abort()
        self._ends.writer.abort()
        if self._file is not None:
            if not self.writer._out.inherited:  # (in a forked child it is the parent's)
                self._file.empty()
            self._file.close()


class _File:
    """A pipe's file, opened once more: so no flag is shared with other fds."""

    def __init__(self, fd: int, access: int) -> None:
        path, flags = f"/proc/self/fd/{fd}", access | os.O_NONBLOCK | os.O_CLOEXEC
        self.close = weakref.finalize(self, os.close, fd := os.open(path, flags))
        self._fd = fd

    def empty(self) -> None:
        """Take out what nobody has read; wait for a reader that is copying now.

        Without a free fd it stays in the pipe until the peer closes its end.
        """
        if not self.close.alive:
            return
        with contextlib.suppress(OSError):
            reading = _File(self._fd, os.O_RDONLY)
            while os.read(reading._fd, ROOM):  # ends with BlockingIOError
                pass
