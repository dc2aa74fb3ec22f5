"""Forks at random points, while frames and heap buffers are on their way.

The child stores into all that it inherited, tries the parent's streams, which are dead
there, opens one of its own, and leaves.  To the parent's readers that makes no
difference.  AZC_FORKS says how often.
"""

import os
import random
import signal
import threading
import warnings
from pathlib import Path
from typing import Any, NoReturn

import anyio
import anyio.lowlevel
import figures
import pytest
from links import LENDING, linux_only, open_link, reading, until
from oracle import CANARY, Checker, message, poison

import aiozerocopy as azc

pytestmark = [linux_only, pytest.mark.anyio, pytest.mark.timeout(600)]

FORKS = int(os.environ.get("AZC_FORKS", "10"))
SIZE = 250_000


def fork() -> int:
    with warnings.catch_warnings():  # Python warns of threads, which is the point
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def live_as_child(stream: azc.SendStream, memory: list[Any]) -> NoReturn:
    """(In a thread: in this one, the parent's loop seems to run.)"""
    signal.alarm(10)
    codes = [3]

    def run() -> None:
        codes.append(child(stream, memory))

    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        os._exit(codes[-1])


def child(stream: azc.SendStream, memory: list[Any]) -> int:
    """0 if all is as promised; what it is else is a line here."""
    for each in memory:
        poison(each, CANARY)
    try:
        stream.send_from_thread(b"from the child")
        return 1
    except azc.StreamClosed:
        pass
    stream.abort()

    async def use_own() -> None:
        async with azc.pipe() as (reader, writer):
            await writer.send(b"x" * 1000)
            assert await reader.receive(1000) == b"x" * 1000

    try:
        anyio.run(use_own)
    except BaseException:
        return 2
    return 0


class Sender:
    """One stream, whose buffers can be looked at while they are borrowed."""

    def __init__(self, stream: azc.SendStream, lends: bool) -> None:
        self.stream = stream
        self.memory: list[Any] = []
        self.sent = 0
        self.is_over = False
        self._pool = azc.FramePool(SIZE, slots=2) if lends else None

    async def has_sent(self, more: int) -> None:
        due = self.sent + more
        await until(lambda: self.sent >= due)

    async def run(self) -> None:
        async with self.stream:
            while not self.is_over:
                data = message(1, self.sent, SIZE - 32)
                if self._pool is None:
                    self.memory = [memoryview(data)]
                    await self.stream.send(data)
                    poison(data)
                else:
                    frame = await self._pool.acquire()
                    frame.view[:] = data
                    self.memory = [frame.view]
                    if self.sent % 2:
                        await self.stream.put(frame)  # lent on after the release
                    else:
                        await self.stream.send(frame)
                        poison(frame.view)
                    self.memory = []
                    frame.release()
                self.sent += 1
            self.memory = []


@pytest.mark.parametrize("kind", ["pipe", *LENDING, "unix", "tcp4"])
async def test_forks_under_load(kind: str, tmp_path: Path) -> None:
    checker = Checker()
    dice = random.Random(kind)
    with open_link(kind, tmp_path) as link:
        async with reading(link, checker.feed):
            sender = Sender(link.sender(), link.lends)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(sender.run)
                for _ in range(FORKS):
                    await sender.has_sent(dice.randrange(3))
                    for _ in range(dice.randrange(20)):
                        await anyio.lowlevel.checkpoint()
                    pid = fork()
                    if not pid:
                        live_as_child(sender.stream, sender.memory)
                    status = await anyio.to_thread.run_sync(os.waitpid, pid, 0)
                    assert os.waitstatus_to_exitcode(status[1]) == 0
                sender.is_over = True
    checker.finish()
    assert checker.counts == {1: sender.sent}
    figures.count("forks under load", FORKS)
