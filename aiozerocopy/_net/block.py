"""What hubs and servers share: work in the background of an ``async with`` block."""

from __future__ import annotations

import contextlib
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

import anyio

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from typing_extensions import Self


class Block:
    """Its tasks begin and end with its ``async with`` block, which is entered once."""

    _undo: contextlib.AsyncExitStack | None = None  # ends the tasks

    async def _begin(self, undo: contextlib.AsyncExitStack) -> None:
        """Start the tasks.  ``undo`` gets what ends them, to be done after `aclose`."""
        raise NotImplementedError

    async def aclose(self, grace: float = 0) -> None:
        """Close; what is on its way has ``grace`` seconds to complete."""

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
        """For what runs in the background; at the end what still runs is cancelled."""
        tasks = await undo.enter_async_context(anyio.create_task_group())
        undo.callback(tasks.cancel_scope.cancel)
        return tasks

    async def __aexit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        # (A signal's exception in this function would keep `or_undo` from beginning.)
        try:
            try:
                await (self.aclose() if error is None else self.aclose(0))
            finally:
                await self._end()
        except BaseException:
            await self._end()
            raise

    async def _end(self) -> None:
        """End the tasks.  May be called twice."""
        if self._undo is None:
            return
        try:
            # (without the block's own error, which the task group would wrap)
            await self._undo.aclose()
        except BaseException as error:
            # A frame of the stack has the error as a variable: a cycle, which would
            # keep what the block has until the next collection.
            traceback.clear_frames(error.__traceback__)
            raise


class Service(Block):
    """A block for what serves, also until it is cancelled."""

    _ended: anyio.Event  # it serves no more

    async def serve_forever(self) -> None:
        """Serve until cancelled or closed, in an ``async with`` block or without one.

        Raises: without one, what ``async with`` does.
        """
        if self._undo is not None and not self._ended.is_set():
            await self._ended.wait()
            return
        async with self:
            await self._ended.wait()

    if not TYPE_CHECKING:  # a type checker is to complain

        def __await__(self) -> NoReturn:
            raise TypeError(
                "a server cannot be awaited: use `async with server:`, or `await "
                "server.serve_forever()`, which lasts until it is cancelled"
            )
