"""The pipes between us and a child that is about to be started.

Made here, enlarged, and given to the child as fds: what a loop makes of ``stdin=PIPE``
has 64 KiB, and under uvloop it is a socket.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
from typing import TypeVar

from aiozerocopy._core.channel import IN, OUT, Channel, own_end
from aiozerocopy._core.pipe_size import PIPE_SIZE, enlarge_pipe
from aiozerocopy._process.child import Tail
from aiozerocopy.opening import flags_for
from aiozerocopy.streams import ReceiveStream, SendStream

S = TypeVar("S", bound=SendStream)


def _pipe() -> tuple[int, int]:
    """A pipe, never at the three standard numbers, which a daemon may have free."""
    read_fd, write_fd = ends = os.pipe()
    if min(ends) > 2:
        return ends
    try:
        reader = fcntl.fcntl(read_fd, fcntl.F_DUPFD_CLOEXEC, 3)
        try:
            return reader, fcntl.fcntl(write_fd, fcntl.F_DUPFD_CLOEXEC, 3)
        except BaseException:
            os.close(reader)
            raise
    finally:
        os.close(read_fd)
        os.close(write_fd)


class Lines(io.FileIO):
    """Our end of a pipe, whose reads do not block."""

    def __del__(self) -> None:
        self.close()  # without FileIO's warning: the owner is warned of the process


class ChildPipes:
    """Pipes to a child and from it: the child gets one end of each, and we keep one.

    The child's ends are ours until the block ends: then it has its own copies.  Our
    ends are closed too, unless `keep` was called, because the child has started.
    """

    def __init__(self) -> None:
        self._theirs = contextlib.ExitStack()
        self._undo = contextlib.ExitStack()

    def into(self, kind: type[S], peer: str = "unknown") -> tuple[int, S]:
        """The fd that the child reads from, and a stream to it."""
        flags = OUT | flags_for(peer)
        fd, ours = _pipe()
        self._theirs.callback(os.close, fd)
        stream = kind(self._own_end(ours, flags))
        self._undo.callback(stream.abort)
        return fd, stream

    def out_of(self) -> tuple[int, ReceiveStream]:
        """The fd that the child writes to, and a stream from it."""
        ours, fd = _pipe()
        self._theirs.callback(os.close, fd)
        stream = ReceiveStream(self._own_end(ours, IN))
        self._undo.callback(stream.abort)
        return fd, stream

    def tail(self, limit: int) -> tuple[int, Tail]:
        """The fd that the child writes to, and the last that it wrote."""
        ours, fd = _pipe()
        self._theirs.callback(os.close, fd)
        tail = Tail(ours, limit)
        self._undo.callback(tail.stop)
        return fd, tail

    def lines(self) -> tuple[int, Lines]:
        """The fd that the child writes to, and our end."""
        ours, fd = _pipe()
        self._theirs.callback(os.close, fd)
        file = Lines(ours)
        self._undo.callback(file.close)
        os.set_blocking(ours, False)
        return fd, file

    def _own_end(self, fd: int, flags: int) -> Channel:
        """A channel over our end, which does not make the child's non-blocking."""
        enlarge_pipe(fd, PIPE_SIZE)
        return own_end(fd, flags)

    def keep(self) -> None:
        """The child has started: our ends stay open."""
        self._undo.pop_all()

    def __enter__(self) -> ChildPipes:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._undo.close()
        finally:
            self._theirs.close()
