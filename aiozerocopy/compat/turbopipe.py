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
thread that waits in `sync` or `pipe`.  A Python thread looks after what the program
leaves alone.  Both threads end when the fd has been idle.
"""

from __future__ import annotations

import atexit
import os
import threading
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.failure import Failure
from aiozerocopy.compat._fd_queue import FdQueue, Source

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozerocopy.opening import HasFileno

__all__ = ["close", "done", "pipe", "sync"]

__version__ = "2.1.0"  # of the TurboPipe whose interface this is
__about__ = "TurboPipe's calls, by aiozerocopy"


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
    source = Source(buffer if data is None else data)
    number = _fd_of(fileno if file is None else file)
    while not _queue_for(number).put(source):
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
        _each(FdQueue.finish)
    else:
        source = Source(data)
        source.check()
        _each(lambda queue: queue.wait(source.touches))


def close() -> None:
    """Wait until everything is out, and let go of all fds.  `pipe` may follow.

    Raises: as `sync`.
    """
    _each(FdQueue.finish)


def done(data: Any) -> None:
    """Say that a buffer will not be piped again; nothing is kept of it anyway."""


def _fd_of(file: int | HasFileno | None) -> int:
    if file is None or isinstance(file, bool):
        raise TypeError("pipe() needs a buffer and an fd")
    return file if isinstance(file, int) else file.fileno()


def _each(finish: Callable[[FdQueue], None]) -> None:
    """Finish every fd, also after an error; then raise the first error."""
    with _lock:
        queues = list(_queues)
    first: Failure[Exception] | None = None
    for queue in queues:
        try:
            finish(queue)
        except Exception as error:  # noqa: PERF203
            first = first or Failure(error)
    if first is not None:
        raise first.again()


# ---- all of them -------------------------------------------------------------------

_lock = threading.Lock()
_queues: list[FdQueue] = []


def _queue_for(number: int) -> FdQueue:
    """The queue of what is behind this number now."""
    identity = os.fstat(number)
    with _lock:
        for queue in _queues:
            if queue.leads_to(number, identity) and queue.open:
                return queue
        queue = FdQueue(number, identity, _forget)
        for old in list(_queues):
            if old.number == number and not old.open:
                _queues.remove(old)  # its successor tells of its failures
                queue.failed.extend(old.failed)
        _queues.append(queue)
        return queue


def _forget(queue: FdQueue) -> None:
    """A queue has ended; forget it, unless no call has raised its failures yet."""
    with _lock:
        if queue in _queues and not queue.failed:
            _queues.remove(queue)


def _forget_queues() -> None:
    """The queues are the parent's; a child opens its own."""
    global _lock
    _lock = threading.Lock()
    _queues.clear()


def _at_exit() -> None:
    """What was piped still arrives, if anybody reads it."""
    with _lock:
        queues = list(_queues)
    for queue in queues:
        queue.linger()


os.register_at_fork(after_in_child=_forget_queues)
atexit.register(_at_exit)
