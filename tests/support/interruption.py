"""Raise a signal's exception at any line of the package, for tests."""

from __future__ import annotations

import contextlib
import gc
import linecache
import os
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from links import until

if TYPE_CHECKING:
    from typing_extensions import Self

Place = tuple[str, int, int]  # file, line, and how often it was reached

LOOPS: dict[str, dict[str, Any]] = {"asyncio": {}, "uvloop": {"use_uvloop": True}}
MONITORING: Any = getattr(sys, "monitoring", None)  # from Python 3.12 on
TOOL = 3  # our number there; coverage, debuggers and mutation/reached.py have others
ENOUGH = 2  # lines with a complaint, after which a test stops


class Interruption(BaseException):
    """What the handler of a signal raises."""


def keeps_a_borrow(
    raised: list[BaseException], views: list[memoryview], buffers: list[Any]
) -> bool:
    """Whether something stays exported because an exception keeps its frames.

    A garbage memoryview that is still exported crashes Python before 3.12.7.
    """
    for error in raised:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            frame.f_locals  # noqa: B018 (renews the copy that a tracer made in 3.10)
    try:
        for view in views:
            view.release()
        return any(map(is_exported, buffers))
    except BufferError:
        return True
    finally:
        raised.clear()


class Lines:
    """Notes the lines that a thread runs, or raises at one of them.

    Only lines of the package's ``rooms`` count, and only while ``here()`` is true; with
    ``withs``, also those of contextlib's functions that they call.  A ``try:`` does not
    count: no signal's handler runs there, and a tracer's exception there would pass by
    the blocks around it.

    With ``calls``, it also raises right after each call of a C function, where handlers
    really run.  Such a place is called "FILE after NAME".  Python 3.12 can do this.
    """

    def __init__(
        self,
        at: Place | None = None,
        rooms: tuple[str, ...] = ("_core",),
        here: Callable[[], bool] = lambda: True,
        withs: bool = False,
        calls: bool = False,
    ) -> None:
        self.seen: list[Place] = []
        self.armed = True
        self.at = at
        self._rooms = rooms
        self._here = here
        self._withs = withs
        self._calls = calls and MONITORING is not None
        self._times: dict[tuple[str, int], int] = {}
        # Kept here: Python 3.11 may call the tracer again after dropping its reference,
        # if a finalizer runs and is interrupted while a call is about to be traced.
        self._trace = self._enter_frame

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        if self._calls:
            self._thread = threading.get_ident()
            _watch_calls(self._after_call)
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)
        if self._calls:
            _watch_calls(None)

    def _enter_frame(self, frame: FrameType, _event: str, _: object) -> Any:
        return self._in_frame if self._is_ours(frame) else None

    def _is_ours(self, frame: FrameType) -> bool:
        module = frame.f_globals.get("__name__", "")
        if self._withs and module == "contextlib" and frame.f_back:
            module = frame.f_back.f_globals.get("__name__", "")
        package, _, name = module.partition(".")
        return bool(package == "aiozerocopy" and name.startswith(self._rooms))

    def _in_frame(self, frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and self.armed and self._here():
            line = (frame.f_code.co_filename, frame.f_lineno)
            if linecache.getline(*line).strip() != "try:":
                self._reach(*line)
        return self._in_frame

    def _after_call(self, _code: Any, _offset: int, function: Any, _: Any) -> None:
        name = getattr(function, "__name__", "a call")
        del function, _  # (a traceback would keep them)
        frame = sys._getframe(1)
        is_ours = threading.get_ident() == self._thread and self._is_ours(frame)
        if is_ours and self.armed and self._here():
            self._reach(f"{frame.f_code.co_filename} after {name}", frame.f_lineno)

    def _reach(self, path: str, number: int) -> None:
        line = (path, number)
        self._times[line] = times = self._times.get(line, 0) + 1
        self.seen.append((*line, times))
        if (*line, times) == self.at:
            self.hit()

    def hit(self) -> None:
        raise Interruption


def _watch_calls(callback: Callable[..., object] | None) -> None:
    """Have the callback called after each call of a C function; None: no longer."""
    events = MONITORING.events
    if callback is not None:
        MONITORING.use_tool_id(TOOL, "interruption")  # (fails if another has it)
    MONITORING.register_callback(TOOL, events.C_RETURN, callback)
    MONITORING.set_events(TOOL, events.CALL if callback else 0)
    if callback is None:
        MONITORING.free_tool_id(TOOL)


class HandedOver:
    """A lock; once it is free, another thread makes a call before this one goes on."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._threads = [threading.Thread(target=call)]

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        is_free = self._depth == 0
        self._lock.release()
        if is_free and self._threads:
            thread = self._threads.pop()
            thread.start()
            thread.join()


def shown(place: Place) -> str:
    path, line, times = place
    return f"{Path(path).name}:{line}, time {times}"


def open_fds() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def is_exported(buffer: bytearray) -> bool:
    """Tell whether the buffer is borrowed, and so cannot be resized."""
    try:
        buffer.append(0)
    except BufferError:
        return True
    return False


def run_on(loop: str, main: Callable[[], Awaitable[None]]) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    anyio.run(main, backend_options=LOOPS[loop])


async def hit_each_line(
    play: Callable[[Lines], Awaitable[list[str]]],
    rooms: tuple[str, ...],
    some: Callable[[list[Place]], Iterable[Place]] = list,
    here: Callable[[], bool] = lambda: True,
    calls: bool = False,
) -> None:
    """Play a scene once, then again with an interruption at each of ``some`` places.

    ``play`` returns its complaints.
    """
    lines = Lines(None, rooms, here, calls=calls)
    assert not await play(lines)
    assert lines.seen
    found: list[str] = []
    for place in some(lines.seen):
        complaints = await play(Lines(place, rooms, here, calls=calls))
        found += [f"{shown(place)}: {complaint}" for complaint in complaints]
        if len(found) >= ENOUGH:
            break
    assert not found, "\n".join(found)


async def hit_after_each_call(
    call: Callable[[], Awaitable[object]], *rooms: str
) -> None:
    """Interrupt a call at each line and after each call of C: no fd may be left.

    What is reached again is left out: the end of a ``with``, where no handler runs.
    """
    before = open_fds()

    async def play(lines: Lines) -> list[str]:
        with contextlib.suppress(Interruption), lines:
            await call()
        gc.collect()
        with anyio.move_on_after(1):  # (C closes files in a thread)
            await until(lambda: open_fds() <= before)
        return ["an fd is left"] if open_fds() - before else []

    def some(places: list[Place]) -> list[Place]:
        return [place for place in places if place[2] == 1]

    await hit_each_line(play, rooms, some, calls=True)
