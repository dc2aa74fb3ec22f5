"""An fd that TurboPipe's `pipe` writes to: its queue, what is in it, and who hears of
its end."""

from __future__ import annotations

import collections
import fcntl
import io
import mmap
import os
import stat
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.channel import OUT, Channel
from aiozerocopy._core.pins import nbytes, overlap, pin_writable
from aiozerocopy._core.pipe_size import PIPE_SIZE, enlarge_pipe
from aiozerocopy._core.to_all import Shared
from aiozerocopy.sync._waiting import SharedPort

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozerocopy._core.borrows import Operation

_NO_LIMIT = (1 << 64) - 1
DEPTH = 32  # transfers that an fd's queue takes before `pipe` waits
IDLE = 0.05  # seconds without a call, after which a queue looks after itself
LOOK = 0.005  # seconds, after which it looks whether the program has closed its fd
STALL = 1.0  # seconds without progress, after which the interpreter's exit gives up


class Source:
    """What `pipe` was given: the program's own memory, or a buffer of OpenGL (gl)."""

    def __init__(self, data: Any) -> None:
        self.data = getattr(data, "mglo", data)  # of a moderngl.Buffer
        owner = _owner(self.data)
        self.gl = owner if _is_opengl(owner) else None

    def check(self) -> None:
        """Raise unless it is a buffer; one of OpenGL's is not mapped for that."""
        if self.gl is None:
            nbytes(self.data)

    def touches(self, other: Source) -> bool:
        """Do the two share a byte?"""
        if self.gl is not None or other.gl is not None:
            return self.gl is other.gl
        try:
            return overlap(self.data, other.data)
        except (TypeError, ValueError, BufferError):
            return False  # a memoryview that the program has released since


@dataclass(eq=False)
class Transfer:
    """A source on its way, and the memory that is sent."""

    source: Source
    copy: mmap.mmap | None
    operation: Operation


