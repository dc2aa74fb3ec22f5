"""TurboPipe's interface, 1.x and 2.x, for programs without an event loop.

    from aiozerocopy.compat import turbopipe

    turbopipe.sync(buffer)  # wait until the last frame of this buffer is out
    fbo.read_into(buffer)
    turbopipe.pipe(buffer, process.stdin.fileno())

Who owns what, and when
    a buffer of the program's    from `pipe` on borrowed: it is not copied, must not be
                                 changed and cannot be resized or freed until it is out
    an OpenGL buffer (moderngl)  `pipe` maps it, copies it into memory of ours and
                                 unmaps it, all before it returns; from then on it may
                                 be rendered into, `sync` or not
    an fd                        duplicated while anything goes to it and a moment
                                 longer, so that its number can be closed at any time:
                                 what is queued arrives, and then the reader sees the
                                 end, within milliseconds.  `sync()` of everything and
                                 `close` give it back at once
    a failure                    kept until a call has raised it: `sync` of that buffer
                                 or of everything, or `close`

Why OpenGL buffers are copied.  A mapping that outlives the call cannot be held safely:
moderngl unmaps whatever buffer is bound at that moment, which need not be the mapped
one, OpenGL refuses to render into a mapped buffer, and another thread may do neither.

For each fd there is a queue in C, which a thread empties that needs no GIL.  C wakes a
thread that waits in `sync` or `pipe`.  A Python thread gives the fd back once the
program has left it alone.  Both threads end when the fd has been idle.
"""

from __future__ import annotations

import atexit
import collections
import fcntl
import io
import mmap
import os
import stat
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.channel import OUT, Channel
from aiozerocopy._core.lock import Lock
from aiozerocopy._core.pins import nbytes, overlap, pin_writable
from aiozerocopy._core.pipe_size import PIPE_SIZE, enlarge_pipe
from aiozerocopy._core.to_all import Shared
from aiozerocopy.sync._waiting import SharedPort

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozerocopy._core.borrows import Operation
    from aiozerocopy.opening import HasFileno

    _Key = tuple[int, int, int, int]  # an fd, its kind, and where that is

__all__ = ["close", "done", "pipe", "sync"]

__version__ = "2.1.0"  # of the TurboPipe whose interface this is
__about__ = "TurboPipe's calls, by aiozerocopy"

_DEPTH = 32  # messages that an fd's queue takes before `pipe` waits
_REMEMBERED = 256  # failures that no call has raised
_NO_LIMIT = (1 << 64) - 1
_IDLE = 0.05  # seconds without a call, after which a queue is left alone
_LOOK = 0.005  # seconds between two looks whether the program has closed its fd
_STALL = 1.0  # seconds without progress, after which the interpreter's exit gives up


# ---- what a program calls ----------------------------------------------------------


def pipe(
    data: Any = None,
    file: int | HasFileno | None = None,
    *,
    buffer: Any = None,
    fileno: int | HasFileno | None = None,
) -> None:
    """Queue the bytes of ``data`` for the fd ``file``, after all queued there before.

    ``data`` is anything C-contiguous with the buffer protocol, or a moderngl buffer
    (or its ``.mglo``), which must belong to this thread's context.  It is borrowed as
    the module says.  Waits while 32 messages are queued for this fd.  ``buffer`` and
    ``fileno`` are TurboPipe 1's names for the two.

    Raises:
        TypeError, BufferError: ``data`` cannot be sent, or not be mapped.
        OSError: ``file`` is not open; io.UnsupportedOperation: not for writing.
        StreamBroken: the reader is gone.
    """
    message = _Message(buffer if data is None else data)
    number = _fd_of(fileno if file is None else file)
    while not _queue_for(number).put(message):
        pass  # it was idle and has just ended: a new one takes its place


