"""The faces of streams: the same methods, which block."""

from __future__ import annotations

import contextlib
import errno
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeAlias, TypeVar

import anyio

from aiozerocopy import streams
from aiozerocopy._core.errors import StreamBroken, error_of
from aiozerocopy._core.sending import LINGER
from aiozerocopy.sync._portal import run
from aiozerocopy.sync._waiting import ThreadWaiter, refuse_in_a_loop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer, Self

    from aiozerocopy._core.lifetime import Stats

P = ParamSpec("P")
T = TypeVar("T")
Call: TypeAlias = Callable[..., Coroutine[Any, Any, T]]


class Face:
    """What blocks, over what is awaited: ``with`` closes it."""

    def __init__(self, it: Any) -> None:
        self._it = it
        self._turn = threading.Lock()  # of the threads that receive

    def _run(self, call: Call[T], *args: Any, **options: Any) -> T:
        return run(call, *args, **options)

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<sync {repr(self._it).lstrip('<')}"


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], in_turn: bool = False
) -> Callable[Concatenate[Any, P], T]:
    """A method of a face that calls this one, and returns what that returns."""

    name = method.__name__

    @functools.wraps(method)
    def call(face: Face, /, *args: P.args, **options: P.kwargs) -> T:
        refuse_in_a_loop()
        same = getattr(face._it, name)
        if in_turn:
            with face._turn:
                result: T = face._run(same, *args, **options)
        else:
            result = face._run(same, *args, **options)
        return result

    return call


class Ticket:
    """A message that was put."""

    def __init__(self, face: Face, ticket: streams.Ticket) -> None:
        self._face = face
        self._ticket = ticket

    def done(self) -> bool:
        """True once the buffers are the caller's (sent, or failed)."""
        self._ticket._waiter.port.drain()
        return self._ticket.done()

    def wait(self) -> None:
        """Return once the buffers are the caller's.  Ctrl-C leaves the message alone.

        Raises: as ``await ticket``.
        """
        if not self._ticket.done():
            refuse_in_a_loop()
        self._face._run(self._ticket._wait)


class _ByteFace(Face):
    """A stream, for which threads wait themselves."""

    def __init__(self, it: Any) -> None:
        """Take over a stream that is new."""
        super().__init__(it)
        self._waiter = ThreadWaiter(it)

    def _run(self, call: Call[T], *args: Any, **options: Any) -> T:
        if self._it._channels[0].inherited:
            raise error_of(-errno.ECHILD)
        return self._waiter.run(call(*args, **options))

    @property
    def stats(self) -> Stats:
        """Counters, as of now; of both directions, where there are two."""
        stats: Stats = self._it.stats
        return stats

    @property
    def lane(self) -> str:
        """How the bytes travel: see `aiozerocopy.SendStream.lane`."""
        return str(self._it.lane)

    def fileno(self) -> int:
        """The stream's own fd; -1 if closed."""
        return int(self._it.fileno())

    def close(self) -> None:
        """Send what was accepted, then close.  Calls of other threads end.

        Raises:
            StreamBroken: something that was accepted could not be sent.
        """
        refuse_in_a_loop()
        try:
            self._settle()
        finally:
            self._waiter.run(self._it._close())

    def _settle(self, seconds: float | None = None) -> None:
        """Wait until what was accepted is out, or for so many seconds."""

    def abort(self) -> None:
        """Close at once; what is queued is lost.  For any thread, also with a loop."""
        self._it.abort()

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is None:
            self.close()
            return
        try:  # as the end of an async block
            with contextlib.suppress(StreamBroken):
                self._settle(LINGER)
        finally:
            self._waiter.run(self._it._close())


class SendStream(_ByteFace):
    """`aiozerocopy.SendStream`, for threads."""

    send: Final = blocking(streams.SendStream.send)
    send_many: Final = blocking(streams.SendStream.send_many)
    flush: Final = blocking(streams.SendStream.flush)

    def put(self, *buffers: Buffer) -> Ticket:
        """Queue the buffers as one message, waiting for room only.

        They stay borrowed until `Ticket.wait` returns, or the ticket is done.

        Raises: as ``send``, for what is known at once.
        """
        refuse_in_a_loop()
        return Ticket(self, self._run(self._it.put, *buffers))

    def _settle(self, seconds: float | None = None) -> None:
        it, port = self._it, self._waiter.port
        if it._closed:
            return
        port.drain()  # a failure may not have been noted yet
        stats = it._out.stats()
        if stats.queued or stats.waiting:
            # An empty message is over once all messages before it are.
            last = it._out.send_now(port, (b"",))
            try:
                port.until(lambda: last.done, seconds)
            finally:
                it._out.take_back_blocking(port, last)
            if not (it._failures.operations or last.was_dropped):
                last.raise_if_failed()
        if it._failures.operations:
            self._waiter.run(it._raise(it._failures.operations[0]))


class ReceiveStream(_ByteFace):
    """`aiozerocopy.ReceiveStream`, for threads."""

    receive: Final = blocking(streams.ReceiveStream.receive, in_turn=True)
    receive_into: Final = blocking(streams.ReceiveStream.receive_into, in_turn=True)
    receive_exactly: Final = blocking(
        streams.ReceiveStream.receive_exactly, in_turn=True
    )

    def __iter__(self) -> Iterator[bytes]:
        """What `receive` gives, until the end."""
        with contextlib.suppress(anyio.EndOfStream):
            while True:
                yield self.receive()


class Stream(SendStream, ReceiveStream):
    """`aiozerocopy.Stream`, for threads."""

    send_eof: Final = blocking(streams.Stream.send_eof)


class UnixStream(Stream):
    """`aiozerocopy.UnixStream`, for threads."""

    send_fds: Final = blocking(streams.UnixStream.send_fds)
    receive_fds: Final = blocking(streams.UnixStream.receive_fds, in_turn=True)
