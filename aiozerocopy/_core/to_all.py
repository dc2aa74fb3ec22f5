"""One message to many channels: one call into C, and one copy for all slow channels.

Its memory is pinned once.  Each channel's operation holds the same `Pins`, so the
memory is free when the last of them has ended, or goes on from a copy.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.binding import ffi, lib
from aiozerocopy._core.borrows import or_undo_now
from aiozerocopy._core.pins import Pins, pin, scratch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

    from aiozerocopy._core.borrows import Operation, Port
    from aiozerocopy._core.channel import Channel


class Shared:
    """A message whose memory is pinned as long as this, or an operation, needs it."""

    __slots__ = ("nbytes", "pins", "vec")

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        self.pins: Pins = Pins(map(pin, buffers))
        pieces = [(one, len(one)) for one in self.pins if len(one)]
        self.vec: Any = ffi.new("struct iovec[]", pieces)
        self.nbytes: int = sum(map(len, self.pins))

    def copied(self) -> memoryview:
        """Return the message in memory of its own, in one piece."""
        memory = scratch(self.nbytes)
        self.copy_to(memory)
        return memoryview(ffi.buffer(memory, self.nbytes)).toreadonly()

    def copy_to(self, memory: Any) -> None:
        """Copy the message to a pin that has room for it, without the GIL."""
        lib.azc_copy_message(memory, self.vec, len(self.vec))


class Seat:
    """A place for one of the channels that get the same messages.

    It is taken with the operation that its channel has ready.  Once that is used up,
    by whatever message, C sends nothing there until the seat is taken with another.
    """

    __slots__ = ("channel", "operation", "tally")

    def __init__(self) -> None:
        self.tally: Any = ffi.new("azc_tally *", {"away": True})  # C's counters
        self.channel: Channel | None = None
        self.operation: Operation | None = None

    @property
    def is_taken(self) -> bool:
        return self.operation is not None

    def take(self, channel: Channel) -> bool:
        """Take the seat for a channel; False if it has no operation ready."""
        self.channel, self.operation = channel, channel.ready
        self.tally.away = not self.is_taken
        return self.is_taken

    def leave(self) -> None:
        """Leave the seat: nothing is sent there until it is taken again."""
        self.tally.away = True
        self.operation = None

    def count(self, nbytes: int, age_ns: int) -> None:
        """Count a message that was out later."""
        self.tally.messages += 1
        self.tally.bytes += nbytes
        self.tally.age_ns = age_ns


class Row:
    """Seats that were taken when this was made: one call into C sends to all of them.

    It uses the operations of that time.  Where another one is ready by now, or the seat
    was left, nothing is sent.
    """

    def __init__(self, seats: Iterable[Seat]) -> None:
        self._seats = list(seats)
        self._channels = [seat.channel for seat in self._seats if seat.channel]
        self._operations = [seat.operation for seat in self._seats if seat.operation]
        assert len(self._operations) == len(self._seats)
        numbers = [channel.id for channel in self._channels]
        tokens = [operation.token for operation in self._operations]
        tallies = [seat.tally for seat in self._seats]
        self._in_c = ffi.new(
            "azc_seat[]", list(zip(numbers, tokens, tallies, strict=True))
        )
        self._which = ffi.new("int[]", len(tallies))

    def send(
        self, part: range, port: Port, message: Shared, since_ns: int
    ) -> dict[int, Operation | None]:
        """Send to this part, after all that was sent there before, without waiting.

        All its operations are the port's; the message was made at ``since_ns``.

        Returns the seats where the message is not out, by their numbers; they are left
        now.  Each comes with the operation that will end later or has failed, or with
        None if nothing was sent there.
        """
        try:
            ready = self._ready(part, message)
            missed = self._send(part, message, since_ns)
            for at, result in missed.items():
                if result != _STALE:
                    ready.pop(self._operations[at].token, None)
            for views in ready.values():
                views[0] = None  # (the operation is ready for the next message)
            return {
                at: self._note(at, port, message.nbytes, result)
                for at, result in missed.items()
            }
        except BaseException:
            self._take_back(part, port, message)
            raise

    def _ready(self, part: range, message: Shared) -> dict[int, list[Any]]:
        """Return the views that hold the message now, by token: two seats may have one
        operation.  Seats with other operations, which another message has or which are
        over, are left: nothing may be sent there.
        """
        ready = {}
        for operation in self._operations[part.start : part.stop]:
            views = operation.views
            if views == [None]:  # (nothing can come between this and the next line)
                views[0] = message.pins
                ready[operation.token] = views
        for at in part if len(ready) < len(part) else ():
            if self._operations[at].token not in ready:
                self._seats[at].leave()
        return ready

    def _send(self, part: range, message: Shared, since_ns: int) -> dict[int, int]:
        """Return the results that are not 0, by the numbers of their seats."""
        count = lib.azc_send_to_all(
            self._in_c + part.start,
            len(part),
            message.vec,
            len(message.vec),
            since_ns,
            self._which,
        )
        which = [part[at] for at in ffi.unpack(self._which, count)] if count else ()
        return {at: self._seats[at].tally.result for at in which}

    def _note(self, at: int, port: Port, nbytes: int, result: int) -> Operation | None:
        operation = None
        if result != _STALE:
            operation = self._operations[at]
            self._channels[at].note_result(port, operation, result, nbytes)
        self._seats[at].leave()
        return operation

    def _take_back(self, part: range, port: Port, message: Shared) -> None:
        for at in part:
            operation = self._operations[at]
            if message.pins in operation.views:
                self._channels[at].take_back_blocking(port, operation, message.nbytes)


_STALE = -errno.ESTALE


def move_to_copy(
    channels: Sequence[Channel],
    port: Port,
    operations: Sequence[Operation],
    copy: Shared | None,
    newer: Shared | None,
) -> None:
    """Let operations that carry one message go on from a copy of it, in one piece.

    If there is a newer message, an operation of which nothing is out yet carries that
    instead (``is_newer``).  Without a copy the others stay as they are.  An operation
    holds all of the memory until C has said which it uses, maybe a moment later.
    """
    results = ffi.new("int[]", [_NOT_ASKED] * len(channels))

    def move() -> None:
        for operation in operations:
            operation.is_newer = False
            operation.views.extend(one.pins for one in (newer, copy) if one)
        lib.azc_move_to_copy(
            ffi.new("azc_id[]", [channel.id for channel in channels]),
            ffi.new("uint64_t[]", [operation.token for operation in operations]),
            len(channels),
            copy.pins[0] if copy else ffi.NULL,
            operations[0].total,
            newer.vec if newer else ffi.NULL,
            len(newer.vec) if newer else 0,
            results,
        )
        _note_moves(operations, results, copy, newer)

    def undo() -> None:
        try:
            _note_moves(operations, results, copy, newer)  # C may have moved them
        finally:
            for channel, operation in zip(channels, operations, strict=True):
                channel.take_back_blocking(port, operation, operation.total)

    or_undo_now(move, undo)


_NOT_ASKED = -1


def _note_moves(
    operations: Sequence[Operation],
    results: Sequence[int],
    copy: Shared | None,
    newer: Shared | None,
) -> None:
    """Note what each operation carries now; may be called twice."""
    for operation, result in zip(operations, results, strict=True):
        if operation.done:
            continue
        if result == 1 and newer:
            operation.views[:] = [newer.pins]
            operation.total = newer.nbytes
            operation.is_newer = True
        elif result == 0 and copy:
            operation.moved_to_copy()
        elif result == 0:
            del operation.views[1:]
