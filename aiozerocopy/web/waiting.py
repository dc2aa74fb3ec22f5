"""Waiting for the first of several things to end, or for a viewer to leave."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import anyio

from aiozerocopy.web.http import READ_SIZE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiozerocopy.web.secure import Connection

MAX_WORDS = 64  # pieces of at most READ_SIZE: who only watches has nothing to say

PEER_LEFT = (
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    TimeoutError,
)


async def first_to_end(*waits: Callable[[], Awaitable[object]]) -> int:
    """Run them side by side until one returns, or finds that the peer left; which?"""
    ended: list[int] = []

    async def run(number: int, wait: Callable[[], Awaitable[object]]) -> None:
        with contextlib.suppress(*PEER_LEFT):
            await wait()
        ended.append(number)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for number, wait in enumerate(waits):
            tasks.start_soon(run, number, wait)
    return ended[0]


async def until_silent(stream: Connection) -> None:
    """Forget what comes, until the viewer closes its half, or has said too much."""
    with contextlib.suppress(*PEER_LEFT):
        for _ in range(MAX_WORDS):
            await stream.receive(READ_SIZE)
