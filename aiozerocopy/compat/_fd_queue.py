"""An fd that TurboPipe's `pipe` writes to: its queue, what is in it, and who hears of
its end."""

from __future__ import annotations

import collections
import fcntl
import io
import mmap
import os
import select
import stat
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.borrows import Operation, Port
from aiozerocopy._core.channel import OUT, Channel
from aiozerocopy._core.pins import nbytes, overlap, pin
from aiozerocopy._core.pipe_size import PIPE_SIZE, enlarge_pipe

if TYPE_CHECKING:
    from collections.abc import Callable

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

    ``_changed`` guards all of it, and is held no longer than a call into C takes; a
    reader that delays such a call delays only its own queue.  ``on_end`` is called when
    the queue has ended by itself.

    Of the threads that wait for something, one listens to C and wakes the others: the
    program's own thread as a rule, so it depends on no other one of Python's.  The
    queue's own thread listens once the program does not.
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
        self._in_flight: collections.deque[Transfer] = collections.deque()
        self._spare: list[mmap.mmap] = []
        self._changed = threading.Condition()
        self._calls = 0  # of the program
        self._is_heard = False  # a thread listens
        self._ended = threading.Event()
        self._port = Port()
        self._ready = select.poll()
        self._ready.register(self._port.fileno(), select.POLLIN)
        self._channel = _channel_to(number)
        name = f"aiozerocopy turbopipe, fd {number}"
        self.thread = threading.Thread(target=self._watch, name=name, daemon=True)

    def leads_to(self, number: int, identity: os.stat_result) -> bool:
        now = (number, identity.st_dev, identity.st_ino)
        return now == (self.number, self.device, self.inode)

    def put(self, source: Source) -> bool:
        """Queue it, waiting for room; False if the queue has ended meanwhile."""
        with self._changed:
            self._calls += 1
            self._wait_for(lambda: len(self._in_flight) < DEPTH or not self.open)
            if not self.open:
                return False
            try:
                self._submit(source)
            finally:
                self._begin()
            return True

    def _begin(self) -> None:
        """Start the thread, only now, for it ends when it finds nothing to do."""
        if self.thread.ident is None:
            self.thread.start()

    def _submit(self, source: Source) -> None:
        copy = None
        if source.gl is None:
            operation = self._channel.send_now(self._port, (source.data,))
        else:
            copy, operation = self._send_mapped(source)
        if not operation.done:
            self._in_flight.append(Transfer(source, copy, operation))
        elif copy is not None:
            self._spare.append(copy)

    def _send_mapped(self, source: Source) -> tuple[mmap.mmap, Operation]:
        """Map, send or copy, unmap: in one go, so that the right buffer is bound."""
        with pin(source.data) as mapped:
            self._spare = [old for old in self._spare if len(old) == len(mapped)]
            copy = self._spare.pop() if self._spare else mmap.mmap(-1, len(mapped))
            operation = self._channel.send_copied(self._port, mapped, copy)
        source.data = source.gl  # a view of the caller's would keep it mapped
        return copy, operation

    def wait(self, wanted: Callable[[Source], bool]) -> None:
        """Return when the wanted transfers are out; raise if one of them failed."""
        with self._changed:
            self._calls += 1
            mine = [transfer for transfer in self._in_flight if wanted(transfer.source)]
            self._wait_for(lambda: all(transfer.operation.done for transfer in mine))
            failed = [transfer for transfer in self.failed if wanted(transfer.source)]
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
        with self._changed:
            left = self._channel.stats().queued_bytes
            before = left + 1
            while self._in_flight and left < before:
                self._wait_for(lambda: not self._in_flight, STALL)
                before, left = left, self._channel.stats().queued_bytes
            self._end()
        if left:
            warnings.warn(
                f"{left:,} bytes that were piped to fd {self.number} are lost: nobody "
                "reads them",
                ResourceWarning,
                stacklevel=1,
            )

    # -- what C tells ----------------------------------------------------------------

    def _wait_for(
        self, condition: Callable[[], bool], seconds: float | None = None
    ) -> None:
        """Wait until it is true, or the time is over; the lock is held at both ends."""
        deadline = None if seconds is None else time.monotonic() + seconds
        self._collect()
        while not condition():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            self._wait(left)

    def _wait(self, seconds: float | None = None) -> None:
        """Wait for news: listen to C, unless another thread does that."""
        if self._is_heard:
            self._changed.wait(seconds)
            return
        self._is_heard = True
        try:
            try:
                self._changed.release()
                self._ready.poll(None if seconds is None else seconds * 1000)
            finally:
                self._changed.acquire()
        finally:
            self._is_heard = False
            self._collect()
            self._changed.notify_all()

    def _collect(self) -> None:
        """Take what has ended out of the queue.  Only the thread that listens may: news
        that another thread took would never wake it."""
        if self._is_heard:
            return
        self._port.drain()
        while self._in_flight and self._in_flight[0].operation.done:
            transfer = self._in_flight.popleft()
            if transfer.operation.status < 0:
                self.failed.append(transfer)
            elif transfer.copy is not None:
                self._spare.append(transfer.copy)

    # -- in its own thread -----------------------------------------------------------

    def _watch(self) -> None:
        while self.open or self._in_flight:
            calls = self._calls
            self._rest()
            with self._changed:
                if self._in_flight and calls == self._calls:
                    self._wait()
                is_idle = not self._in_flight and calls == self._calls
            if is_idle:
                self._end_if_idle()
        self._port.close()

    def _rest(self) -> None:
        """Give the program time for another call, unless it has closed its fd."""
        end = time.monotonic() + self._idle
        while time.monotonic() < end and not self._ended.wait(LOOK):
            if not self._in_flight and not self._is_there():
                return

    def _is_there(self) -> bool:
        """Does the program's number still lead here?"""
        try:
            return self.leads_to(self.number, os.fstat(self.number))
        except OSError:
            return False

    def _end_if_idle(self) -> None:
        with self._changed:
            if self._port.operations:
                return
            self._end()
        self._on_end(self)

    def _end(self) -> None:
        if self.open:
            self.open = False
            self._ended.set()
            self._spare.clear()
            self._channel.abort()
            self._changed.notify_all()


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
