"""One message to many channels: what is borrowed, and from where it goes on."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest
from links import until
from oracle import assert_same, payload, poison

import aiozerocopy as azc
from aiozerocopy._core.to_all import Shared, move_to_copy, send_to_all

if TYPE_CHECKING:
    from aiozerocopy._core.borrows import Operation

pytestmark = pytest.mark.anyio

BIG = 1 << 20  # more than a socket pair takes by itself


async def test_memory_is_given_back_and_that_of_the_copy_is_kept() -> None:
    """The first has begun and goes on from a copy; the second becomes another."""
    near, far = azc.socketpair()
    async with near, far:
        port = near._enter().port
        wanted = payload(1, BIG).tobytes() + payload(3, BIG).tobytes()
        old = [bytearray(payload(number, BIG)) for number in (1, 2)]
        channels = [near._out]

        def queue(data: bytearray) -> tuple[Shared, Operation]:
            near._out.bind_port(port, near._budget)
            message = Shared([data])
            (operation,) = send_to_all(channels, port, message)
            assert operation is not None
            return message, operation

        first, begun = queue(old[0])
        second, waits = queue(old[1])
        copy = Shared([first.copied()])
        move_to_copy(channels, port, [begun], copy, None)
        newer = Shared([bytearray(payload(3, BIG))])
        move_to_copy(channels, port, [waits], None, newer)
        assert (begun.is_newer, waits.is_newer) == (False, True)
        await until(lambda: len(begun.views) == 1)
        del first, second, copy, newer
        gc.collect()
        for data in old:
            poison(data)
            data.append(0)  # it is exported no more
        others = [bytearray(BIG) for _ in range(8)]  # take what was freed
        received = bytearray(2 * BIG)
        await far.receive_exactly(received)
        assert_same(received, wanted)
        await until(lambda: begun.done and waits.done)
        assert (begun.status, waits.status) == (0, 0)
        del others
