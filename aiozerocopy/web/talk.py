"""What a viewer may say: next to nothing, as it has only to watch."""

from __future__ import annotations

import anyio

MAX_MESSAGE = 4 << 10  # bytes
MAX_EVENTS = 100  # fragments, pings and pongs at once
EVENTS_A_SECOND = 50  # in the long run


class Talk:
    """Counts what one viewer says."""

    def __init__(self) -> None:
        self._allowed_at = 0.0  # when the next event would be, at the rate allowed

    def is_too_fast(self) -> bool:
        """Count an event."""
        now, each = anyio.current_time(), 1 / EVENTS_A_SECOND
        self._allowed_at = max(self._allowed_at, now - MAX_EVENTS * each) + each
        return self._allowed_at > now
