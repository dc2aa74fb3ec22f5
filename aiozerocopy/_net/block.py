"""What hubs and servers share: work in the background of an ``async with`` block."""

from __future__ import annotations

import contextlib
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    import anyio
    from typing_extensions import Self


class Block:
    """Its tasks begin and end with its ``async with`` block, which is entered once."""

    _undo: contextlib.AsyncExitStack | None = None  # ends the tasks

    async def _begin(self, undo: contextlib.AsyncExitStack) -> None:
        """Start the tasks.  ``undo`` gets what ends them, to be done after `aclose`."""
        raise NotImplementedError

    async def aclose(self, grace: float = 0) -> None:
        """Close; what is on its way has ``grace`` seconds to complete."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        if self._undo is not None:
            raise RuntimeError(f"a {type(self).__name__} can be entered only once")
        async with contextlib.AsyncExitStack() as undo:
            await self._begin(undo)
            self._undo = undo.pop_all()
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        try:
            await (self.aclose() if error is None else self.aclose(0))
        finally:
            # The block's own error is not for the task group, which would wrap it.
            if self._undo is not None:
                await self._end(self._undo)

    @staticmethod
    async def _end(undo: contextlib.AsyncExitStack) -> None:
        try:
            await undo.aclose()
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
