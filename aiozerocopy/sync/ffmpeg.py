"""Blocking films: `Writer` and `Reader`; `write` and `read` for a whole film.

`Writer.send` sends a frame from the calling thread, unless it must be converted or
copied first; all other calls that block run in the portal.  A film that is open when
the program ends is ended as after an exception, with a warning.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import math
import os
import sys
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import anyio

from aiozerocopy import ffmpeg
from aiozerocopy._core import extras
from aiozerocopy._core.errors import StreamBroken
from aiozerocopy._core.fork_and_exit import silence_daemons
from aiozerocopy.pool import Frame
from aiozerocopy.streams import SendStream
from aiozerocopy.sync._portal import run
from aiozerocopy.sync._streams import Face, Ticket, blocking, opens, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from fractions import Fraction

    import numpy.typing as npt

    from aiozerocopy._core.leases import AnyBuffer

P = ParamSpec("P")
S = TypeVar("S")
F = TypeVar("F")


def _given_to(
    kind: Callable[P, S],
) -> Callable[[Callable[[F, S], None]], Callable[Concatenate[F, P], None]]:
    """Let an ``__init__`` that takes a film take that film's arguments instead."""

    def decorate(init: Callable[[F, S], None]) -> Callable[Concatenate[F, P], None]:
        @functools.wraps(kind.__init__)
        def __init__(self: F, /, *args: P.args, **options: P.kwargs) -> None:
            init(self, kind(*args, **options))

        return __init__

    return decorate


class _Film(Face):
    log: Final = shown(ffmpeg.Writer, lambda film: film.log)
    pid: Final = shown(ffmpeg.Writer, lambda film: film.pid)

    def __init__(self, it: Any) -> None:
        super().__init__(it)
        run(it._open)
        _open.add(self)

    def __exit__(self, *error: Any) -> None:
        self._run(self._it.__aexit__, *error)


class Writer(_Film):
    """`aiozerocopy.ffmpeg.Writer`, for threads; it is open once it is made."""

    send_audio: Final = blocking(ffmpeg.Writer.send_audio)
    close_audio: Final = blocking(ffmpeg.Writer.close_audio)
    close_video: Final = blocking(ffmpeg.Writer.close_video)
    layout: Final = shown(ffmpeg.Writer, lambda film: film.layout)
    status: Final = shown(ffmpeg.Writer, lambda film: film.status)
    stats: Final = shown(ffmpeg.Writer, lambda film: film.stats)
    lane: Final = shown(ffmpeg.Writer, lambda film: film.lane)
    abort: Final = shown(ffmpeg.Writer, lambda film: film.abort)
    written_to: Final = shown(ffmpeg.Writer, lambda film: film.written_to)
    frames_written: Final = shown(ffmpeg.Writer, lambda film: film.frames_written)

    @_given_to(ffmpeg.Writer)
    def __init__(self, film: ffmpeg.Writer) -> None:
        film._warn = _warning_of_caller()  # (else: of a line of the portal's loop)
        super().__init__(film)

    def send(self, *planes: AnyBuffer) -> None:
        """Send one frame; when this returns, its memory is yours again.

        Raises: as `aiozerocopy.ffmpeg.Writer.send`.
        """
        self._check()
        film: ffmpeg.Writer = self._it
        stream = film._open_for_frames(planes)
        if isinstance(stream, SendStream):
            stream.send_from_thread(*planes)
        else:
            run(stream.send, *planes)

    def put(self, *planes: AnyBuffer) -> Ticket:
        """Queue one frame; wait only for room.  `Ticket.wait` waits for the rest.

        Raises: as `aiozerocopy.ffmpeg.Writer.put`.
        """
        return Ticket(self, self._run(self._it.put, *planes))


