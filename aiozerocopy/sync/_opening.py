"""What opens: the functions of `aiozerocopy`, with the same arguments and errors."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from anyio import WouldBlock

from aiozerocopy import opening, streams
from aiozerocopy._net import connecting
from aiozerocopy.sync import _streams as faces
from aiozerocopy.sync._portal import run
from aiozerocopy.sync._waiting import refuse_in_a_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from typing_extensions import Self

    from aiozerocopy.pool import Frame, FramePool

P = ParamSpec("P")
S = TypeVar("S")
F = TypeVar("F")
A = TypeVar("A", bound=faces.Face)
B = TypeVar("B", bound=faces.Face)


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
    """The same function, whose result gets a face."""

    @functools.wraps(opening)
    def open_it(*args: P.args, **options: P.kwargs) -> F:
        return face(opening(*args, **options))

    return open_it


def opens_later(
    face: Callable[[S], F], opening: Callable[P, Awaitable[S]]
) -> Callable[P, F]:
    """As `opens`, for a function whose result must be awaited."""

    @functools.wraps(opening)
    def wait(*args: P.args, **options: P.kwargs) -> S:
        return run(functools.partial(opening, *args, **options))

    return opens(face, wait)


def _pipe(ends: opening.PipeEnds) -> Ends[faces.ReceiveStream, faces.SendStream]:
    return Ends((faces.ReceiveStream(ends.reader), faces.SendStream(ends.writer)))


def _pair(ends: opening.SocketEnds) -> Ends[faces.UnixStream, faces.UnixStream]:
    return Ends(map(faces.UnixStream, ends))


def _socket(stream: streams.Stream) -> faces.Stream:
    is_unix = isinstance(stream, streams.UnixStream)
    return (faces.UnixStream if is_unix else faces.Stream)(stream)


open_writer: Final = opens(faces.SendStream, opening.open_writer)
open_reader: Final = opens(faces.ReceiveStream, opening.open_reader)
pipe: Final = opens(_pipe, opening.pipe)
socketpair: Final = opens(_pair, opening.socketpair)
wrap_socket: Final = opens(_socket, opening.wrap_socket)
connect_tcp: Final = opens_later(_socket, connecting.connect_tcp)
connect_unix: Final = opens_later(faces.UnixStream, connecting.connect_unix)


def acquire(pool: FramePool) -> Frame:
    """A free slot of a pool; waits for one, in order of the calls.

    Raises: ClosedResourceError: the pool is or was closed.
    """
    refuse_in_a_loop()
    with contextlib.suppress(WouldBlock):
        return pool.acquire_nowait()
    return run(pool.acquire)