def sync(data: Any = None, *, buffer: Any = None) -> None:
    """Wait until all that was piped of ``data`` is out; None: all there is.

    Any view of the memory stands for all messages that share a byte with it.

    Raises:
        StreamBroken: the reader left before; ``bytes_sent`` of the message were out.
        TypeError: ``data`` is no buffer.
    """
    data = buffer if data is None else data
    if data is None:
        close()
    else:
        wanted = _Message(data)
        wanted.check()
        _finish(wanted.touches)


def close() -> None:
    """Wait until everything is out, and let go of all fds.  `pipe` may follow.

    Raises: as `sync`.
    """
    _finish(lambda _: True, ends=True)


def done(data: Any) -> None:
    """Say that a buffer will not be piped again; nothing is kept of it anyway."""


def _fd_of(file: int | HasFileno | None) -> int:
    if file is None or isinstance(file, bool):
        raise TypeError("pipe() needs a buffer and an fd")
    return file if isinstance(file, int) else file.fileno()


def _finish(wanted: Callable[[_Message], bool], *, ends: bool = False) -> None:
    """Wait for the wanted messages of all fds; then raise the first of the errors."""
    try:
        for queue in list(_queues.values()):
            queue.wait(wanted)
    finally:
        if ends:
            for queue in list(_queues.values()):
                queue.end_if_idle()
    with _lock:
        failed = [message for message in _failed if wanted(message)]
        for message in failed:
            _failed.remove(message)
    for message in failed:
        message.operation.raise_if_failed()


# ---- what is sent ------------------------------------------------------------------


class _Message:
    """What `pipe` was given: the program's own memory, or a buffer of OpenGL (gl)."""

    operation: Operation
    copy: mmap.mmap | None = None  # which is sent in its place

    def __init__(self, data: Any) -> None:
        self.data = getattr(data, "mglo", data)  # of a moderngl.Buffer
        owner = _owner(self.data)
        self.gl = owner if _is_opengl(owner) else None

    def check(self) -> None:
        """Raise unless it is a buffer; one of OpenGL's is not mapped for that."""
        if self.gl is None:
            nbytes(self.data)

    def touches(self, other: _Message) -> bool:
        """Do the two share a byte?"""
        if self.gl is not None or other.gl is not None:
            return self.gl is other.gl
        try:
            return overlap(self.data, other.data)
        except (TypeError, ValueError, BufferError):
            return False  # a memoryview that the program has released since


def _owner(data: Any) -> Any:
    """The object whose memory memoryviews and NumPy arrays show."""
    numpy = sys.modules.get("numpy")  # (not imported: no arrays)
    while True:
        if isinstance(data, memoryview):
            data = data.obj
        elif numpy is None or not isinstance(data, numpy.ndarray) or data.base is None:
            return data
        else:
            data = data.base


def _is_opengl(owner: object) -> bool:
    kind = type(owner)
    return kind.__name__ == "Buffer" and kind.__module__ in ("mgl", "moderngl.mgl")


# ---- where it goes -----------------------------------------------------------------


