"""TurboPipe's interface, 1.x and 2.x, for programs without an event loop.

    from aiozerocopy.compat import turbopipe

    turbopipe.sync(buffer)  # wait until the last frame of this buffer is out
    fbo.read_into(buffer)
    turbopipe.pipe(buffer, process.stdin.fileno())

Who owns what, and when
    a buffer of the program's    borrowed by `pipe`, not copied: it must not be changed,
                                 and cannot be resized or freed, until it is out
    an OpenGL buffer (moderngl)  mapped, copied into our memory and unmapped before
                                 `pipe` returns: then the program may render into it,
                                 even without `sync`
    an fd                        duplicated while bytes go to it and a moment longer, so
                                 the program can close its number at any time: queued
                                 bytes arrive, and within milliseconds the reader sees
                                 the end.  `sync()` of everything and `close` give the
                                 duplicate back at once
    a failure (the last 256)     kept until a call raises it, or an earlier one of the
                                 same fd: `sync` of that buffer or of everything, or
                                 `close`

Why OpenGL buffers are copied.  A mapping cannot safely outlive the call: moderngl
unmaps the buffer that is bound at that moment, which need not be the mapped one; OpenGL
refuses to render into a mapped buffer; and another thread can neither map nor unmap.

For each fd there is a queue in C, which a thread without the GIL empties.  C wakes the
threads that wait in `sync` or `pipe`.  A Python thread closes the duplicate of the fd
once the program has stopped using it.  Both threads end when the fd has been idle.
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

from aiozerocopy._core.channel import OUT, OwnFd
from aiozerocopy._core.fds import duplicates
from aiozerocopy._core.lock import Lock
from aiozerocopy._core.pins import nbytes, overlap, pin_writable
from aiozerocopy._core.pipe_size import PIPE_SIZE, enlarge_pipe
from aiozerocopy._core.to_all import Shared
from aiozerocopy.sync._waiting import SharedPort

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozerocopy._core.borrows import Operation
    from aiozerocopy._core.channel import Channel
    from aiozerocopy.opening import HasFileno

    _Key = tuple[int, int, int, int]  # an fd; its file's kind, device and inode

__all__ = ["close", "done", "pipe", "sync"]

__version__ = "2.1.0"  # of the TurboPipe with this interface
__about__ = "TurboPipe's calls, by aiozerocopy"

_DEPTH = 32  # messages that an fd's queue takes before `pipe` waits
_REMEMBERED = 256  # failures that are kept until a call raises them
_NO_LIMIT = (1 << 64) - 1
_IDLE = 0.05  # seconds without a call, after which a queue is ended
_LOOK = 0.005  # seconds between two checks of the program's fd
_STALL = 1.0  # seconds without progress, after which the interpreter's exit gives up


# ---- the functions for programs ----------------------------------------------------


def pipe(
    data: Any = None,
    file: int | HasFileno | None = None,
    *,
    buffer: Any = None,
    fileno: int | HasFileno | None = None,
) -> None:
    """Queue the bytes of ``data`` for the fd ``file``, after those queued before.

    ``data`` is a C-contiguous buffer, or a moderngl buffer (or its ``.mglo``), which
    must belong to this thread's context.  The module's docstring says how long it is
    borrowed.  `pipe` waits while 32 messages are queued for this fd.  ``buffer`` and
    ``fileno`` are TurboPipe 1's names of the two arguments.

    Raises:
        TypeError, BufferError: ``data`` cannot be sent or mapped.
        OSError: ``file`` is not open; io.UnsupportedOperation: not for writing.
        StreamBroken: the reader is gone.
    """
    message = _Message(buffer if data is None else data)
    number = _fd_of(fileno if file is None else file)
    while not _queue_for(number).put(message):
        pass  # the queue was idle and has just ended: a new one takes its place


def sync(data: Any = None, *, buffer: Any = None) -> None:
    """Wait until the messages that share memory with ``data`` are out; None: all.

    ``data`` may be any view of the memory.

    Raises:
        StreamBroken: the reader left before; ``bytes_sent`` of the message were out.
        TypeError: ``data`` is not a buffer.
    """
    data = buffer if data is None else data
    if data is None:
        close()
    else:
        wanted = _Message(data)
        wanted.check()
        _finish(wanted.touches)


def close() -> None:
    """Wait until everything is out, and close our fds.  `pipe` may be called again.

    Raises: as `sync`.
    """
    _finish(lambda _: True, ends=True)


def done(data: Any) -> None:
    """Do nothing: in TurboPipe this says that a buffer will not be piped again."""


def _fd_of(file: int | HasFileno | None) -> int:
    if file is None or isinstance(file, bool):
        raise TypeError("pipe() needs a buffer and an fd")
    return file if isinstance(file, int) else file.fileno()


def _finish(wanted: Callable[[_Message], bool], *, ends: bool = False) -> None:
    """Wait for the wanted messages of all fds; then raise the error of one fd.

    The next call raises that of the next fd.
    """
    try:
        for queue in list(_queues.values()):
            queue.wait(wanted)
    finally:
        if ends:
            for queue in list(_queues.values()):
                queue.end_if_idle()
    with _lock:
        # (a copy: other queues may add to it meanwhile)
        failed = [message for message in _failed.copy() if wanted(message)]
        failed = [each for each in failed if each.queue is failed[0].queue]
        for message in failed:
            _failed.remove(message)
    for message in failed:
        message.operation.raise_if_failed()


# ---- messages ----------------------------------------------------------------------


class _Message:
    """An argument of `pipe`: the program's own memory, or a buffer of OpenGL (gl)."""

    queue: _FdQueue
    operation: Operation
    copy: mmap.mmap | None = None  # of OpenGL's buffer, which is sent in its place

    def __init__(self, data: Any) -> None:
        self.data = getattr(data, "mglo", data)  # (of a moderngl.Buffer)
        owner = _owner(self.data)
        self.gl = owner if _is_opengl(owner) else None

    def check(self) -> None:
        """Raise unless this is a buffer; a buffer of OpenGL is not mapped for that."""
        if self.gl is None:
            nbytes(self.data)

    def touches(self, other: _Message) -> bool:
        """Do the two messages share a byte?"""
        if self.gl is not None or other.gl is not None:
            return self.gl is other.gl
        try:
            return overlap(self.data, other.data)
        except (TypeError, ValueError, BufferError):
            return False  # a memoryview that the program has released since


