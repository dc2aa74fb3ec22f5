"""The parts of the screen that have changed, and the rows that each slot lacks.

The bytes of a slot are
    whole       the screen as it was at some time
    stale       the screen as it was, but some rows have changed since
    unknown     never filled, or given out to be written to: all rows are stale

The server collects the areas in which something was drawn.  We take its list, and note
it for each slot, before we fetch rows: what is drawn meanwhile is in the next list.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from aiozerocopy.capture import x11
from aiozerocopy.capture.x11 import ScreenError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozerocopy.capture.connection import Connection
    from aiozerocopy.capture.x11 import Rectangle

CLOSE = 16  # rows: copying these costs less than a request
Rows = list[tuple[int, int]]  # bands of rows: the first row, and the one after the last


class Damage:
    """The damage in one screen's region."""

    def __init__(
        self,
        connection: Connection,
        extensions: dict[str, tuple[int, int]],
        region: Rectangle,
        slots: int,
    ) -> None:
        """Have the server collect damage; raise ScreenError if it cannot."""
        damage, xfixes = map(extensions.get, ("DAMAGE", "XFIXES"))
        if damage is None or xfixes is None:
            missing = "DAMAGE" if damage is None else "XFIXES"
            raise ScreenError(
                f"the X server does not report changes: it has no {missing}"
            )
        (self._damage, self._event), (self._xfixes, _) = damage, xfixes
        self._connection = connection
        self._account, self._taken = connection.new_id(), connection.new_id()
        root = connection.setup.root
        connection.tell(x11.create_damage(self._damage, self._account, root))
        connection.tell(x11.create_region(self._xfixes, self._taken))
        connection.listeners.append(weakref.WeakMethod(self._hear))
        self._region = region
        self._stale: list[Rows] = [self._all] * slots
        self.forget()

    @property
    def _all(self) -> Rows:
        return [(0, self._region.height)]

    def forget(self) -> None:
        """Report the whole screen as changed, next time."""
        self.has_news: bool = True
        self._unreported: list[Rectangle] | None = None

    def _hear(self, event: bytes) -> None:
        if event[0] & 0x7F == self._event:
            self.has_news = True

    async def take(self) -> None:
        """Note the areas in which something was drawn since the last time."""
        self.has_news = False
        self._connection.tell(x11.take_damage(self._damage, self._account, self._taken))
        fetch = x11.fetch_region(self._xfixes, self._taken)
        try:
            found = x11.rectangles(await self._connection.query(fetch))
        except BaseException:  # the list is lost: all may have changed
            self._stale = [self._all for _ in self._stale]
            self.forget()
            raise
        parts = self.note(found)
        rows = [(one.y, one.y + one.height) for one in parts]
        self._stale = [merged([*stale, *rows]) for stale in self._stale]

    def note(self, places: Sequence[Rectangle]) -> list[Rectangle]:
        """Report these places of the screen; return their parts in the picture."""
        parts = [one.within(self._region) for one in places]
        changed = [one.seen_from(self._region) for one in parts if one is not None]
        if self._unreported is not None:
            self._unreported += changed
        return changed

    @property
    def is_reported(self) -> bool:
        """Has nothing changed since the last report?"""
        return self._unreported == []

    def report(self) -> tuple[Rectangle, ...] | None:
        """Return the parts that changed since the last report; None: all of it."""
        changed, self._unreported = self._unreported, []
        return None if changed is None else tuple(changed)

    # ---- slots -------------------------------------------------------------------

    def spoil(self, slot: int) -> Rows:
        """Note that a slot is being written to; return the rows that it lacks."""
        rows, self._stale[slot] = self._stale[slot], self._all
        return rows

    def mend(self, slot: int, but: Rectangle | None) -> None:
        """Note that a slot shows the screen, ``but`` for a part that we drew over."""
        self._stale[slot] = [] if but is None else [(but.y, but.y + but.height)]


def merged(rows: Rows) -> Rows:
    """Return rows in bands from the top down; bands that are close become one."""
    bands: Rows = []
    for top, bottom in sorted(rows):
        if bands and top <= bands[-1][1] + CLOSE:
            bands[-1] = bands[-1][0], max(bottom, bands[-1][1])
        else:
            bands.append((top, bottom))
    return bands
