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
    an fd                        duplicated while anything goes to it and `IDLE` seconds
                                 longer, so that its number can be closed at any time:
                                 what is queued arrives, and then the reader sees the
                                 end.  `sync()` of everything and `close` give it back
                                 at once
    a failure                    kept until somebody was told: `sync` of that buffer or
                                 of everything, or `close`

Why OpenGL buffers are copied.  A mapping that outlives the call cannot be held safely:
moderngl unmaps whatever buffer is bound at that moment, which need not be the mapped
one, OpenGL refuses to render into a mapped buffer, and another thread may do neither.

For each fd there is a queue in C, which a thread empties that needs no GIL, and a
Python thread that hears what was sent.  Both end when the fd has been idle.
"""

from __future__ import annotations

import atexit
import collections
import fcntl
import io
import mmap
import os
import select
import stat
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any

from aiozerocopy import _native
from aiozerocopy._native import Channel, Operation, Port
from aiozerocopy.opening import PIPE_SIZE, enlarge_pipe

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozerocopy.opening import HasFileno

__all__ = ["close", "done", "pipe", "sync"]

DEPTH = 32  # messages that an fd's queue takes before `pipe` waits
IDLE = 0.05  # seconds that an fd of ours outlives the last byte
STALL = 1.0  # seconds without progress, after which the interpreter's exit gives up


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
    source = _Source(buffer if data is None else data)
    number = _number(fileno if file is None else file)
    while not _line_to(number).put(source):
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
        _each(_Line.finish)
    else:
        source = _Source(data)
        source.check()
        _each(lambda line: line.wait(source.touches))


def close() -> None:
    """Wait until everything is out, and let go of all fds.  `pipe` may follow.

    Raises: as `sync`.
    """
    _each(_Line.finish)


def done(data: Any) -> None:
    """Say that a buffer will not be piped again; nothing is kept of it anyway."""


def _number(file: int | HasFileno | None) -> int:
    if file is None or isinstance(file, bool):
        raise TypeError("pipe() needs a buffer and an fd")
    return file if isinstance(file, int) else file.fileno()


def _each(finish: Callable[[_Line], None]) -> None:
    """Do it with every fd, whatever others have met; then raise the first error."""
    with _lock:
        lines = list(_lines)
    first: Exception | None = None
    for line in lines:
        try:
            finish(line)
        except Exception as error:  # noqa: PERF203
            first = first or error
    if first is not None:
        raise first


# ---- what is piped -----------------------------------------------------------------


class _Source:
    """What the program gave: memory of its own, or a buffer that OpenGL has (gl)."""

    def __init__(self, data: Any) -> None:
        self.data = getattr(data, "mglo", data)  # of a moderngl.Buffer
        owner = _owner(self.data)
        self.gl = owner if _is_opengl(owner) else None

    def check(self) -> None:
        """Raise unless it is a buffer; one of OpenGL's is not mapped for that."""
        if self.gl is None:
            _native.nbytes(self.data)

    def touches(self, other: _Source) -> bool:
        """Have the two a byte in common?"""
        if self.gl is not None or other.gl is not None:
            return self.gl is other.gl
        try:
            with _native.pin(self.data) as mine, _native.pin(other.data) as others:
                return bool(mine < others + len(others) and others < mine + len(mine))
        except (TypeError, ValueError, BufferError):
            return False  # a memoryview that was released when its bytes were out


def _owner(data: Any) -> Any:
    """Whoever has the memory that memoryviews and NumPy arrays show."""
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


class _Message:
    """A source on its way, and the memory that is sent."""

    def __init__(
        self, source: _Source, copy: mmap.mmap | None, operation: Operation
    ) -> None:
        self.source = source
        self.copy = copy
        self.operation = operation


# ---- where to ----------------------------------------------------------------------


