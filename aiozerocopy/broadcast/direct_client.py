"""The clients of a broadcast whose streams are ours: they need no tasks."""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING

from aiozerocopy._core.errors import StreamClosed
from aiozerocopy._core.to_all import Row, move_to_copy
from aiozerocopy._core.waiter import current_waiter
from aiozerocopy.broadcast.clients import Client

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from aiozerocopy._core.borrows import Operation
    from aiozerocopy._core.to_all import Shared
    from aiozerocopy._core.waiter import Waiter
    from aiozerocopy.broadcast.published import Message
    from aiozerocopy.streams import SendStream


class DirectClient(Client):
    """A client over a stream of ours: the queue in C takes the message, without a task.

    Its seat is taken while nothing is in flight: see `Lineup`.
    """

    stream: SendStream
    _operation: Operation | None = None  # of the message in flight
    _holds_slot = False  # the operation may still read the published memory
    _instead: Message | None = None  # what the operation may become in `_go_on`

    def _send(self, message: Message) -> None:
        send([self], message)

    def _takes_seat(self, message: Message) -> bool:
        """Get ready for a message; disconnect if the stream takes none."""
        stream = self.stream
        try:
            port = stream._enter().port
            if stream._out.ready is None:
                stream._out.bind_port(port, stream._budget)
            if stream._refusal or not self._seat.take(stream._out):
                raise StreamClosed(stream._refusal or "the stream is closed")
        except Exception as error:
            self._drop(message)
            self._fail(error)
            return False
        return True

    def _is_in_step(self, waiter: Waiter, offered: int) -> bool:
        """Can the client be sent the next frame together with all others?

        A newcomer may be ahead of the others, or have to wait for a key frame.
        """
        return (
            self._seat.is_taken
            and self.stream._waiter is waiter
            and self._last_offered <= offered
            and not self._pending.needs_key
        )

    def _ends_later(self, message: Message, operation: Operation) -> None:
        self._current, self._operation, self._holds_slot = message, operation, True
        self._last_offered = message.sequence
        if not self._since:
            self._since = time.monotonic()
        operation.listen(self._on_end)

    def _on_end(self) -> None:
        self._note_move()
        operation, message = self._operation, self._current
        if operation is None or message is None:
            return
        self._operation = self._current = None
        self._since = 0.0
        # (the rest of a rescued message will go out)
        if operation.status == 0 or operation.was_rescued:
            self._note_sent(message, time.monotonic_ns())
        elif operation.was_dropped:
            self._drop(message)
        else:
            self._drop(message)
            self._fail(operation.failure())
        self._advance()

    def _is_behind(self, sequence: int) -> bool:
        """Does the client still borrow the memory of a frame before ``sequence``?"""
        current = self._current
        return self._holds_slot and current is not None and current.sequence < sequence

    def _note_move(self) -> None:
        """Note if C has replaced the frame in flight by the newest, which waited."""
        newest, self._instead = self._instead, None
        operation, current = self._operation, self._current
        if newest and current and operation is not None and operation.is_newer:
            self._pending.pop()
            self._drop(current)
            self._current, self._holds_slot = newest, True

    def _stop_borrowing(self) -> None:
        waiter, operation = self.stream._waiter, self._operation
        if waiter is not None and operation is not None:
            self.stream._out.take_back(waiter.port, operation, operation.total)

    def _abort(self) -> None:
        self.stream.abort()


class Lineup:
    """Clients with nothing in flight: one call into C sends a frame to all of them.

    Python touches none of them for a frame: C checks that each stream still has the
    same operation ready, and counts what was sent.  A client to which a frame could not
    be sent is no longer in step.
    """

    def __init__(self, clients: Sequence[DirectClient], waiter: Waiter) -> None:
        self._clients = clients
        self._row = Row(client._seat for client in clients)
        self._have_hooks = any(client._on_event is not None for client in clients)
        # (weak: else the port of a loop that has ended would not be swept)
        self._waiter = weakref.ref(waiter)
        self.is_whole: bool = True

    def __len__(self) -> int:
        return len(self._clients)

    def is_here(self) -> bool:
        """Are all clients still in step, and in the running loop?"""
        return self.is_whole and self._waiter() is current_waiter()

    def send(self, part: range, message: Message) -> list[DirectClient]:
        """Send to some clients; return those that must be made ready first."""
        waiter = self._waiter()
        if waiter is None:  # all of the streams are closed
            return [self._clients[at] for at in part]
        shared, since = message.shared(), message.published_ns
        missed = self._row.send(part, waiter.port, shared, since)
        self.is_whole = self.is_whole and not missed
        # A hook may do anything: so note what is in flight before calling one.
        for at, operation in missed.items():
            if operation is not None:
                self._clients[at]._ends_later(message, operation)
        if self._have_hooks:
            for at in part:
                if at not in missed:
                    self._clients[at]._tell("sent", message.sequence)
        return [
            self._clients[at] for at, operation in missed.items() if operation is None
        ]


def send(clients: Iterable[DirectClient], message: Message) -> None:
    """Send the message to these clients, which have nothing in flight."""
    ready = []
    for client in clients:
        if client.closed:  # in the meantime
            client._drop(message)
        elif client._takes_seat(message):
            ready.append(client)
    if ready:
        lineup = Lineup(ready, current_waiter())
        for client in lineup.send(range(len(ready)), message):
            send([client], message)  # an earlier client of the row has the same stream


def stop_borrowing(clients: Iterable[DirectClient], newest: Message) -> None:
    """Let go of the memory of the frames that these clients have in flight.

    Clients with the same frame in flight share one copy of it.  A client with the
    policy "latest" gets the newest frame instead, if that is a key frame and nothing of
    its own was sent yet.
    """
    groups: dict[tuple[Message, bool, bool], list[DirectClient]] = {}
    for client in clients:
        message, operation = client._current, client._operation
        is_open = client.stream._waiter is not None  # else its operation ends now
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
    channels = [client.stream._out for client in clients]
    operations = [client._operation for client in clients if client._operation]
    newer = None if newest is None else newest.shared()
    # (clients keep no port, or the port of an ended loop would not be swept)
    waiter = clients[0].stream._waiter
    assert waiter is not None
    for client in clients:
        client._instead, client._holds_slot = newest, False
    try:
        move_to_copy(channels, waiter.port, operations, copy, newer)
    finally:
        for client in clients:
            client._note_move()
