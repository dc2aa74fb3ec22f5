"""The pipes between us and a child that is about to be started.

Made here, enlarged, and given to the child as fds: what a loop makes of ``stdin=PIPE``
has 64 KiB, and under uvloop it is a socket.
"""

from __future__ import annotations

import contextlib
import io
import os
from typing import TypeVar

from aiozerocopy._core.channel import IN, OUT, OwnFd, own_pipe
from aiozerocopy._core.pipe_size import PIPE_SIZE, enlarge_pipe
from aiozerocopy._process.child import Tail
from aiozerocopy.opening import flags_for
from aiozerocopy.streams import ReceiveStream, SendStream

S = TypeVar("S", bound=SendStream)


class Lines(io.FileIO):
    """Our end of a pipe, whose reads do not block."""

    def __init__(self, end: OwnFd) -> None:
        self._end = end
        os.set_blocking(end.fd, False)
        super().__init__(end.fd, closefd=False)

    def close(self) -> None:
        super().close()
        self._end.close()

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
        theirs, ours = own_pipe()
        stream = kind(self._enlarged(ours).end(flags))
        self._undo.callback(stream.abort)
        return self._given(theirs), stream

    def out_of(self) -> tuple[int, ReceiveStream]:
        """The fd that the child writes to, and a stream from it."""
        ours, theirs = own_pipe()
        stream = ReceiveStream(self._enlarged(ours).end(IN))
        self._undo.callback(stream.abort)
        return self._given(theirs), stream

    def tail(self, limit: int) -> tuple[int, Tail]:
        """The fd that the child writes to, and the last that it wrote."""
        ours, theirs = own_pipe()
        tail = Tail(ours, limit)
        self._undo.callback(tail.stop)
        return self._given(theirs), tail

    def lines(self) -> tuple[int, Lines]:
        """The fd that the child writes to, and our end."""
        ours, theirs = own_pipe()
        file = Lines(ours)
        self._undo.callback(file.close)
        return self._given(theirs), file

    def _given(self, end: OwnFd) -> int:
        self._theirs.callback(end.close)
        return end.fd

    @staticmethod
    def _enlarged(end: OwnFd) -> OwnFd:
        enlarge_pipe(end.fd, PIPE_SIZE)
        return end

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