class FdQueue:
    """A queue of memory for one fd.

    ``_lock`` guards all of it, and is held no longer than a call into C takes; a reader
    that delays such a call delays only its own queue.  ``on_end`` is called when the
    queue has ended by itself.

    The program's threads wait for C themselves, by `SharedPort`.  The queue's own
    thread does that, too, once the program leaves it alone, and then ends the queue.
    """

    def __init__(
        self, number: int, identity: os.stat_result, on_end: Callable[[FdQueue], None]
    ) -> None:
        self.number = number
        self.device, self.inode = identity.st_dev, identity.st_ino
        self.open = True
        self._on_end = on_end
        self.failed: collections.deque[Transfer] = collections.deque(maxlen=DEPTH)
        # A regular file can be opened anew, at another offset: that would not show.
        self._idle = 0.0 if stat.S_ISREG(identity.st_mode) else IDLE
        self._in_flight: list[Transfer] = []
        self._spare: list[mmap.mmap] = []
        self._lock = threading.Lock()
        self._calls = 0  # of the program
        self._ended = threading.Event()
        self.port = SharedPort()
        self._channel = _channel_to(number)
        name = f"aiozerocopy turbopipe, fd {number}"
        self.thread = threading.Thread(target=self._watch, name=name, daemon=True)

    def leads_to(self, number: int, identity: os.stat_result) -> bool:
        now = (number, identity.st_dev, identity.st_ino)
        return now == (self.number, self.device, self.inode)

    def put(self, source: Source) -> bool:
        """Queue it, waiting for room; False if the queue has ended meanwhile."""
        self._calls += 1
        while True:
            self.port.until(lambda: not self.open or len(self._left()) < DEPTH)
            with self._lock:
                if not self.open:
                    return False
                self._collect()
                if len(self._in_flight) >= DEPTH:  # (another thread was quicker)
                    continue
                try:
                    self._submit(source)
                finally:
                    if self.thread.ident is None:  # (it ends if it has nothing to do)
                        self._begin()
                return True

    def _begin(self) -> None:
        self.thread.start()

    def _submit(self, source: Source) -> None:
        copy, data = None, source.data
        if source.gl is not None:
            data = copy = self._copied(data)
            source.data = source.gl  # a view of the caller's would keep it mapped
        operation = self._channel.send_now(self.port, (data,))
        self._in_flight.append(Transfer(source, copy, operation))

    def _copied(self, data: Any) -> mmap.mmap:
        """Map, copy, unmap: in one go, so that the right buffer is bound."""
        mapped = Shared((data,))
        try:
            n = mapped.nbytes
            self._spare = [old for old in self._spare if len(old) == n]
            copy = self._spare.pop() if self._spare else mmap.mmap(-1, n)
            with pin_writable(copy) as memory:
                mapped.copy_to(memory)
            return copy
        finally:
            mapped.pins.release()

    def _left(self) -> list[Transfer]:
        return [each for each in self._in_flight if not each.operation.done]

    def _collect(self) -> None:
        """Take what has ended out of the queue."""
        left = []
        for transfer in self._in_flight:
            if not transfer.operation.done:
                left.append(transfer)
            elif transfer.operation.status < 0:
                self.failed.append(transfer)
            elif transfer.copy is not None:
                self._spare.append(transfer.copy)
        self._in_flight = left

    def wait(self, wanted: Callable[[Source], bool]) -> None:
        """Return when the wanted transfers are out; raise if one of them failed."""
        self._calls += 1
        mine = [each for each in self._left() if wanted(each.source)]
        self.port.until(lambda: all(each.operation.done for each in mine))
        with self._lock:
            self._collect()
            failed = [each for each in self.failed if wanted(each.source)]
            for transfer in failed:
                self.failed.remove(transfer)
        for transfer in failed:
            transfer.operation.raise_if_failed()

    def finish(self) -> None:
        """Wait for everything, then give the fd back."""
        try:
            self.wait(lambda _: True)
        finally:
            self._end_if_idle()

    def linger(self) -> None:
        """At the program's end: wait while somebody reads, then say what is lost."""
        left = self._channel.stats().queued_bytes
        before = left + 1
        while left < before and self._left():
            self.port.until(lambda: not self._left(), STALL)
            before, left = left, self._channel.stats().queued_bytes
        self._end()
        if left:
            warnings.warn(
                f"{left:,} bytes that were piped to fd {self.number} are lost: nobody "
                "reads them",
                ResourceWarning,
                stacklevel=1,
            )

    # -- in its own thread -----------------------------------------------------------

    def _watch(self) -> None:
        while self.open:
            calls = self._calls
            self._rest()
            self.port.until(partial(self._may_end, calls))
            if calls == self._calls:
                self._end_if_idle()

    def _may_end(self, calls: int) -> bool:
        """Is it over, or is the program's next call there?"""
        return calls != self._calls or not self._left()

    def _rest(self) -> None:
        """Give the program time for another call, unless it has closed its fd."""
        end = time.monotonic() + self._idle
        while time.monotonic() < end and not self._ended.wait(LOOK):
            if not self._left() and not self._is_there():
                return

    def _is_there(self) -> bool:
        """Does the program's number still lead here?"""
        try:
            return self.leads_to(self.number, os.fstat(self.number))
        except OSError:
            return False

    def _end_if_idle(self) -> None:
        with self._lock:
            self._collect()
            if self._in_flight:
                return
            self._end()
        self._on_end(self)

    def _end(self) -> None:
        if self.open:
            self.open = False
            self._ended.set()
            self._spare.clear()
            self._channel.abort()
            self.port.drain()
            self.port.close()


def _channel_to(number: int) -> Channel:
    """A channel over a duplicate of the fd."""
    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise io.UnsupportedOperation(f"fd {number} is open for reading only")
    fd = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
    enlarge_pipe(fd, PIPE_SIZE)
    channel = Channel(fd, OUT)
    channel.set_limit(_NO_LIMIT)  # (it is counted here, in transfers)
    return channel


def _owner(data: Any) -> Any:
    """The object whose memory memoryviews and NumPy arrays show."""
    numpy = sys.modules.get("numpy")  # without it, nobody has an array
    while True:
        if isinstance(data, memoryview):
            data = data.obj
        elif numpy is not None and isinstance(data, numpy.ndarray):
            if data.base is None:
                return data
            data = data.base
        else:
            return data


def _is_opengl(owner: object) -> bool:
    kind = type(owner)
    return kind.__name__ == "Buffer" and kind.__module__ in ("mgl", "moderngl.mgl")
