"""The reading side of a transport: what comes goes to the protocol, or waits.

The loop tells when there is something to read.  A `Protocol` gets what was there, at
most `MESSAGE` or `BULK` bytes, as one bytes object into which the kernel has written
it; a `BufferedProtocol` gets it in its own buffer.

There is one read in each turn of the loop, so that the program finds the data in the
processor's cache, and can pause before it has too much.

While reading is paused the fd is watched until there is something to read: most pauses
are over by then, and so cost nothing.
"""

from __future__ import annotations

import asyncio
from os import read, readv
from typing import Any

from aiozerocopy._core import fork_and_exit as process
from aiozerocopy.transport.lifetime import Lifetime

# Memory of 128 KiB and more glibc's malloc has from the kernel, page by page, each time
# anew, until a bigger piece was freed: from then on it keeps pieces up to that size.
# (Not where MALLOC_... of the environment says otherwise: so small reads are not BULK.)
bytes(1 << 20)
MESSAGE = 120 << 10
BULK = 256 << 10

_NOTHING_NOW = (BlockingIOError, InterruptedError)


class Reading(Lifetime, asyncio.ReadTransport):
    """A transport that reads."""

    __slots__ = ()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._is_buffered = isinstance(self._protocol, asyncio.BufferedProtocol)
        self._paused = False  # by pause_reading
        self._is_watched = False
        self._born = process.generation
        self._size = MESSAGE  # of the next read: as much as the last one got
        self._has_ended = False  # nothing will come any more

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)
        super().set_protocol(protocol)

    # -- flow control -------------------------------------------------------------

    def is_reading(self) -> bool:
        return not (self._closing or self._paused)

    def pause_reading(self) -> None:
        """Leave what comes to the kernel.  Called again, it does nothing."""
        self._paused = True

    def resume_reading(self) -> None:
        """Give the protocol what comes.  Called again, it does nothing."""
        self._paused = False
        if self._is_made:
            self._start()

    def _start(self) -> None:
        if self.is_reading() and not self._is_watched and not self._has_ended:
            watch = self._readiness.watch
            self._context.copy().run(watch, self._fd, self._readable)
            self._is_watched = True

    def _stop(self) -> None:
        self._readiness.pause(self._fd)
        self._is_watched = False

    # -- what comes ---------------------------------------------------------------

    def _readable(self) -> None:
        # (in a forked child, the parent reads there)
        if self._closing or self._paused or self._born != process.generation:
            self._stop()
            return
        try:
            if self._is_buffered:
                self._read_into()
                return
            try:
                data = read(self._fd, self._size)
            except OSError as error:
                self._read_failed(error)
                return
            self._size = MESSAGE if len(data) < MESSAGE else BULK
            if data:
                self._protocol.data_received(data)
            else:
                self._end_reading()
        except BaseException as error:
            self._fail(error, "what it does with what comes")
            if not isinstance(error, Exception):
                raise

    def _read_into(self) -> None:
        buffer = self._protocol.get_buffer(-1)
        if not len(buffer):
            raise RuntimeError("get_buffer() returned an empty buffer")
        try:
            n = readv(self._fd, (buffer,))
        except OSError as error:
            self._read_failed(error)
            return
        if n:
            self._protocol.buffer_updated(n)
        else:
            self._end_reading()

    def _read_failed(self, error: OSError) -> None:
        if not isinstance(error, _NOTHING_NOW):
            self._lose(error)

    def _end_reading(self) -> None:
        """The peer sends no more: close, unless the protocol wants to go on writing."""
        self._has_ended = True
        self._stop()
        if not self._protocol.eof_received():
            self.close()
