"""Who gets what an encoding makes.

A client over a stream of ours is kept.  One that is fed by its own `wait_closed` is
not: it goes with the last task that could call that, so whatever has ended that task,
a signal's exception at the worst of moments or a loop that was closed, nobody is left
whom frames are kept for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from aiozerocopy._core.waiter import current_waiter
from aiozerocopy.broadcast.direct_client import DirectClient, Lineup

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiozerocopy.broadcast.clients import Client


class Audience:
    """A set of clients, in the order in which they came.

    Those over streams of ours are sorted: a frame costs little for all who are in step,
    and nothing has to be sorted as long as they stay so.
    """

    def __init__(self) -> None:
        self._kept: dict[DirectClient, None] = {}
        self._fed: WeakKeyDictionary[Client, None] = WeakKeyDictionary()
        self._sorted: tuple[Lineup, tuple[DirectClient, ...]] | None = None

    def add(self, client: Client) -> None:
        if isinstance(client, DirectClient):
            self.sort_again()
            self._kept[client] = None
        else:
            self._fed[client] = None

    def discard(self, client: Client) -> None:
        if isinstance(client, DirectClient):
            self._kept.pop(client, None)
            self.sort_again()
        else:
            self._fed.pop(client, None)

    def sort(self, offered: int) -> tuple[Lineup | None, tuple[Client, ...]]:
        """Those who are in step, if they can be, and all others.

        ``offered`` is the newest frame that all were offered.
        """
        if not self._kept:
            return None, tuple(self._fed)
        if self._sorted is None or not self._sorted[0].is_here():
            self._sorted = self._sort(offered)
        lineup, apart = self._sorted
        return lineup, (*apart, *self._fed)

    def _sort(self, offered: int) -> tuple[Lineup, tuple[DirectClient, ...]]:
        waiter = current_waiter()
        in_step: list[DirectClient] = []
        apart: list[DirectClient] = []
        for client in self._kept:
            (in_step if client._is_in_step(waiter, offered) else apart).append(client)
        return Lineup(in_step, waiter), tuple(apart)

    def sort_again(self) -> None:
        """Somebody came, left, or may be in step now."""
        self._sorted = None

    def __iter__(self) -> Iterator[Client]:
        """Those who are there now; they may leave meanwhile."""
        return iter((*self._kept, *self._fed))

    def __len__(self) -> int:
        return len(self._kept) + len(self._fed)
