"""The pipes between us and a child that is about to be started.

We make them, enlarge those of stdin and stdout, and give them to the child as fds: a
loop's own pipe for ``stdin=PIPE`` has 64 KiB, and under uvloop it is a socket.
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
R = TypeVar("R", bound=ReceiveStream)


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
        self.close()  # (without FileIO's warning: the owner gets one of the process)


class ChildPipes:
    """Pipes to a child and from it: the child gets one end of each, and we keep one.

    The block closes the child's ends when it ends, since then the child has its own
    copies.  It closes our ends, too, unless `keep` was called.
    """

    def __init__(self) -> None:
        self._theirs = contextlib.ExitStack()
        self._undo = contextlib.ExitStack()

    def into(self, kind: type[S], peer: str = "unknown") -> tuple[int, S]:
        """Return the fd that the child reads from, and a stream to it."""
        flags = OUT | flags_for(peer)
        theirs, ours = own_pipe()
        stream = kind(self._enlarged(ours).end(flags))
        self._undo.callback(stream.abort)
        return self._given(theirs), stream

    def out_of(self, kind: type[R]) -> tuple[int, R]:
        """Return the fd that the child writes to, and a stream from it."""
        ours, theirs = own_pipe()
        stream = kind(self._enlarged(ours).end(IN))
        self._undo.callback(stream.abort)
        return self._given(theirs), stream

    def tail(self, limit: int) -> tuple[int, Tail]:
        """Return the fd that the child writes to, and the `Tail` of it."""
        ours, theirs = own_pipe()
        tail = Tail(ours, limit)
        self._undo.callback(tail.stop)
        return self._given(theirs), tail

    def lines(self) -> tuple[int, Lines]:
        """Return the fd that the child writes to, and our end."""
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
        """Keep our ends open, once the child has started."""
        self._undo.pop_all()

    def __enter__(self) -> ChildPipes:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._undo.close()
        finally:
            self._theirs.close()
