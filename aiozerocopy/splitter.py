"""Splitter: what comes out of one pipe, to many readers and into a file at once.

Who owns what
    `Splitter` is entered in one event loop.  While it runs the source is lent to it: a
    receive from it raises BusyResourceError.  The file is the splitter's own, or a dup
    of the caller's.
    A thread of its own (`_core.splitting`) moves the bytes, by tee(2) into a pipe for
    each reader and by splice(2) into the file, and no byte enters user space.  Each
    reader's pipe is between that thread and a `SplitterReader`, which is owned by the
    caller of `join`, and may outlive the splitter.
    A source that is no pipe is passed on into one, by a task of the splitter.

The states
    running   until the source ends, `aclose`, or an error of the source
    over      every reader's pipe has an end, behind what that reader was given

At ``aclose`` the bytes that were not taken stay in the source.  What was read ahead of
one that is no pipe is given back to it, if it is a stream of this package.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import stat
import warnings
from typing import TYPE_CHECKING, cast

import anyio

from aiozerocopy._core.binding import PORTABLE
from aiozerocopy._core.errors import StreamClosed, broken_by
from aiozerocopy._core.failure import Failure
from aiozerocopy._core.pipe_size import PIPE_SIZE
from aiozerocopy._core.splitting import Split
from aiozerocopy._core.splitting import SplitterReader as SplitterReader
from aiozerocopy._net.block import Block
from aiozerocopy.opening import pipe
from aiozerocopy.relays import open_sink, relay
from aiozerocopy.streams import ReceiveStream

if TYPE_CHECKING:
    import contextlib

    from anyio.abc import ByteReceiveStream

    from aiozerocopy._core.errors import StreamBroken
    from aiozerocopy.opening import HasFileno
    from aiozerocopy.streams import SendStream

    File = str | os.PathLike[str] | int | HasFileno

PATIENCE = 0.25  # seconds
_ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR
HELD_UP = 1.0  # seconds to wait for a thread that is inside a system call


class Splitter(Block):
    """One source to any number of readers, inside of its ``async with`` block.

    ``source`` is a `ReceiveStream`, such as a child's stdout, or any other stream of
    bytes.  It is read as fast as the readers take it, and also while there are none:
    what nobody wants is thrown away, so that a program which writes there never waits
    for a reader to come.  It stays yours, to be closed after the block.

    With a ``file``, all that is taken goes there too: a path, which is created or
    emptied, or an fd or file object of a regular file, which stays yours.  If that
    fails (the disk is full, say) the readers go on.  `wait` tells it, or the end of the
    block if nobody waits; and so they do if the source broke.

    A reader may be behind by what its pipe holds: 1 MiB or what the system allows, and
    less if the source is written in small pieces.  With a full pipe it holds up the
    others, for at most ``patience`` seconds in all from one time that it has read
    everything to the next.  Then it is dropped: its stream ends, after an unbroken
    piece of the source.  With ``patience=math.inf`` all wait for the slowest.

    Readers begin where the bytes before are a multiple of ``unit``: 188 for MPEG-TS.

    Raises:
        ValueError: a negative ``patience``, a ``unit`` below 1; the file is the source.
        io.UnsupportedOperation: the file is none, or not open for writing.
        OSError: it cannot be opened; when the splitter is entered, there are no fds.
        BusyResourceError, StreamClosed: then too, as receiving from the source.
    """

    _file: io.FileIO | None = None  # until it is entered
    _split: Split | None = None

    def __init__(
        self,
        source: ByteReceiveStream,
        file: File | None = None,
        *,
        patience: float = PATIENCE,
        unit: int = 1,
    ) -> None:
        if not patience >= 0:
            raise ValueError(f"patience must be a number of seconds, not {patience!r}")
        if unit < 1:
            raise ValueError(
                f"unit must be a number of bytes, at least 1, not {unit!r}"
            )
        self._source = source
        self._patience = patience
        self._unit = unit
        self._inner: ReceiveStream | None = None  # the pipe that the split reads
        self._writer: SendStream | None = None  # into that, if it is ours
        self._feeding = anyio.CancelScope()
        self._source_error: Failure[Exception] | None = None
        self._is_told = False  # what has gone wrong
        self._is_closed = False
        if file is not None:
            self._file = _file(file, source)

    # -- its life -----------------------------------------------------------------

    async def _begin(self, undo: contextlib.AsyncExitStack) -> None:
        if _is_pipe(self._source):
            self._inner = cast("ReceiveStream", self._source)
        else:
            self._inner, self._writer = pipe(PIPE_SIZE)
        try:
            fd = self._inner._lend_fd(self)
            file = -1 if self._file is None else self._file.fileno()
            split = Split(fd, file, self._patience, self._unit)
        except BaseException:
            self._inner._return_fd(self, b"")
            if self._writer is not None:
                self._writer.abort()
                self._inner.abort()
            raise
        finally:
            self._close_file()
        self._split = split
        undo.callback(split.close)
        if self._writer is not None:
            tasks = await undo.enter_async_context(anyio.create_task_group())
            undo.callback(tasks.cancel_scope.cancel)
            tasks.start_soon(self._feed, self._writer)

    async def _feed(self, writer: SendStream) -> None:
        """Pass on what comes from a source that is no pipe."""
        try:
            with self._feeding:
                await relay(self._source, writer)
                await writer.aclose()
        except Exception as error:  # whatever it is, `wait` tells it
            self._source_error = Failure(error)
        finally:
            with anyio.move_on_after(HELD_UP, shield=True):
                await writer.aclose()
            writer.abort()

    async def join(self) -> SplitterReader:
        """A stream of all bytes that the source brings from now on.

        It ends with the source, at `aclose`, or when it was too slow; its ``ended``
        says which.  It is the caller's to close.

        Raises:
            StreamClosed: the splitter is over, or was not entered.
            OSError: there are no fds.
        """
        return self._running().join(PIPE_SIZE)

    async def wait(self) -> int:
        """Wait for the source's end; return how many bytes it had.

        Raises:
            StreamBroken: the source broke, or the file does not have all: then
                ``bytes_sent`` are those in the file.
            others: of a source that is no stream of this package.
            StreamClosed: the splitter was closed before.
        """
        split = self._running()
        await split.wait()
        self._raise_if_failed(split)
        if split.result:
            raise StreamClosed("the splitter was closed before its source's end")
        return self.taken

    async def aclose(self, grace: float = 0) -> None:
        """End every reader's stream, behind what it has; the source can be used again.

        Waits ``grace`` seconds for the source's end first.
        """
        split = self._split
        if split is None or self._is_closed:
            return
        try:
            with anyio.move_on_after(grace):
                await split.wait()
        finally:
            await self._stop(split)

    async def _stop(self, split: Split) -> None:
        self._is_closed = True
        split.stop()
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(HELD_UP):
                await split.wait()
            if split.result is not None:
                await self._give_back(split)
            elif self._inner is not None and self._writer is not None:
                self._writer.abort()
                self._inner.abort()

    async def _give_back(self, split: Split) -> None:
        """To the source, what was read ahead of the readers."""
        assert self._inner is not None
        self._inner._return_fd(self, split.rest())
        if self._writer is None:
            return
        self._feeding.cancel()
        rest = b""
        async with self._inner:
            async for data in self._inner:
                rest += data
        if isinstance(self._source, ReceiveStream):
            self._source._unread = rest + self._source._unread

    async def __aexit__(
        self, kind: object, error: BaseException | None, traceback: object
    ) -> None:
        await super().__aexit__(kind, error, traceback)
        if error is None and not self._is_told and self._split is not None:
            self._raise_if_failed(self._split)

    def _running(self) -> Split:
        if self._split is None or self._is_closed:
            raise StreamClosed("the splitter is not open: use `async with`")
        return self._split

    def _raise_if_failed(self, split: Split) -> None:
        self._is_told = True
        if self._source_error is not None:
            raise self._source_error.again()
        result = split.result or 0
        if result not in (0, -errno.ECANCELED):
            raise _broken("the source", -result, 0, 0)
        state = split.state()
        if state.file_error:
            raise _broken("the file", -state.file_error, state.filed, state.taken)

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def __del__(self) -> None:
        self._close_file()  # it was never entered
        if self._split is not None and not self._is_closed:
            if not self._split.inherited:
                warnings.warn(
                    f"unclosed {self!r}", ResourceWarning, stacklevel=1, source=self
                )
            self._split.stop()

    # -- what it has done ---------------------------------------------------------

    @property
    def taken(self) -> int:
        """How many bytes were taken from the source."""
        return 0 if self._split is None else self._split.state().taken

    @property
    def readers(self) -> int:
        """How many read now."""
        return 0 if self._split is None else self._split.state().readers

    @property
    def dropped(self) -> int:
        """How many were too slow."""
        return 0 if self._split is None else self._split.state().dropped

    @property
    def lane(self) -> str:
        """How the bytes travel: "tee", or "copy" where the system has no tee."""
        copies = PORTABLE or (self._split is not None and self._split.state().copies)
        return "copy" if copies else "tee"

    def __repr__(self) -> str:
        return f"<Splitter with {self.readers} readers, {self.taken:,} bytes taken>"


def _is_pipe(source: ByteReceiveStream) -> bool:
    """May its fd be used instead of it?"""
    return (
        isinstance(source, ReceiveStream)
        and not source._has_unread()
        and source.fileno() >= 0
        and stat.S_ISFIFO(os.fstat(source.fileno()).st_mode)
    )


def _file(file: File, source: ByteReceiveStream) -> io.FileIO:
    """A regular file, which is our own."""
    getattr(file, "flush", lambda: None)()
    own = io.FileIO(open_sink(file, source), "wb")
    is_regular = stat.S_ISREG(os.fstat(own.fileno()).st_mode)
    is_writable = fcntl.fcntl(own.fileno(), fcntl.F_GETFL) & _ACCESS != os.O_RDONLY
    if is_regular and is_writable:
        return own
    own.close()
    if is_regular:
        raise io.UnsupportedOperation(f"{file!r} is open for reading only")
    raise io.UnsupportedOperation(
        f"{file!r} is not a regular file: for anything else, relay a reader to it"
    )


def _broken(what: str, number: int, sent: int, total: int) -> StreamBroken:
    text = f"{what} broke"
    if total:
        text = f"{what} has only {sent:,} of {total:,} bytes"
    return broken_by(number, f"{text}: {os.strerror(number)}", sent, total)
