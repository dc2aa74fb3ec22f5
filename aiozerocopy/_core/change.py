"""Waiting for something to change, in the loop's own thread."""

from __future__ import annotations

import anyio


class Change:
    """Wakes all who wait for it; each then looks again at what it waits for."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    async def next(self) -> None:
        """Return at the next change."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()

    def happen(self) -> None:
        """Wake all who wait now."""
        event, self._event = self._event, None
        if event is not None:
            event.set()
