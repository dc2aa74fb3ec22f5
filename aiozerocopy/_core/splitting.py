"""One pipe to many readers: a split of csrc/split.h, and the thread that runs it.

The thread holds the split in C and nothing else of ours, so a `Splitter` that was
dropped can be collected, which stops it.  It is a daemon, and is waited for only so
long: the other side of the source may hold it up inside the kernel.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from typing import TYPE_CHECKING

from aiozerocopy._core.binding import check, ffi, lib
from aiozerocopy._core.change import RemoteChange
from aiozerocopy._core.channel import IN, OWN, Channel
from aiozerocopy._core.errors import StreamClosed
from aiozerocopy._core.fork_and_exit import OfOneProcess
from aiozerocopy._core.pipe_size import enlarge_pipe
from aiozerocopy._core.receiving import ReceiveStream

if TYPE_CHECKING:
    from typing import Any

    from aiozerocopy._core.binding import Counters

_FOR_EVER = (1 << 64) - 1  # microseconds
_OUTCOMES = {
    lib.AZC_HAS_ALL: "end",
    lib.AZC_TOO_SLOW: "too slow",
    lib.AZC_STOPPED: "stopped",
}


class SplitterReader(ReceiveStream):
    """What one reader of a `Splitter` receives: all bytes since it joined."""

    def __init__(self, channel: Channel, record: Any) -> None:
        super().__init__(channel)
        self._record = record

    @property
    def ended(self) -> str | None:
        """Why no more bytes come: the source's "end", "too slow" or "stopped".

        None while more may come.  What had come before can still be received.
        """
        if self._in.inherited:
            return "stopped"
        return _OUTCOMES.get(lib.azc_split_outcome(self._record))


class Split(OfOneProcess):
    """The source's read end, the file, and a thread."""

    def __init__(self, source: int, file: int, patience: float, unit: int) -> None:
        """The fds are the split's from here on, also if this raises; -1 is no file."""
        self._change = RemoteChange()
        self._result: list[int] = []
        OfOneProcess.__init__(self)
        fds = [source] if file == -1 else [source, file]
        try:
            fds.append(null := os.open(os.devnull, os.O_WRONLY))
            split = ffi.new("azc_split **")
            us = int(min(patience * 1e6, _FOR_EVER))
            check(lib.azc_split_open(source, file, null, us, unit, split))
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise
        self._split = ffi.gc(split[0], lib.azc_split_free)

    def start(self) -> None:
        arguments = self._split, self._result, self._change
        threading.Thread(
            target=_run, args=arguments, name="aiozerocopy split", daemon=True
        ).start()

    def join(self, pipe_size: int) -> SplitterReader:
        """Raises: StreamClosed, if it is over; OSError, if there are no fds."""
        if self.inherited:
            raise StreamClosed("the splitter belongs to the parent process")
        read_fd, write_fd = os.pipe()
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, write_fd)
            undo.callback(os.close, read_fd)
            enlarge_pipe(write_fd, pipe_size)
            os.set_blocking(write_fd, False)
            os.set_blocking(read_fd, False)
            record = ffi.new("azc_split_reader **")
            result = lib.azc_split_join(self._split, write_fd, record)
            if result == -errno.ESHUTDOWN:
                raise StreamClosed("the splitter has come to its end")
            check(result)
            undo.pop_all()
            return SplitterReader(
                Channel(read_fd, IN | OWN), ffi.gc(record[0], lib.azc_split_let_go)
            )

    def state(self) -> Counters:
        """What it has done."""
        state: Counters = ffi.new("azc_split_state *")
        lib.azc_split_get(self._split, state)
        return state

    def rest(self) -> bytes:
        """Once it is over: what it has read from the source and given to nobody."""
        state = self.state()
        return bytes(ffi.buffer(state.bytes, state.rest))

    @property
    def result(self) -> int | None:
        """0 at the source's end, -ECANCELED, or its error; None before that."""
        return next(iter(self._result), None)

    async def wait(self) -> None:
        """Return once it is over."""
        await self._change.wait(lambda: bool(self._result))

    def stop(self) -> None:
        """End it soon; may be called from anywhere, and again."""
        lib.azc_split_stop(self._split)


def _run(split: Any, result: list[int], change: RemoteChange) -> None:
    result.append(lib.azc_split_run(split))
    change.happen()
