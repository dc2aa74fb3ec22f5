"""Threads, each with a loop, that share a pool and pass frames to each other.

Each byte is checked, and each buffer is changed as soon as it is the caller's again.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import queue
import random
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
from interruption import is_exported
from links import FREE_THREADED, begun_in_thread, fork, linux_only
from oracle import HEADER, Checker, message, poison

import aiozerocopy as azc
from aiozerocopy import sync

pytestmark = linux_only

SECONDS = float(os.environ.get("AZC_THREADS_SECONDS", "4"))
OPTIONS: tuple[dict[str, Any], ...] = ({}, {"use_uvloop": True}, {}, {"debug": True})
LOOPS = tuple(zip(("asyncio", "asyncio", "trio", "asyncio"), OPTIONS, strict=True))
SIZES = (0, 500, 3_000, 70_000, 300_000)
ids = itertools.count()  # for streams of messages


def used(data: bytearray) -> None:
    assert not is_exported(data)
    poison(data)


class Numbered:
    def __init__(self, dice: random.Random) -> None:
        self.dice, self._id, self._numbers = dice, next(ids), itertools.count()

    def next(self) -> bytearray:
        return message(self._id, next(self._numbers), self.dice.choice(SIZES))


class Crowd:
    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.end = time.monotonic() + 1  # then each stream moves to another loop
        self.pool = azc.FramePool(HEADER.size + SIZES[-1], slots=5)
        self.given: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.failed: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def begin(self, work: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        self.threads.append(thread)
        return thread

    async def send(self, stream: azc.SendStream) -> None:
        mine = Numbered(random.Random(self.dice.random()))
        ways = (self.frame, self.put, self.pieces, self.many, self.cancelled)
        while time.monotonic() < self.end:
            await mine.dice.choice(ways)(stream, mine)
            if mine.dice.random() < 0.02:
                gc.collect()

    async def _filled(self, data: bytearray) -> tuple[azc.Frame, memoryview]:
        frame = await self.pool.acquire()
        frame.view[: len(data)] = data
        return frame, frame.view[: len(data)]

    async def frame(self, stream: azc.SendStream, mine: Numbered) -> None:
        frame, part = await self._filled(mine.next())
        await stream.send(part)
        poison(part)
        self.given.put((frame, part))

    async def put(self, stream: azc.SendStream, mine: Numbered) -> None:
        frame, part = await self._filled(mine.next())
        ticket = await stream.put(part)
        self.given.put((frame, part, ticket))
        del frame, part
        await ticket

    async def pieces(self, stream: azc.SendStream, mine: Numbered) -> None:
        data = mine.next()
        kind = mine.dice.choice((bytes, bytearray, memoryview))
        await stream.send(kind(data)[:9], kind(data)[9:])
        used(data)

    async def many(self, stream: azc.SendStream, mine: Numbered) -> None:
        messages = [mine.next() for _ in range(5)]
        await stream.send_many(messages)
        for data in messages:
            used(data)

    async def cancelled(self, stream: azc.SendStream, mine: Numbered) -> None:
        data = Numbered(mine.dice).next()  # arrives whole or not at all
        with anyio.move_on_after(mine.dice.random() / 1000):
            await stream.send(data)
        used(data)

    async def both(self, sending: azc.SendStream, receiving: azc.ReceiveStream) -> None:
        async def send() -> None:
            await self.send(sending)
            await anyio.to_thread.run_sync(other.join)
            await sending.aclose()

        other = self.begin(partial(self.from_thread, sending.send_from_thread))
        checker = Checker()
        async with receiving, anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            async for data in receiving:
                checker.feed(data)
        checker.finish()

    def from_thread(self, send: Callable[[bytearray], object]) -> None:
        mine = Numbered(random.Random(self.dice.random()))
        while time.monotonic() < self.end:
            send(data := mine.next())
            used(data)

    def blocking(self) -> None:
        """Three threads send on one stream of `sync`, and this thread receives."""

        def wait(data: bytearray) -> None:
            writer.put(data).wait()

        reader, writer = sync.pipe()
        checker = Checker()
        sends = (writer.send, writer.send, wait)
        senders = [self.begin(partial(self.from_thread, each)) for each in sends]

        def close() -> None:
            for each in senders:
                each.join()
            writer.close()

        with reader:
            self.begin(close)
            for data in reader:
                checker.feed(data)
        checker.finish()


def reap(child: int) -> None:
    """Wait until a forked child has ended.

    Without the GIL, Python's own locks may be held in the child for ever by threads
    that it lacks: see docs/pages/threads.md.  Such a child is killed.
    """
    if FREE_THREADED:
        with open(os.pidfd_open(child)) as end:
            if not select.select([end], [], [], 10)[0]:
                os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def play(crowd: Crowd) -> None:
    ends = (partial(azc.socketpair, peer="reads"), azc.pipe)
    pairs = [ends[n % 2]() for n in range(len(LOOPS))]
    for n, (backend, options) in enumerate(LOOPS):
        receiving, sending = pairs[n][0], pairs[n - 1][1]
        here: dict[str, Any] = {"backend": backend, "backend_options": options}
        crowd.begin(partial(anyio.run, crowd.both, sending, receiving, **here))
    crowd.begin(crowd.blocking)
    if (child := fork()) == 0:
        os._exit(0)
    reap(child)
    dropping = threading.Thread(target=deque, args=(iter(crowd.given.get, None), 0))
    dropping.start()
    for thread in crowd.threads:  # the list grows meanwhile
        thread.join()
    crowd.given.put(None)
    dropping.join()
    assert not crowd.failed, crowd.failed
    assert crowd.pool.stats.free == 5


@pytest.mark.timeout(60 + SECONDS)
def test_a_slot_has_one_owner() -> None:
    pool = azc.FramePool(8, slots=3)
    end = time.monotonic() + SECONDS / 4

    def own(mine: bytes) -> None:
        while time.monotonic() < end:
            with contextlib.suppress(anyio.WouldBlock), pool.acquire_nowait() as frame:
                frame.view[:] = mine
                time.sleep(0)
                assert frame.view == mine

    ends = [begun_in_thread(own, bytes(8 * [n])) for n in range(4)]
    assert [end() for end in ends] == [None] * 4
    assert pool.stats.free == 3


@pytest.mark.timeout(60 + 3 * SECONDS)
def test_threads_with_their_loops() -> None:
    pytest.importorskip("uvloop")
    print("seed", seed := int(os.environ.get("AZC_SEED", time.time_ns() % 1_000_000)))
    dice = random.Random(seed)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        play(Crowd(dice))