class _FdQueue:
    """What is on its way to one fd.

    ``_lock`` guards all of it, and is held no longer than a call into C takes; a reader
    that delays such a call delays only its own queue.
    """

    def __init__(self, key: _Key) -> None:
        self._key = key
        self._number, kind, *_ = key
        # A regular file can be opened anew, at another offset: that would not show.
        self._idle = 0.0 if kind == stat.S_IFREG else _IDLE
        self.open = True
        self._in_flight: list[_Message] = []
        self._spare: list[mmap.mmap] = []
        self._lock = Lock()
        self._calls = 0  # of the program
        self._ended = threading.Event()
        self.port = SharedPort()
        self._channel = _channel_to(self._number)
        name = f"aiozerocopy turbopipe, fd {self._number}"
        self.thread = threading.Thread(target=self._watch, name=name, daemon=True)

    def put(self, message: _Message) -> bool:
        """Queue it, waiting for room; False if the queue has ended meanwhile."""
        self._calls += 1
        while True:
            self.port.until(lambda: not self.open or len(self._left()) < _DEPTH)
            with self._lock:
                if not self.open:
                    return False
                self._collect()
                if len(self._in_flight) >= _DEPTH:  # (another thread was quicker)
                    continue
                try:
                    self._submit(message)
                finally:
                    if self.thread.ident is None:  # (it ends if it has nothing to do)
                        self.thread.start()
                return True

    def _submit(self, message: _Message) -> None:
        data = message.data
        if message.gl is not None:
            data = message.copy = self._copied(data)
            message.data = message.gl  # a view of the caller's would keep it mapped
        message.operation = self._channel.send_now(self.port, (data,))
        self._in_flight.append(message)

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

    def _left(self) -> list[_Message]:
        return [each for each in self._in_flight if not each.operation.done]

    def _collect(self) -> None:
        """Take what has ended out of the queue."""
        left = self._left()
        for message in self._in_flight:
            if message in left:
                continue
            if message.operation.status < 0:
                _failed.append(message)
            elif message.copy is not None:
                self._spare.append(message.copy)
        self._in_flight = left

    def wait(self, wanted: Callable[[_Message], bool]) -> None:
        """Return when the wanted messages are out, or have failed."""
        self._calls += 1
        mine = [each for each in self._left() if wanted(each)]
        self.port.until(lambda: all(each.operation.done for each in mine))
        with self._lock:
            self._collect()

    def linger(self) -> None:
        """At the program's end: wait while somebody reads.

        What is left then is lost, as `fork_and_exit` says.
        """
        left = self._channel.stats().queued_bytes
        before = left + 1
        while left < before and self._left():
            self.port.until(lambda: not self._left(), _STALL)
            before, left = left, self._channel.stats().queued_bytes

    def _watch(self) -> None:
        while self.open:
            self._end_unless_called(self._calls)

    def _end_unless_called(self, calls: int) -> None:
        """Give the program time for another call, unless it has closed its fd."""
        end = time.monotonic() + self._idle
        while time.monotonic() < end and not self._ended.wait(_LOOK):
            if not self._left() and not self._is_there():
                break
        self.port.until(lambda: calls != self._calls or not self._left())
        if calls == self._calls:
            self.end_if_idle()

    def _is_there(self) -> bool:
        """Does the program's number still lead here?"""
        try:
            return _key_of(self._number) == self._key
        except OSError:
            return False

    def end_if_idle(self) -> None:
        """Give the fd back, unless something is on its way.  May be called twice."""
        with self._lock:
            self._collect()
            if self._in_flight or not self.open:
                return
            self.open = False
            self._ended.set()
            self._channel.abort()
            self.port.drain()
            self.port.close()
        with _lock:
            if _queues.get(self._key) is self:
                del _queues[self._key]


def _channel_to(number: int) -> Channel:
    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise io.UnsupportedOperation(f"fd {number} is open for reading only")
    enlarge_pipe(number, PIPE_SIZE)
    # (in no variable: an exception of a signal would leave it open)
    channel = Channel(fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3), OUT)
    channel.set_limit(_NO_LIMIT)  # (it is counted here, in messages)
    return channel


# ---- all of them -------------------------------------------------------------------

_lock = Lock()
_queues: dict[_Key, _FdQueue] = {}
_failed: collections.deque[_Message] = collections.deque(maxlen=_REMEMBERED)


def _key_of(number: int) -> _Key:
    """What is behind an fd now."""
    found = os.fstat(number)
    return number, stat.S_IFMT(found.st_mode), found.st_dev, found.st_ino


def _queue_for(number: int) -> _FdQueue:
    key = _key_of(number)
    with _lock:
        queue = _queues.get(key)
        if queue is None or not queue.open:
            queue = _queues[key] = _FdQueue(key)
        return queue


def _forget_queues() -> None:
    """The queues are the parent's; a child opens its own."""
    global _lock
    _lock = Lock()
    _queues.clear()
    _failed.clear()


def _at_exit() -> None:
    """What was piped still arrives, if anybody reads it."""
    for queue in list(_queues.values()):
        queue.linger()


os.register_at_fork(after_in_child=_forget_queues)
atexit.register(_at_exit)
