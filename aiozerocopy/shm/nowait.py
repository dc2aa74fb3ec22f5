"""Sending at once or not at all: for those who have something else to do meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiozerocopy._core.pins import Pins, pin
from aiozerocopy._core.ring_end import FULL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from typing_extensions import Buffer

    from aiozerocopy.shm.ring import Ring


def send_now(ring: Ring, buffers: Sequence[Buffer], type_id: int) -> bool:
    """Send a record as `Ring.send` does; False if it would have to wait.

    Raises: as `Ring.send`.
    """
    sender = ring._sender()
    sender.enter()
    if not sender.line.is_empty():
        return False
    pins = Pins(map(pin, buffers))
    try:
        result = sender._send_now(pins, type_id)
        if result < 0 and result != FULL:
            raise sender.end.error(result, sum(map(len, pins)))
        return result != FULL
    finally:
        pins.release()
