"""When the next picture is due."""

from __future__ import annotations

import math

import anyio


class Pace:
    """Times at a rate, numbered from 0; without a rate, each comes at once."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._began: float | None = None
        self._number = -1

    async def next(self) -> int:
        """Wait for the next time and return its number; those missed are left out."""
        now = anyio.current_time()
        if self._began is None:
            self._began = now
        self._number += 1
        if self._rate is not None:
            late = math.floor((now - self._began) * self._rate)
            self._number = max(self._number, late)
            await anyio.sleep_until(self._began + self._number / self._rate)
        return self._number