def _owner(data: Any) -> Any:
    """Return the object whose memory memoryviews and NumPy arrays show."""
    numpy = sys.modules.get("numpy")  # (if it is not imported, there are no arrays)
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


# ---- queues ------------------------------------------------------------------------


class _FdQueue:
    """The messages on their way to one fd.

    ``_lock`` guards all of it, and is held no longer than a call into C takes; a reader
    that delays such a call delays only its own queue.
    """

    def __init__(self, key: _Key) -> None:
        self._key = key
        self._number, kind, *_ = key
        # A regular file that is opened anew, at another offset, has the same key.
        self._idle = 0.0 if kind == stat.S_IFREG else _IDLE
        self.open = True
        self._in_flight: list[_Message] = []
        self._spare: list[mmap.mmap] = []
        self._lock = Lock()
        self._calls = 0  # by the program
        self._ended = threading.Event()
        self.port = SharedPort()
        self._channel = _channel_to(self._number)
        name = f"aiozerocopy turbopipe, fd {self._number}"
        self.thread = threading.Thread(target=self._watch, name=name, daemon=True)

    def put(self, message: _Message) -> bool:
        """Queue a message, waiting for room; return False if the queue has ended."""
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
                    if self.thread.ident is None:  # (with nothing queued, it ends)
                        self.thread.start()
                return True

    def _submit(self, message: _Message) -> None:
        data = message.data
        if message.gl is not None:
            data = message.copy = self._copied(data)
            message.data = message.gl  # (a view of the caller's would keep it mapped)
        message.queue = self
        message.operation = self._channel.send_now(self.port, (data,))
        self._in_flight.append(message)

    def _copied(self, data: Any) -> mmap.mmap:
        """Map, copy, and unmap at once, while the right buffer is bound."""
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
        """Take the messages that have ended out of the queue."""
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
        """Wait, at the program's end, while the reader still reads.

        Messages left after that are lost: see `fork_and_exit`.
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
        """End the queue after `_IDLE` without a call, or once the fd is closed."""
        end = time.monotonic() + self._idle
        while time.monotonic() < end and not self._ended.wait(_LOOK):
            if not self._left() and not self._is_there():
                break
        self.port.until(lambda: calls != self._calls or not self._left())
        if calls == self._calls:
            self.end_if_idle()

    def _is_there(self) -> bool:
        """Does the program's number still belong to this file?"""
        try:
            return _key_of(self._number) == self._key
        except OSError:
            return False

    def end_if_idle(self) -> None:
        """Close our fd, unless a message is on its way.  May be called twice."""
        with self._lock:
            self._collect()
            if self._in_flight or not self.open:
                return
            self.open = False
            self._spare.clear()  # (a failure that is kept keeps this object)
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
    channel = OwnFd(duplicates([number])).channel(OUT)
    channel.set_limit(_NO_LIMIT)  # (the limit is `_DEPTH`, in messages)
    return channel


# ---- all queues --------------------------------------------------------------------

_lock = Lock()
_queues: dict[_Key, _FdQueue] = {}
_failed: collections.deque[_Message] = collections.deque(maxlen=_REMEMBERED)


def _key_of(number: int) -> _Key:
    """Return a key for an fd and the file that it belongs to now."""
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
    """Forget the parent's queues in a forked child, which opens its own."""
    global _lock
    _lock = Lock()
    _queues.clear()
    _failed.clear()


def _at_exit() -> None:
    """Wait for what was piped, if anyone reads it."""
    for queue in list(_queues.values()):
        queue.linger()


os.register_at_fork(after_in_child=_forget_queues)
atexit.register(_at_exit)