class Reader(_Film):
    """`aiozerocopy.ffmpeg.Reader`, for threads; it is open once it is made."""

    receive: Final = blocking(ffmpeg.Reader[Frame].receive, in_turn=True)
    size: Final = shown(ffmpeg.Reader, lambda film: film.size)
    fps: Final = shown(ffmpeg.Reader, lambda film: film.fps)
    duration: Final = shown(ffmpeg.Reader, lambda film: film.duration)
    time: Final = shown(ffmpeg.Reader, lambda film: film.time)
    layout: Final = shown(ffmpeg.Reader, lambda film: film.layout)

    @_given_to(ffmpeg.Reader)
    def __init__(self, film: ffmpeg.Reader[Frame]) -> None:
        super().__init__(film)

    def _put_back(self, got: list[Any], call: functools.partial[Any]) -> None:
        # (one statement: no signal handler runs between the two stores)
        self._it._unread[:0], got[:] = got, ()

    def __iter__(self) -> Iterator[Frame]:
        """Yield the frames, until the end; release each: ``with frame: ...``."""
        with contextlib.suppress(anyio.EndOfStream):
            while True:
                yield self.receive()


def _warning_of_caller() -> Callable[[str], None]:
    """Return a function that warns of the line that called this module."""
    frame = sys._getframe()
    while frame.f_globals is globals() and frame.f_back is not None:
        frame = frame.f_back
    return functools.partial(
        warnings.warn_explicit,
        category=UserWarning,
        filename=frame.f_code.co_filename,
        lineno=frame.f_lineno,
        module=frame.f_globals.get("__name__"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )


def write(
    output: str | os.PathLike[str],
    frames: Iterable[Any],
    fps: float | Fraction | str = 60,
    pix_fmt: str | None = None,
    **options: Any,
) -> str:
    """Make a film of arrays, all of one shape; return its name.

    ``frames`` is one array of all frames, or an iterable of arrays.  The channels of
    the first decide between gray, rgb24 and rgba; ``pix_fmt`` names another format.
    ``options`` are those of `Writer`.

    Raises: as `Writer` and its ``send``; ValueError: no frame, or a single array that
        is one picture.
    """
    shape: tuple[int, ...] = getattr(frames, "shape", ())
    if len(shape) == 2 or (len(shape) == 3 and shape[-1] in (1, 3, 4)):
        raise ValueError(
            f"is this array {(*shape,)} one picture? For a film of it, write [picture]"
        )
    rest = iter(frames)
    first = next(rest, None)
    if first is None:
        raise ValueError("there is no frame to make a film of")
    height, width, *channels = first.shape
    if pix_fmt is None:
        pix_fmt = {(1,): "gray", (4,): "rgba"}.get(tuple(channels or [1]), "rgb24")
    with Writer(output, (width, height), fps, pix_fmt, **options) as film:
        for frame in itertools.chain((first,), rest):
            film.send(frame)
    return film.written_to


def _read(film: ffmpeg.Reader[Frame]) -> npt.NDArray[Any]:
    return run(_all_of, film)


read: Final = opens(_read, ffmpeg.Reader)
read.__name__ = read.__qualname__ = "read"
read.__doc__ = """Return all frames of a film as one array; arguments as `Reader`.

Raises: as `aiozerocopy.ffmpeg.Reader`; ModuleNotFoundError without NumPy.
"""


async def _all_of(film: ffmpeg.Reader[Frame]) -> npt.NDArray[Any]:
    with extras.optional("sync.ffmpeg.read", "numpy"):
        import numpy

    film._copies = False  # the result is a copy
    async with film:
        if film.layout is None:
            raise ffmpeg.FFmpegError("the film has no frames")
        expected = math.ceil((film.duration or 0) * (film.fps or 0)) + 1
        shape, count = film.layout.shape, 0
        frames = numpy.empty((expected, *shape), film.layout.dtype)
        async for frame in film:
            with frame:
                if count == len(frames):
                    frames.resize((2 * count, *shape), refcheck=False)
                frames[count] = frame.array
                count += 1
        frames.resize((count, *shape), refcheck=False)
        return frames


# ---- the interpreter's exit --------------------------------------------------------

_open: weakref.WeakSet[_Film] = weakref.WeakSet()


def _finish_all() -> None:
    """End all open films as an exception would, even if one of them raises."""
    silence_daemons()
    with contextlib.suppress(SystemExit, StreamBroken), contextlib.ExitStack() as ends:
        for film in list(_open):
            if not film._it._closed:
                ends.callback(warnings.warn, f"unclosed {film!r}", ResourceWarning)
                ends.push(film)
        raise SystemExit


os.register_at_fork(after_in_child=_open.clear)
atexit.register(_finish_all)