class _Line:
    """An fd that is written to: its queue, and the thread that looks after it.

    ``_changed`` guards all of it, and is held for no longer than a call into C takes;
    a reader that holds that up holds up its own line and no other.
    """

    def __init__(self, number: int, identity: os.stat_result) -> None:
        self.number = number
        self.device, self.inode = identity.st_dev, identity.st_ino
        self.open = True
        self.failed: collections.deque[_Message] = collections.deque(maxlen=DEPTH)
        # A regular file can be opened anew, at another offset: that would not show.
        self._idle = 0.0 if stat.S_ISREG(identity.st_mode) else IDLE
        self._flying: collections.deque[_Message] = collections.deque()
        self._spare: list[mmap.mmap] = []
        self._changed = threading.Condition()
        self._port = Port()
        self._channel = _channel_to(number)
        name = f"aiozerocopy turbopipe, fd {number}"
        self.thread = threading.Thread(target=self._watch, name=name, daemon=True)
        self._begun = False

    def leads_to(self, number: int, identity: os.stat_result) -> bool:
        now = (number, identity.st_dev, identity.st_ino)
        return now == (self.number, self.device, self.inode)

    def put(self, source: _Source) -> bool:
        """Queue it, waiting for room; False if the line has ended meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._flying) < DEPTH or not self.open)
            if not self.open:
                return False
            try:
                self._submit(source)
            finally:
                self._begin()
            return True

    def _submit(self, source: _Source) -> None:
        copy = None if source.gl is None else self._copy(source)
        memory = source.data if copy is None else copy
        result = self._channel.send_pieces(self._port, (memory,))
        if not isinstance(result, int):
            self._flying.append(_Message(source, copy, result))
        elif copy is not None:
            self._spare.append(copy)

    def _begin(self) -> None:
        """Start the thread, only now, for it ends when it finds nothing to do."""
        if not self._begun:
            self._begun = True
            self.thread.start()

    def _copy(self, source: _Source) -> mmap.mmap:
        """Map, copy, unmap: in one go, so that the right buffer is bound throughout."""
        with _native.pin(source.data) as mapped:
            self._spare = [old for old in self._spare if len(old) == len(mapped)]
            copy = self._spare.pop() if self._spare else mmap.mmap(-1, len(mapped))
            with _native.pin_writable(copy) as memory:
                _native.fill(memory, mapped)
        source.data = source.gl  # a view of the caller's would keep it mapped
        return copy

    def wait(self, wanted: Callable[[_Source], bool]) -> None:
        """Return when the wanted messages are out; raise if one of them failed."""
        with self._changed:
            mine = [message for message in self._flying if wanted(message.source)]
            self._changed.wait_for(
                lambda: all(message.operation.done for message in mine)
            )
            failed = [message for message in self.failed if wanted(message.source)]
            for message in failed:
                self.failed.remove(message)
        for message in failed:
            message.operation.raise_if_failed()

    def finish(self) -> None:
        """Wait for everything, then give the fd back."""
        try:
            self.wait(lambda _: True)
        finally:
            self._end_if_idle()

    def linger(self) -> None:
        """The program ends: wait as long as anybody reads, then say what is lost."""
        with self._changed:
            left = self._channel.stats().queued_bytes
            before = left + 1
            while self._flying and left < before:
                self._changed.wait_for(lambda: not self._flying, STALL)
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
        ready = select.poll()
        ready.register(self._port.fileno(), select.POLLIN)
        while self.open:
            idle = not self._flying
            if not ready.poll(self._idle * 1000 if idle else None) and idle:
                self._end_if_idle()
            with self._changed:
                self._collect()
                self._changed.notify_all()
        self._port.close()

    def _collect(self) -> None:
        """What has ended gives its memory back."""
        self._port.drain()
        while self._flying and self._flying[0].operation.done:
            message = self._flying.popleft()
            if message.operation.status < 0:
                self.failed.append(message)
            elif message.copy is not None:
                self._spare.append(message.copy)

    def _end_if_idle(self) -> None:
        with self._changed:
            if self._port.operations:
                return
            self._end()
        _forget(self)

    def _end(self) -> None:
        if self.open:
            self.open = False
            self._spare.clear()
            self._channel.close_now()
            self._changed.notify_all()


def _channel_to(number: int) -> Channel:
    """A channel over a duplicate of the fd."""
    if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise io.UnsupportedOperation(f"fd {number} is open for reading only")
    fd = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 3)
    enlarge_pipe(fd, PIPE_SIZE)
    try:
        return Channel(fd, _native.OUT)
    except BaseException:
        os.close(fd)
        raise


# ---- all of them -------------------------------------------------------------------

_lock = threading.Lock()
_lines: list[_Line] = []


def _line_to(number: int) -> _Line:
    """The line of what is behind this number now."""
    identity = os.fstat(number)
    with _lock:
        for line in _lines:
            if line.leads_to(number, identity) and line.open:
                return line
        line = _Line(number, identity)
        for old in list(_lines):
            if old.number == number and not old.open:
                _lines.remove(old)  # what it has met is told by its successor
                line.failed.extend(old.failed)
        _lines.append(line)
        return line


def _forget(line: _Line) -> None:
    """It has ended; only a failure that nobody knows of keeps it."""
    with _lock:
        if line in _lines and not line.failed:
            _lines.remove(line)


def _after_fork() -> None:
    """The lines are the parent's; a child opens its own."""
    global _lock
    _lock = threading.Lock()
    _lines.clear()


def _at_exit() -> None:
    """What was piped still arrives, if anybody reads it."""
    with _lock:
        lines = list(_lines)
    for line in lines:
        line.linger()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
