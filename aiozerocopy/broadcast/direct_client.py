"""The clients of a broadcast whose streams are ours: they need no tasks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aiozerocopy._core.errors import StreamClosed
from aiozerocopy._core.to_all import move_to_copy, send_to_all
from aiozerocopy.broadcast.clients import Client

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aiozerocopy._core.borrows import Operation
    from aiozerocopy._core.to_all import Shared
    from aiozerocopy._core.waiter import Waiter
    from aiozerocopy.broadcast.published import Message
    from aiozerocopy.streams import SendStream


class DirectClient(Client):
    """Over a stream of ours: the queue in C takes the message; no task is needed."""

    _stream: SendStream
    _operation: Operation | None = None  # of the message in flight
    _holds_slot = False  # it may still read the memory that was published
    _instead: Message | None = None  # what the operation may become in `_go_on`

    def _send(self, message: Message) -> None:
        send([self], message)

    def _is_ready_for(self, message: Message) -> bool:
        """Make the stream ready for a message; if it takes none, disconnect."""
        stream = self._stream
        try:
            port = stream._enter().port
            if stream._out.ready is None:
                stream._out.bind_port(port, stream._budget)
            if stream._out.ready is None:
                raise StreamClosed("the stream is closed")
        except Exception as error:
            self._drop(message)
            self._fail(error)
            return False
        return True

    def _ends_later(self, message: Message, operation: Operation) -> None:
        self._current, self._operation, self._holds_slot = message, operation, True
        if not self._since:
            self._since = time.monotonic()
        operation.listen(self._on_end)

    def _on_end(self) -> None:
        """The operation in flight has ended."""
        self._note_move()
        operation, message = self._operation, self._current
        if operation is None or message is None:
            return
        self._operation = self._current = None
        self._since = 0.0
        if operation.status == 0 or operation.was_rescued:  # its rest will go out
            self._done(message)
        elif operation.was_dropped:
            self._drop(message)
        else:
            self._drop(message)
            self._fail(operation.failure())
        self._advance()

    def _is_behind(self, sequence: int) -> bool:
        """Does it still borrow the memory of a frame before this one?"""
        current = self._current
        return self._holds_slot and current is not None and current.sequence < sequence

    def _note_move(self) -> None:
        """The frame in flight, if it had not begun, became the newest, which waited."""
        newest, self._instead = self._instead, None
        operation, current = self._operation, self._current
        if newest and current and operation is not None and operation.is_newer:
            self._pending.pop()
            self._drop(current)
            self._current, self._holds_slot = newest, True

    def _stop_borrowing(self) -> None:
        waiter, operation = self._stream._waiter, self._operation
        if waiter is not None and operation is not None:
            self._stream._out.take_back(waiter.port, operation, operation.total)

    def _abort(self) -> None:
        self._stream.abort()


def send(clients: Sequence[DirectClient], message: Message) -> None:
    """Give it to all of them, none of which has anything in flight: one call into C."""
    ready: dict[SendStream, DirectClient] = {}
    waiter: Waiter | None = None
    for client in clients:
        stream = client._stream
        if stream in ready:  # it watches twice: one after the other
            _send(ready, message)
            ready = {}
        if client._closed:  # while others were sent to
            client._drop(message)
        elif (
            stream._waiter is waiter is not None
            and stream._out.ready is not None
            and not stream._closed
        ) or client._is_ready_for(message):
            ready[stream] = client
            waiter = stream._waiter
    _send(ready, message)


def _send(clients: Mapping[SendStream, DirectClient], message: Message) -> None:
    if not clients:
        return
    channels = [stream._out for stream in clients]
    port = next(iter(clients))._enter().port
    later = send_to_all(channels, port, message.shared())
    # A hook may do anything: so first note what is on its way, then tell what is out.
    late = {
        client: operation
        for client, operation in zip(clients.values(), later, strict=True)
        if operation is not None
    }
    for client, operation in late.items():
        client._ends_later(message, operation)
    for client in clients.values():
        if client not in late:
            client._done(message)


def stop_borrowing(clients: Iterable[DirectClient], newest: Message) -> None:
    """Let go of the memory of the frames that these have in flight.

    All who have the same frame in flight go on from one copy of it.  Where nothing of
    it is out yet, a client with the policy "latest" gets the newest instead.
    """
    groups: dict[tuple[Message, bool, bool], list[DirectClient]] = {}
    for client in clients:
        message, operation = client._current, client._operation
        is_open = client._stream._waiter is not None  # else its operation ends now
        if is_open and message is not None and operation is not None:
            message.keep()
            uses_slot = operation.views[0] is not message.shared().pins
            skips = client.policy == "latest" and newest.key
            groups.setdefault((message, uses_slot, skips), []).append(client)
    for (message, uses_slot, skips), group in groups.items():
        copy = message.shared() if uses_slot else None
        _go_on(group, copy, newest if skips else None)


def _go_on(
    clients: Sequence[DirectClient], copy: Shared | None, newest: Message | None
) -> None:
    channels = [client._stream._out for client in clients]
    operations = [client._operation for client in clients if client._operation]
    newer = None if newest is None else newest.shared()
    # (no client keeps a port: of a loop that has ended it would not be swept)
    waiter = clients[0]._stream._waiter
    assert waiter is not None
    for client in clients:
        client._instead, client._holds_slot = newest, False
    try:
        move_to_copy(channels, waiter.port, operations, copy, newer)
    finally:
        for client in clients:
            client._note_move()
