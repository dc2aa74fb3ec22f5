"""The faces of streams, whose methods block, and the functions that open them."""

from __future__ import annotations

import contextlib
import errno
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    TypeAlias,
    TypeVar,
)

import anyio

from aiozerocopy import opening, streams
from aiozerocopy._core.borrows import or_undo_now
from aiozerocopy._core.errors import StreamBroken, StreamClosed, error_of
from aiozerocopy._core.fds import set_of
from aiozerocopy._core.fork_and_exit import OfOneProcess
from aiozerocopy._core.lifetime import Bound
from aiozerocopy._core.lock import Lock
from aiozerocopy._core.pins import bytes_of
from aiozerocopy._core.sending import LINGER
from aiozerocopy._net import connecting
from aiozerocopy.sync._portal import run
from aiozerocopy.sync._waiting import ThreadWaiter, refuse_in_a_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from typing_extensions import Self

    from aiozerocopy._core.leases import AnyBuffer
    from aiozerocopy.pool import Frame, FramePool

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
F = TypeVar("F")
A = TypeVar("A", bound="Face")
B = TypeVar("B", bound="Face")
Call: TypeAlias = Callable[..., Coroutine[Any, Any, T]]


class Face(OfOneProcess):
    """Blocking methods over an object whose methods are awaited."""

    def __init__(self, it: Any) -> None:
        super().__init__()
        self._it = it
        self._turn = Lock()  # of the threads that receive, or send on a ring

    def _run(self, call: Call[T], *args: Any, **options: Any) -> T:
        self._check()
        return run(call, *args, **options)

    def _run_in_turn(self, call: functools.partial[Coroutine[Any, Any, T]]) -> T:
        """Receive; if interrupted after the end, leave the result to the next call."""
        got: list[T] = []

        async def receive() -> None:
            got.append(await call())

        def run() -> T:
            with self._turn:  # (and undo it before another thread has its turn)
                or_undo_now(functools.partial(self._run, receive), undo)
            return got[0]

        def undo() -> None:
            self._put_back(got, call)

        return or_undo_now(run, undo)

    def _put_back(self, got: list[Any], call: functools.partial[Any]) -> None:
        """Empty the list; the next call gets what was in it.  May be called twice."""
        raise NotImplementedError

    def _check(self) -> None:
        """Refuse a call that would stop a loop, or is made in a forked child."""
        refuse_in_a_loop()
        if self.inherited:
            raise error_of(-errno.ECHILD)

    def _look(self) -> None:
        """Note operations that have ended; a hook for streams without a loop."""

    def close(self) -> None:
        """Close as ``aclose``, with the same errors; do nothing in a forked child."""
        if not self.inherited:
            self._run(self._it.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<sync {repr(self._it).lstrip('<')}"


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], in_turn: bool = False
) -> Callable[Concatenate[Any, P], T]:
    """Return a method's blocking form for a face; ``in_turn``: one thread at a time."""
    name = method.__name__

    @functools.wraps(method)
    def call(face: Face, /, *args: P.args, **options: P.kwargs) -> T:
        same: Call[T] = getattr(face._it, name)
        if not in_turn:
            return face._run(same, *args, **options)
        face._check()
        # (no call with a star: Python runs signal handlers after such a call)
        return face._run_in_turn(functools.partial(same, *args, **options))

    return call


class shown(Generic[T]):
    """An attribute of a face, taken from its object."""

    def __init__(self, kind: type[S], look: Callable[[S], T]) -> None:
        self._look: Callable[[Any], T] = look

    def __get__(self, face: Face, _: object = None) -> T:
        return self._look(face._it)


class Ticket:
    """A message that was put."""

    def __init__(self, face: Face, ticket: streams.Ticket) -> None:
        self._face = face
        self._ticket = ticket

    def done(self) -> bool:
        """Return True once the buffers are the caller's (sent, or failed)."""
        self._face._look()
        return self._ticket.done()

    def wait(self) -> None:
        """Return once the buffers are the caller's; Ctrl-C leaves the message alone.

        Raises: as ``await ticket``.
        """
        self._face._run(self._ticket._wait)


class _ByteFace(Face):
    """A stream whose threads wait by themselves, without a loop."""

    def __init__(self, it: Any) -> None:
        """Take over a stream that is new."""
        super().__init__(it)
        self._waiter = ThreadWaiter(it)

    def _run(self, call: Call[T], *args: Any, **options: Any) -> T:
        self._check()
        return self._waiter.run(call(*args, **options))

    stats: Final = shown(Bound, lambda stream: stream.stats)
    lane: Final = shown(Bound, lambda stream: stream.lane)
    fileno: Final = shown(Bound, lambda stream: stream.fileno)
    abort: Final = shown(Bound, lambda stream: stream.abort)

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if error is None:
            self.close()
            return
        # A flush must not hide the exception of the block, and must not hang.
        timer = threading.Timer(LINGER, self._it.abort)
        timer.start()
        try:
            with contextlib.suppress(StreamBroken, StreamClosed):
                self.close()
        finally:
            timer.cancel()

    def _look(self) -> None:
        self._waiter.port.drain()


