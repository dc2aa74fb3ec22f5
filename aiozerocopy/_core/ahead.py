"""Receives that begin before a task waits for them, and end without Python.

C starts the next receive without Python.  `take` returns at once if the first is
complete, and while the program uses its result, the others arrive.

The states of a receive, and who owns its memory
    queued      borrowed; the kernel writes there, then ``then`` uses it
    complete    still borrowed, until `take`
    taken       the caller's
    failed      the stream has ended, or is closed; pinned until `clear`

A cancelled `take` changes none of these.  If `begin` is interrupted, it takes the
receive back.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio

from aiozerocopy._core.binding import IN_PROGRESS
from aiozerocopy._core.errors import IncompleteReceive, StreamClosed
from aiozerocopy._core.pins import content, pin_writable, unpin
from aiozerocopy._core.receiving import Reception

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from typing_extensions import Buffer

    from aiozerocopy._core.borrows import Port
    from aiozerocopy._core.colour import ThenRgb
    from aiozerocopy._core.receiving import ReceiveStream
    from aiozerocopy._core.waiter import Waiter

T = TypeVar("T")


class Coming(Reception, Generic[T]):
    view: Any = None

    def __init__(self, port: Port, then: ThenRgb, result: T) -> None:
        super().__init__(port, [])
        self.then = then
        self.result = result


class Ahead(Generic[T]):
    """Receives from a stream; no other call can receive from it any more."""

    def __init__(self, stream: ReceiveStream) -> None:
        """Raises: as `ReceiveStream.receive`."""
        self._stream = stream
        self._coming: deque[Coming[T]] = deque()
        stream._enter_alone()
        stream._reception = Ahead  # (not self: that would be a cycle)

    def __len__(self) -> int:
        """Return how many receives have begun and were not taken."""
        return len(self._coming)

    def __iter__(self) -> Iterator[T]:
        """Iterate over the results that `take` will return."""
        return (one.result for one in self._coming)

    def begin(self, memory: Buffer, then: ThenRgb, result: T) -> None:
        """Receive into all of ``memory`` after the others, and then call ``then``.

        `take` will return ``result``.

        Raises: StreamClosed, StreamBroken; TypeError, BufferError: as `pin_writable`.
        """
        waiter = self._stream._enter()
        one = Coming(waiter.port, then, result)
        try:
            one.view = pin_writable(memory)
            one.views += (one.view, *then.borrowed)
            self._coming.append(one)
            self._submit(waiter, one)
        except BaseException:
            self._take_back(waiter, one)
            raise

    async def take(self) -> T:
        """Return the result of the first receive; after a cancel it is still first.

        Raises:
            EndOfStream: the stream ended before its first byte.
            IncompleteReceive: it ended later.
            StreamBroken, StreamClosed: as for `ReceiveStream.receive`.
        """
        waiter, first = self._stream._enter(), self._coming[0]
        await waiter.checkpoint()
        await waiter.wait(first)
        if first not in self._coming:
            raise StreamClosed("the stream was closed")  # and `clear` was called
        first.raise_if_failed()
        n, size = first.received, len(first.view)
        if n < size:
            raise IncompleteReceive(n, size) if n else anyio.EndOfStream
        unpin(first.views)
        # (One line without a call: a signal handler may raise at a new line or a call.)
        del self._coming[0]; return first.result  # noqa: E702  # fmt: skip

    def clear(self) -> list[T]:
        """Forget all receives.  The memory of each is given back when it ends in C."""
        forgotten = list(self._coming)
        self._coming.clear()
        for one in forgotten:
            if one.done:
                unpin(one.views)
        return [one.result for one in forgotten]

    def _submit(self, waiter: Waiter, one: Coming[T]) -> None:
        stream = self._stream
        if stream._unread:
            stream._take_unread(one, one.view)
        if one.taken == len(one.view):
            one.then()
            one.end()
            waiter.port.forget(one)
            return
        channel = stream._in
        result = channel.receive_then(waiter.port, one, one.view, one.taken, one.then)
        if result not in (0, IN_PROGRESS):
            raise channel.refused(result, one.total, one.taken)

    def _take_back(self, waiter: Waiter, one: Coming[T]) -> None:
        """Undo a `begin` that failed or was interrupted; keep what has arrived."""
        stream = self._stream
        stream._in.take_back_blocking(waiter.port, one)
        if one in self._coming:
            self._coming.remove(one)
        if one.received:
            stream._unread = content(one.view, one.received) + stream._unread
        if one.done:
            unpin([one.view, *one.then.borrowed])
