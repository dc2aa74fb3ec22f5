"""connect_read_pipe and connect_write_pipe, as the loop has them."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
from typing import TYPE_CHECKING, TypeVar

from aiozerocopy._core.channel import IN, OUT, Channel
from aiozerocopy.transport.connections import made
from aiozerocopy.transport.lifetime import In, Out
from aiozerocopy.transport.reading import Reading
from aiozerocopy.transport.writing import Writing

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiozerocopy.opening import HasFileno

P = TypeVar("P", bound=asyncio.BaseProtocol)


class ReadPipeTransport(Reading):
    """The reading end of a pipe, FIFO, terminal or socket."""

    _was_blocking = False  # then it is so again at the end

    def _let_go(self) -> None:
        if self._was_blocking and self._handle is not None:
            self._was_blocking = False
            os.set_blocking(self._handle.fileno(), True)
        super()._let_go()


class WritePipeTransport(Writing):
    """The writing end of a pipe, FIFO, terminal, file or socket.

    When the reader goes, connection_lost gets BrokenPipeError if anything is queued.
    """

    def _start(self) -> None:
        if _is_pipe(os.fstat(self._fd).st_mode):
            watch = self._readiness.watch
            self._context.copy().run(watch, self._fd, self._reader_left)

    def _end_writing(self) -> None:
        self._lose(None)  # a pipe ends by being closed

    def _reader_left(self) -> None:
        """A writing end is never readable otherwise."""
        left = BrokenPipeError(errno.EPIPE, "the reader is gone")
        self._lose(left if self._pending else None)


async def connect_read_pipe(
    protocol_factory: Callable[[], P], pipe: HasFileno
) -> tuple[ReadPipeTransport, P]:
    """Read from the end of a pipe, which is closed with the transport.

    The arguments are those of `asyncio.loop.connect_read_pipe`.  The pipe does not
    block meanwhile; if it did, it does so again at the end.

    Raises:
        ValueError: not a pipe, a socket or a character device.
    """
    fd = pipe.fileno()
    mode = os.fstat(fd).st_mode
    if not (_is_pipe(mode) or stat.S_ISCHR(mode)):
        raise ValueError("Pipe transport is for pipes/sockets only.")
    protocol = protocol_factory()
    stream = In(Channel(os.dup(fd), IN))
    transport = ReadPipeTransport.over(stream, protocol, {"pipe": pipe}, pipe)
    transport._was_blocking = os.get_blocking(fd)
    os.set_blocking(fd, False)
    await made(transport)
    return transport, protocol


async def connect_write_pipe(
    protocol_factory: Callable[[], P], pipe: HasFileno
) -> tuple[WritePipeTransport, P]:
    """Write to the end of a pipe, which is closed with the transport.

    The arguments are those of `asyncio.loop.connect_write_pipe`.  Whether the pipe
    blocks is left as it is.
    """
    protocol = protocol_factory()
    stream = Out(Channel(os.dup(pipe.fileno()), OUT))
    transport = WritePipeTransport.over(stream, protocol, {"pipe": pipe}, pipe)
    await made(transport)
    return transport, protocol


def _is_pipe(mode: int) -> bool:
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
