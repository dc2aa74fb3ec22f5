"""One pipe to many readers: a split of csrc/split.h.

Its thread is C's and knows nothing of ours, so a `Splitter` that was dropped can be
collected, which stops it.  It is waited for only so long: the other side of the source
may hold it up inside the kernel.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

from aiozerocopy._core.binding import check, constants, ffi, lib
from aiozerocopy._core.borrows import Operation
from aiozerocopy._core.channel import IN, OWN, Channel
from aiozerocopy._core.errors import StreamClosed
from aiozerocopy._core.fork_and_exit import OfOneProcess
from aiozerocopy._core.receiving import ReceiveStream
from aiozerocopy._core.waiter import current_waiter

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aiozerocopy._core.binding import Counters

_FOR_EVER = (1 << 64) - 1  # microseconds
_OUTCOMES = {
    constants.AZC_HAS_ALL: "end",
    constants.AZC_TOO_SLOW: "too slow",
    constants.AZC_STOPPED: "stopped",
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
        if self._in.inherited or not self._record[0]:  # (it was finalized)
            return "stopped"
        return _OUTCOMES.get(lib.azc_split_outcome(self._record[0]))


class Split(OfOneProcess):
    """The source's read end, the file, and a thread; its end is an operation's."""

    def __init__(self, source: int, file: int, patience: float, unit: int) -> None:
        """It has dups of the fds; -1 is no file.

        Raises:
            OSError: there is no fd, no memory, or no thread.
        """
        OfOneProcess.__init__(self)
        # C stores the number itself: an exception after the call cannot lose it.
        self._number = ffi.new("azc_id *")
        self._state: Any = ffi.new("azc_split_state *")
        self._key = object()  # (the waiter is not to keep us)
        self._waiter = current_waiter()
        self._end = Operation(self._waiter.port, [])
        try:
            self._waiter.join(self._key)
            with open(os.devnull, "wb", buffering=0) as null:
                wanted = ffi.new("azc_split_request *")
                wanted.source, wanted.file = source, file
                wanted.null = null.fileno()
                wanted.patience_us = int(min(patience * 1e6, _FOR_EVER))
                wanted.unit = unit
                wanted.port, wanted.token = self._waiter.port.id, self._end.token
                check(lib.azc_split_open(wanted, self._number))
        except BaseException:
            if not self._number[0]:
                self._end.end()
                self._waiter.port.forget(self._end)
            self.close()
            raise

    def join(self, pipe_size: int) -> SplitterReader:
        """Raises: StreamClosed, if it is over; OSError, if there are no fds."""
        if self.inherited:
            raise StreamClosed("the splitter belongs to the parent process")
        record = ffi.gc(ffi.new("azc_split_reader **"), lib.azc_split_let_go)
        result = lib.azc_split_join(self._number[0], pipe_size, record)
        if result == -errno.ESHUTDOWN:
            raise StreamClosed("the splitter has come to its end")
        check(result)
        channel = Channel(lib.azc_split_read_end(record[0]), IN | OWN)
        return SplitterReader(channel, record)

    def state(self) -> Counters:
        lib.azc_split_get(self._number[0], self._state)
        state: Counters = self._state
        return state

    def rest(self) -> bytes:
        """Once it is over: what it has read from the source and given to nobody."""
        state = self.state()
        return bytes(ffi.buffer(state.bytes, state.rest))

    @property
    def result(self) -> int | None:
        """0 at the source's end, -ECANCELED, or its error; None before that."""
        return self._end.status if self._end.done else None

    async def wait(self) -> None:
        await self._waiter.wait(self._end)

    def stop(self) -> None:
        """End it soon; may be called from anywhere, and again."""
        lib.azc_split_stop(self._number[0])

    def close(self) -> None:
        """End it, and keep what it has told.  May be called twice."""
        self.state()
        self._state.rest = 0  # (its bytes are C's)
        number, self._number[0] = self._number[0], 0
        lib.azc_split_free(number)
        if not self.inherited:
            self._waiter.leave(self._key)

    def __del__(self, is_exiting: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_exiting() and hasattr(self, "_waiter"):
            self.close()
