"""Streams for trio: `as_trio`.

They are `trio.abc` streams over our streams, and closing them closes ours.  If trio has
an exception of its own for anyio's, it is raised, and anyio's is its cause.

Trio allows one task at a time to send.  So our stream then refuses a second sender,
even one that calls our stream itself.
"""

from __future__ import annotations

import contextlib
import operator
from typing import TYPE_CHECKING, overload

import anyio

from aiozerocopy._core import extras
from aiozerocopy._core.receiving import RECEIVE_SIZE
from aiozerocopy.streams import ReceiveStream, SendStream, Stream

with extras.optional("aiozerocopy.as_trio", "trio"):
    import trio

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer


@contextlib.contextmanager
def _in_words_of_trio() -> Iterator[None]:
    """Raise trio's exceptions for anyio's."""
    try:
        yield
    except anyio.ClosedResourceError as error:
        raise trio.ClosedResourceError(str(error)) from error
    except anyio.BrokenResourceError as error:
        raise trio.BrokenResourceError(str(error)) from error
    except anyio.BusyResourceError as error:
        raise trio.BusyResourceError(str(error)) from error


class _Wait:
    """A wait for room, as one of the calls that must be alone."""

    done = False


class TrioSendStream(trio.abc.SendStream):
    """The sending end of a pipe, file or socket as a `trio.abc.SendStream`."""

    def __init__(self, stream: SendStream) -> None:
        self._sender = stream
        stream._is_exclusive = True  # (on trio every call asks `_claim`)

    async def send_all(self, data: Buffer) -> None:
        """Send a buffer as one message; when this returns it is yours again.

        A cancel acts as in `SendStream.send`, which promises more than trio: a message
        that had not begun leaves no trace, and one that had begun still goes out.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: as trio documents.
            trio.BusyResourceError: another task sends, or waits for room.
        """
        with _in_words_of_trio():
            await self._sender.send(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Return once all is out and the pipe or socket has room.

        Raises: as `send_all`.
        """
        wait = _Wait()
        try:
            try:
                with _in_words_of_trio():
                    await self._sender.flush()
                    self._sender._claim(wait)
                    await _wait_for_room(self._sender.fileno())
            finally:
                wait.done = True
        finally:  # (a signal handler may have raised in the line above)
            wait.done = True

    async def aclose(self) -> None:
        """Send what was accepted, then close.  Cancelled, it closes at once.

        Raises:
            trio.BrokenResourceError: an accepted message could not be sent.
        """
        with _in_words_of_trio():
            await self._sender.aclose()

    def fileno(self) -> int:
        """Return the stream's own fd; -1 if closed.

        A task that waits for the fd in trio is woken before it closes.
        """
        return self._sender.fileno()


async def _wait_for_room(fd: int) -> None:
    try:
        await trio.lowlevel.wait_writable(fd)
    except PermissionError:  # a regular file, which epoll refuses, always has room
        await trio.lowlevel.checkpoint()


class TrioReceiveStream(trio.abc.ReceiveStream):
    """The receiving end of a pipe, file or socket as a `trio.abc.ReceiveStream`."""

    def __init__(self, stream: ReceiveStream) -> None:
        self._receiver = stream

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return the next 1 to ``max_bytes`` bytes; ``b""`` at the end of the stream.

        Cancelled, it loses nothing: the bytes that had arrived come with the next call.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: as trio documents.
            trio.BusyResourceError: another task is receiving.
        """
        size = RECEIVE_SIZE if max_bytes is None else operator.index(max_bytes)
        try:  # (a signal handler that raises at the end of a ``with`` would lose bytes)
            return await self._receiver.receive(size)
        except anyio.EndOfStream:
            return b""
        except Exception:
            with _in_words_of_trio():
                raise

    async def aclose(self) -> None:
        """Close; a task that is receiving gets trio.ClosedResourceError."""
        with _in_words_of_trio():
            await self._receiver.aclose()

    def fileno(self) -> int:
        """Return the fd, as `TrioSendStream.fileno`."""
        return self._receiver.fileno()


class TrioStream(TrioSendStream, TrioReceiveStream, trio.abc.HalfCloseableStream):
    """A connected socket as a `trio.abc.HalfCloseableStream`."""

    def __init__(self, stream: Stream) -> None:
        TrioSendStream.__init__(self, stream)
        TrioReceiveStream.__init__(self, stream)
        self._stream = stream

    async def send_eof(self) -> None:
        """Send what was accepted, then tell the peer that no more will come.

        Raises: as `TrioSendStream.send_all`.
        """
        with _in_words_of_trio():
            await self._stream.send_eof()


@overload
def as_trio(stream: Stream) -> TrioStream: ...
@overload
def as_trio(stream: SendStream) -> TrioSendStream: ...
@overload
def as_trio(stream: ReceiveStream) -> TrioReceiveStream: ...
def as_trio(stream: SendStream | ReceiveStream) -> TrioSendStream | TrioReceiveStream:
    """Return the stream as one of trio's, for `trio.SSLStream` and other code of trio.

    A `Stream` becomes a `trio.abc.HalfCloseableStream`, a `SendStream` a
    `trio.abc.SendStream`, a `ReceiveStream` a `trio.abc.ReceiveStream`.  Closing it
    closes the stream.  From here on one task at a time may send, as trio requires.

    Raises:
        TypeError: not a stream of aiozerocopy.
        ModuleNotFoundError: trio is not installed (when `as_trio` is first looked up).
    """
    if isinstance(stream, Stream):
        return TrioStream(stream)
    if isinstance(stream, SendStream):
        return TrioSendStream(stream)
    if isinstance(stream, ReceiveStream):
        return TrioReceiveStream(stream)
    raise TypeError(
        f"a stream of aiozerocopy is required, not {type(stream).__name__!r}"
    )
