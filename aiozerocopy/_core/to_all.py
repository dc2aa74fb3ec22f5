"""One message to many channels: one call into C, and one copy for all who are slow.

Its memory is pinned once.  Each channel's operation holds the same `Pins`, so the
memory is free when the last of them has ended, or goes on from a copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiozerocopy._core.binding import ffi, lib
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
        self.vec: Any = ffi.new(
            "struct iovec[]", [(one, len(one)) for one in self.pins]
        )
        self.nbytes: int = sum(map(len, self.pins))

    def copied(self) -> memoryview:
        """The message in memory of its own, in one piece; copied without the GIL."""
        memory = scratch(self.nbytes)
        lib.azc_copy_message(memory, self.vec, len(self.pins))
        return memoryview(ffi.buffer(memory, self.nbytes)).toreadonly()


def send_to_all(
    channels: Sequence[Channel], port: Port, message: Shared
) -> list[Operation | None]:
    """Send to each channel, after all that was sent there before, without waiting.

    Each must have an operation ready, for that port.  Returns for each None if the
    message is out, or its operation: that will end later, or has failed.
    """
    operations = [channel.ready for channel in channels if channel.ready]
    assert len(operations) == len(channels)
    ids = ffi.new("azc_id[]", [channel.id for channel in channels])
    results = ffi.new("int[]", len(channels))
    pins = message.pins
    try:
        for operation in operations:
            operation.views[0] = pins
        lib.azc_send_to_all(ids, len(channels), message.vec, len(pins), results)
        later: list[Operation | None] = [None] * len(channels)
        for i, result in enumerate(ffi.unpack(results, len(channels))):
            if result == 0:
                operations[i].views[0] = None  # and it is ready for the next send
            else:
                channels[i].note_result(port, operations[i], message.nbytes, result)
                later[i] = operations[i]
    except BaseException:
        for channel, operation in zip(channels, operations, strict=True):
            channel.take_back_blocking(port, operation, message.nbytes)
        raise
    return later


def move_to_copy(
    channels: Sequence[Channel],
    port: Port,
    operations: Sequence[Operation],
    copy: Shared | None,
    newer: Shared | None,
) -> None:
    """Let operations that carry one message go on from a copy of it, in one piece.

    One of which nothing is out yet becomes the newer message instead: ``is_newer``.
    Without a copy the others stay as they are.  An operation holds all of the memory
    until C has told which it uses, which may be a moment later.
    """
    total = operations[0].total
    results = ffi.new("int[]", [_NOT_ASKED] * len(channels))
    try:
        try:
            for operation in operations:
                operation.is_newer = False
                operation.views.extend(one.pins for one in (newer, copy) if one)
            lib.azc_move_to_copy(
                ffi.new("azc_id[]", [channel.id for channel in channels]),
                ffi.new("uint64_t[]", [operation.token for operation in operations]),
                len(channels),
                copy.pins[0] if copy else ffi.NULL,
                total,
                newer.vec if newer else ffi.NULL,
                len(newer.pins) if newer else 0,
                results,
            )
            _note_moves(operations, results, copy, newer)
        except BaseException:
            _note_moves(operations, results, copy, newer)  # C may have moved them
            raise
    except BaseException:
        for channel, operation in zip(channels, operations, strict=True):
            channel.take_back_blocking(port, operation, operation.total)
        raise


_NOT_ASKED = -1


def _note_moves(
    operations: Sequence[Operation],
    results: Sequence[int],
    copy: Shared | None,
    newer: Shared | None,
) -> None:
    """What each operation carries now.  May be called twice."""
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
