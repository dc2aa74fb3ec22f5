"""Routes: a ring's records by their types, for several tasks.

A ring has one receiver, so one of the waiting tasks reads for all: it puts each record
into the queue of the record's type until it gets its own; then another task reads.
Queued records stay in the ring's memory, which bounds the queues.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from aiozerocopy._core import waiter
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
        await waiter.enter()
        while not self._queue:
            await self._routes.pull()
        return self._queue.popleft()


class Routes:
    def __init__(self, receiver: Receiver) -> None:
        self.others: Route = Route(self)
        self._receiver = receiver
        self._by_type: dict[int, Route] = {}
        self._change = Change()
        self._is_pulling = False

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
        record = await self._receiver.receive(1, only_record)
        self._by_type.get(record.type_id, self.others)._queue.append(record)

    def _let_others_pull(self) -> None:
        self._is_pulling = False
        self._change.happen()
