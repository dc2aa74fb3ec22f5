"""Who gets what an encoding makes.

A client over a stream of ours is kept.  One that is fed by its own `wait_closed` is
not: it goes with the last task that could call that, so whatever has ended that task,
a signal's exception at the worst of moments or a loop that was closed, nobody is left
whom frames are kept for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiozerocopy.broadcast.clients import Client


class Audience:
    """A set of clients, in the order in which they came."""

    def __init__(self) -> None:
        self._kept: dict[Client, None] = {}
        self._fed: WeakKeyDictionary[Client, None] = WeakKeyDictionary()

    def add(self, client: Client) -> None:
        (self._fed if client.is_fed else self._kept)[client] = None

    def discard(self, client: Client) -> None:
        (self._fed if client.is_fed else self._kept).pop(client, None)

    def __iter__(self) -> Iterator[Client]:
        """Those who are there now; they may leave meanwhile."""
        return iter((*self._kept, *self._fed))

    def __len__(self) -> int:
        return len(self._kept) + len(self._fed)