class SendStream(_ByteFace):
    """`aiozerocopy.SendStream`, for threads."""

    send: Final = blocking(streams.SendStream.send)
    send_many: Final = blocking(streams.SendStream.send_many)
    flush: Final = blocking(streams.SendStream.flush)

    def put(self, *buffers: AnyBuffer) -> Ticket:
        """Queue the buffers as one message; wait only for room.

        They stay borrowed until `Ticket.wait` returns, or the ticket is done.

        Raises: as ``send``, for errors that are known at once.
        """
        made: list[streams.Ticket] = []

        async def put() -> None:
            made.append(await self._it.put(*buffers))

        def call() -> Ticket:
            self._run(put)
            return Ticket(self, made[0])

        def undo() -> None:  # (if the coroutine had ended before the interruption)
            for ticket in made:
                ticket._take_back()

        return or_undo_now(call, undo)


def _what_came(result: Any, buffer: Any = None, *_: Any) -> bytes:
    """Return the bytes of a receive."""
    if isinstance(result, (bytes, tuple)):
        return result if isinstance(result, bytes) else result[0]
    with bytes_of(buffer) as view:
        return bytes(view[:result])


class ReceiveStream(_ByteFace):
    """`aiozerocopy.ReceiveStream`, for threads."""

    receive: Final = blocking(streams.ReceiveStream.receive, in_turn=True)
    receive_into: Final = blocking(streams.ReceiveStream.receive_into, in_turn=True)
    receive_exactly: Final = blocking(
        streams.ReceiveStream.receive_exactly, in_turn=True
    )

    def _put_back(self, got: list[Any], call: functools.partial[Any]) -> None:
        with self._waiter.lock:
            arguments = (*call.args, *call.keywords.values())
            come = [_what_came(each, *arguments) for each in got]
            unread = b"".join(come) + self._it._unread
            for each in got:
                if isinstance(each, tuple):
                    self._it._fds = set_of(each[1])
            # (one statement: no signal handler runs between the two stores)
            self._it._unread, got[:] = unread, ()

    def __iter__(self) -> Iterator[bytes]:
        """Yield the results of `receive`, until the end."""
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


# ---- opening: the functions of `aiozerocopy`, with the same arguments and errors ----


class Ends(tuple[A, B]):
    """Two streams; ``with`` closes both, the second one first."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        first, second = self
        try:
            second.__exit__(*error)
        finally:
            first.__exit__(*error)


def opens(face: Callable[[S], F], opening: Callable[P, S]) -> Callable[P, F]:
    """Return a function with the same arguments, which puts a face on the result."""

    @functools.wraps(opening)
    def open_it(*args: P.args, **options: P.kwargs) -> F:
        return face(opening(*args, **options))

    return open_it


def opens_later(
    face: Callable[[S], F], opening: Callable[P, Awaitable[S]]
) -> Callable[P, F]:
    """Do as `opens`, for a function whose result must be awaited."""

    @functools.wraps(opening)
    def wait(*args: P.args, **options: P.kwargs) -> S:
        return run(functools.partial(opening, *args, **options))

    return opens(face, wait)


def _pipe(ends: opening.PipeEnds) -> Ends[ReceiveStream, SendStream]:
    return Ends((ReceiveStream(ends.reader), SendStream(ends.writer)))


def _pair(ends: opening.SocketEnds) -> Ends[UnixStream, UnixStream]:
    return Ends(map(UnixStream, ends))


def _socket(stream: streams.Stream) -> Stream:
    is_unix = isinstance(stream, streams.UnixStream)
    return (UnixStream if is_unix else Stream)(stream)


open_writer: Final = opens(SendStream, opening.open_writer)
open_reader: Final = opens(ReceiveStream, opening.open_reader)
pipe: Final = opens(_pipe, opening.pipe)
socketpair: Final = opens(_pair, opening.socketpair)
wrap_socket: Final = opens(_socket, opening.wrap_socket)
connect_tcp: Final = opens_later(_socket, connecting.connect_tcp)
connect_unix: Final = opens_later(UnixStream, connecting.connect_unix)


def acquire(pool: FramePool) -> Frame:
    """Return a free slot of a pool; wait for one, in order of the calls.

    Raises: ClosedResourceError: the pool is closed, or closes meanwhile.
    """
    refuse_in_a_loop()
    with contextlib.suppress(anyio.WouldBlock):
        return pool.acquire_nowait()
    return run(pool.acquire)
