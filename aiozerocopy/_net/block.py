"""The base of hubs and servers: work in the background of an ``async with`` block."""

from __future__ import annotations

import contextlib
import math
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

import anyio

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from typing_extensions import Self


def must_end() -> bool:
    """Return whether the CancelledError of a piece of work is meant for its task.

    Ask this in the task of a block that did the work (a client's handler, an encoder),
    outside the scope of this one piece.  It is meant for the task if a scope around the
    task is cancelled: the block ends, or a scope or asyncio's ``Task.cancel`` has
    cancelled the code around the block.

    Otherwise the work has awaited a future or a task that somebody has cancelled, or
    somebody has cancelled the task in which it runs.  That concerns this piece of work:
    if it got out of the task, anyio would cancel all others of the block, without a
    word.  The exceptions cannot tell: all are a CancelledError, and if two reasons come
    at once there is only one exception, of either.  So only the scopes are asked, and
    a cancelled scope wins.

    On trio only scopes cancel, by trio's own exception, and nothing need be asked.
    """
    return anyio.current_effective_deadline() == -math.inf


class Block:
    """Tasks that begin and end with an ``async with`` block, which is entered once."""

    _undo: contextlib.AsyncExitStack | None = None  # ends the tasks

    async def _begin(self, undo: contextlib.AsyncExitStack) -> None:
        """Start the tasks; give ``undo`` the calls that end them after `aclose`."""
        raise NotImplementedError

    async def aclose(self, grace: float = 0) -> None:
        """Close; work in progress has ``grace`` seconds to complete."""

    async def __aenter__(self) -> Self:
        if self._undo is not None:
            raise RuntimeError(f"a {type(self).__name__} can be entered only once")
        try:
            async with contextlib.AsyncExitStack() as undo:
                await self._begin(undo)
                self._undo = undo.pop_all()
            return self
        except BaseException:
            await self._end()
            raise

    async def _tasks_until(self, undo: contextlib.AsyncExitStack) -> TaskGroup:
        """Return a group for tasks in the background, which is cancelled at the end."""
        tasks = await undo.enter_async_context(anyio.create_task_group())
        undo.callback(tasks.cancel_scope.cancel)
        return tasks

    async def __aexit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        # (A signal handler may raise before `or_undo` would have begun.)
        try:
            try:
                await (self.aclose() if error is None else self.aclose(0))
            finally:
                await self._end()
        except BaseException:
            await self._end()
            raise

    async def _end(self) -> None:
        """End the tasks; may be called twice."""
        if self._undo is None:
            return
        try:
            # (not given the block's own error, which the task group would wrap)
            await self._undo.aclose()
        except BaseException as error:
            # A frame of the stack refers to the error: a cycle, which would keep the
            # block's objects until the next collection.
            traceback.clear_frames(error.__traceback__)
            raise


class Service(Block):
    """A block that serves, for its body or until it is cancelled."""

    _ended: anyio.Event  # set once it no longer serves

    async def serve_forever(self) -> None:
        """Serve until cancelled or closed, in an ``async with`` block or without one.

        Raises: without a block, as ``async with``.
        """
        if self._undo is not None and not self._ended.is_set():
            await self._ended.wait()
            return
        async with self:
            await self._ended.wait()

    if not TYPE_CHECKING:  # (so that a type checker complains)

        def __await__(self) -> NoReturn:
            raise TypeError(
                "a server cannot be awaited: use `async with server:`, or `await "
                "server.serve_forever()`, which lasts until it is cancelled"
            )
