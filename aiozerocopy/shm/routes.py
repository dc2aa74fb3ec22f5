"""Routes: a ring's records by their types, for several tasks.

A ring has one receiver, so one of the waiting tasks reads for all: it puts each record
into the queue of the record's type until it gets its own; then another task reads.
Queued records stay in the ring's memory, which bounds the queues.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from aiozerocopy._core.borrows import and_end
from aiozerocopy._core.change import Change
from aiozerocopy._core.receiving import Receives
from aiozerocopy.shm.record import Record, only_record

if TYPE_CHECKING:
    from aiozerocopy.shm.receiver import Receiver


class Route(Receives["Record"]):
    """The records of one type; or those that have no route of their own."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._queue: collections.deque[Record] = collections.deque()

    async def receive(self) -> Record:
        """Return the next of these records, as `Ring.receive`; many tasks may wait."""
        await self._routes.receiver.begin()
        while not self._queue:
            await self._routes.pull()
        first = self._queue[0]
        # (One line without a call: a signal handler may raise at a new line or a call.)
        del self._queue[0]; return first  # noqa: E702  # fmt: skip


class Routes:
    def __init__(self, receiver: Receiver) -> None:
        self.others: Route = Route(self)
        self.receiver = receiver
        self._by_type: dict[int, Route] = {}
        self._change = Change()
        self._is_pulling = False
        self._come: Record | None = None  # a record that is in no queue yet

    def route(self, type_id: int) -> Route:
        return self._by_type.setdefault(type_id, Route(self))

    async def pull(self) -> None:
        """Put one record into its queue, or wait until another task has done so."""
        if self._is_pulling:
            await self._change.next()
            return
        await and_end(self._pull, self._let_others_pull)

    async def _pull(self) -> None:
        self._is_pulling = True
        if self._come is None:
            # (one statement: no signal handler runs before it is stored)
            self._come = await self.receiver.receive(1, only_record)
        route = self._by_type.get(self._come.type_id, self.others)
        # (one line without a call, as in `Route.receive`)
        route._queue += (self._come,); self._come = None  # noqa: E702  # fmt: skip

    def _let_others_pull(self) -> None:
        self._is_pulling = False
        self._change.happen()
