"""The base of hubs and servers: work in the background of an ``async with`` block."""

from __future__ import annotations

import contextlib
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

import anyio

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from typing_extensions import Self


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
