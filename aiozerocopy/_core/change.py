"""Waiting until something has changed, in the loop's own thread."""

from __future__ import annotations

import anyio


class Change:
    """Whoever waits for the next one looks again when it has happened."""

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
