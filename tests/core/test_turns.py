"""Methods that are `in_turn`: a signal's exception at any line ends the turn."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import anyio
import pytest
from anyio.abc import ByteSendStream
from interruption import LOOPS, Interruption, Lines, hit_each_line, run_on
from links import linux_only

import aiozerocopy as azc
from aiozerocopy._core.binding import PORTABLE
from aiozerocopy._core.change import Turns, in_turn
from aiozerocopy._net.foreign_streams import WholeSender
from aiozerocopy.broadcast import Broadcast
from aiozerocopy.ffmpeg.converters import SendingConverter
from aiozerocopy.ffmpeg.layouts import Layout

pytestmark = [
    linux_only,
    pytest.mark.skipif(PORTABLE, reason="the portable build has no rings"),
]

USING = "_net", "broadcast.hub", "ffmpeg.converters", "shm.fanout"
ROOMS = ("_core.change", "_core.borrows", *USING)
FRAME, LAYOUT = bytes(300), Layout("gray", (20, 15), (15, 20))
PATIENCE = 5.0


class Room(ByteSendStream):
    """A room for one task at a time."""

    def __init__(self) -> None:
        self._turns = Turns()
        self.is_used = False

    @in_turn
    async def send(self, item: bytes) -> None:
        assert not self.is_used
        try:
            self.is_used = True
            await anyio.lowlevel.checkpoint()
        finally:
            self.is_used = False

    put: Any = send

    async def aclose(self) -> None: ...


USERS: dict[str, tuple[Callable[[], Any], str]] = {
    "a method": (Room, "send"),
    "foreign": (lambda: WholeSender(Room()), "send"),
    "hub": (Broadcast, "publish"),
    "fanout": (lambda: azc.shm.FanOut(), "send"),
    "converter": (lambda: SendingConverter(cast("Any", Room()), LAYOUT), "put"),
}


async def be_hit(name: str, lines: Lines) -> list[str]:
    """Three tasks want a turn; one is interrupted, and the others still get theirs."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    make, method = USERS[name]
    it = make()
    call: Callable[[], Awaitable[object]] = partial(getattr(it, method), FRAME)
    with lines:
        tasks = [asyncio.ensure_future(call()) for _ in range(3)]
        _, left = await asyncio.wait(tasks, timeout=PATIENCE)
    tasks.append(asyncio.ensure_future(call()))
    _, late = await asyncio.wait(tasks[3:], timeout=PATIENCE)
    found = ["the turn is not over"] * bool(left or late or it._turns)
    for task in tasks:
        task.cancel()
    for error in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(error, (Interruption, azc.StreamBroken, type(None))):
            found.append(repr(error))
    return found


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", USERS)
def test_one_line_after_the_other(name: str, loop: str) -> None:
    run_on(loop, partial(hit_each_line, partial(be_hit, name), ROOMS))
