"""An error that was caught keeps nothing alive: the frames between have no cycle.

An exception whose own frame has it as a variable is one.  Until the next collection it
would keep what the callers have, as a pool's frame that somebody waits for.
"""

from __future__ import annotations

import gc
import mmap
import os
import weakref
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from links import BIG, is_trio, linux_only
from transports import opened

import aiozerocopy as azc
from aiozerocopy.client import FrameClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = [pytest.mark.anyio, pytest.mark.every_loop]


class Local:
    """What a caller has."""


def writer_without_reader() -> azc.SendStream:
    reader, writer = azc.pipe()
    reader.abort()
    return writer


async def sends() -> None:
    async with writer_without_reader() as writer:
        await writer.send(b"x")


async def puts() -> None:
    writer = writer_without_reader()
    try:
        await (await writer.put(bytes(1 << 20)))
    finally:
        writer.abort()


async def closes_late() -> None:
    reader, writer = azc.pipe()
    async with reader:
        await writer.put(bytes(8 << 20))
        await writer.aclose(linger=0.01)


async def relays_into_nothing() -> None:
    source, feed = azc.pipe()
    async with source, feed, writer_without_reader() as sink:
        await feed.send(b"x")
        await azc.relay(source, sink)


async def relays_what_is_closed() -> None:
    source, feed = azc.pipe()
    reader, sink = azc.pipe()

    async def close() -> None:
        await reader.receive()
        source.abort()

    async with reader, feed, sink, anyio.create_task_group() as group:
        await feed.send(b"x")
        group.start_soon(close)
        try:
            await azc.relay(source, sink)
        except azc.StreamClosed:
            caught = True
    if caught:  # (a group's error is a group)
        raise azc.StreamClosed("the source was closed")


async def connects_in_vain() -> None:
    async def refuse() -> azc.Stream:
        raise ConnectionRefusedError

    async with FrameClient(refuse, reconnect=False) as client:
        await client.receive()


async def writes_what_cannot_be_read() -> None:
    if is_trio():
        pytest.skip("transports are asyncio's")
    fd = os.memfd_create("short")
    os.ftruncate(fd, BIG)
    memory = mmap.mmap(fd, BIG)
    os.ftruncate(fd, 0)
    os.close(fd)
    async with opened() as end:
        end.transport.writelines([memory, memory])


ACTIONS = [
    *(sends, puts, closes_late, relays_into_nothing, relays_what_is_closed),
    connects_in_vain,
    pytest.param(writes_what_cannot_be_read, marks=linux_only),
]


async def called(
    action: Callable[[], Awaitable[None]],
) -> weakref.ReferenceType[Local]:
    local = Local()
    try:
        await action()
    except (azc.StreamBroken, azc.StreamClosed, OSError, BufferError):
        return weakref.ref(local)
    pytest.fail("it did not fail")


@pytest.mark.parametrize("action", ACTIONS)
async def test_nothing_is_kept(action: Callable[[], Awaitable[None]]) -> None:
    gc.collect()
    gc.disable()
    try:
        local = await called(action)
        await anyio.lowlevel.checkpoint()  # asyncio has what woke the task until then
        assert local() is None
    finally:
        gc.enable()
