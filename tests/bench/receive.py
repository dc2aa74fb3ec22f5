"""Messages of a known size, received over UNIX, TCP and a pipe; feed.c sends them all.

Each contender has whole messages in hand, one by one; the CPU time is its own.
"""

import asyncio
import os
import socket
import stat
from collections.abc import Iterator
from functools import partial
from typing import Any

from aiozerocopy import ReceiveStream, open_reader, wrap_socket
from bench.feeding import (
    LOOPS,
    RIVAL_LOOPS,
    Link,
    c_sink,
    fed,
    in_c,
    in_loops,
    pipe_link,
    tcp_link,
    unix_link,
)
from bench.processes import Lab
from bench.race import Duel, Race, Work, best_of
from bench.sockets import SIZES
from bench.worker import Job

IN = 0  # the link's end


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    links: dict[str, Link] = {"UNIX": unix_link, "TCP": tcp_link, "pipe": pipe_link}
    for where, link in links.items():
        for name, size in SIZES.items():
            yield race(lab, quick, where, link, name, size)


def race(lab: Lab, quick: bool, where: str, link: Link, name: str, size: int) -> Race:
    theirs: dict[str, Any] = {"{} readexactly": readexactly}
    # asyncio's pipes call data_received even if there is get_buffer
    buffered = {"{} BufferedProtocol": buffered_protocol}
    if where != "pipe":
        theirs |= {"{} sock_recv_into": sock_recv_into, **buffered}

    made = partial(in_loops, lab, link, receive=True)
    whole = partial(c_sink, lab, size, fill=True)
    sink: Any = {"receiver": whole, "measured": "sink"}
    c_loop = fed(lab, "C read loop", link, partial(in_c, lab), **sink)
    what = f"{name} messages, {where}: receive_exactly"
    messages = 8 if quick else 600_000_000 // size
    rivals = made(theirs, RIVAL_LOOPS)
    rivals += made(buffered, ["uvloop"]) if where == "pipe" else []
    return Race(
        "receive",
        f"{name}, {where}",
        Work(size, messages, warm=4 if quick else max(20, messages // 10), buffers=4),
        [*made({"receive_exactly, {}": receive_exactly}), *rivals, c_loop],
        [
            *(best_of(f"receive_exactly, {loop}", rivals, what) for loop in LOOPS),
            Duel("receive_exactly, uvloop", c_loop.name, what, "C loop of read"),
        ],
        extra=name != "1 MiB",
    )


# ---- aiozerocopy ---------------------------------------------------------------------


def opened() -> ReceiveStream:
    is_socket = stat.S_ISSOCK(os.fstat(IN).st_mode)
    return wrap_socket(IN) if is_socket else open_reader(IN)


async def receive_exactly(job: Job) -> dict[str, Any]:
    memory = job.memory()
    async with opened() as stream:
        for number in job.numbers():
            message = memory[number % len(memory)]
            await stream.receive_exactly(message)
            job.look(number, message)
    return job.received()


# ---- asyncio and uvloop --------------------------------------------------------------


async def sock_recv_into(job: Job) -> dict[str, Any]:
    loop, memory = asyncio.get_running_loop(), job.memory()
    with job.socket() as sock:
        for number in job.numbers():
            message, at = memory[number % len(memory)], 0
            while at < job.size:
                n = await loop.sock_recv_into(sock, message[at:])
                if not n:
                    raise EOFError
                at += n
            job.look(number, message)
    return job.received()


async def readexactly(job: Job) -> dict[str, Any]:
    reader = asyncio.StreamReader(limit=4 * job.size)
    await connected(job, asyncio.StreamReaderProtocol(reader))
    for number in job.numbers():
        job.look(number, await reader.readexactly(job.size))
    return job.received()


async def buffered_protocol(job: Job) -> dict[str, Any]:
    protocol = Filling(job.memory())
    await connected(job, protocol)
    for number in job.numbers():
        job.look(number, await protocol.message())
    return job.received()


async def connected(job: Job, protocol: asyncio.BaseProtocol) -> None:
    loop = asyncio.get_running_loop()
    if not stat.S_ISSOCK(os.fstat(IN).st_mode):
        await loop.connect_read_pipe(lambda: protocol, os.fdopen(IN, "rb", 0))
        return
    sock: Any = job.socket()
    create: Any = loop.create_connection
    if sock.family == socket.AF_UNIX:
        create = loop.create_unix_connection
    await create(lambda: protocol, sock=sock)


class Filling(asyncio.BufferedProtocol):
    """Fills the buffers in turn, and pauses while all are full or in use."""

    def __init__(self, memory: list[memoryview]) -> None:
        self._memory = memory
        self._filled = self._taken = self._at = 0
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiter is not None:
            self._waiter.set_exception(exc or EOFError())

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._memory[self._filled % len(self._memory)][self._at :]

    def buffer_updated(self, nbytes: int) -> None:
        self._at += nbytes
        if self._at < len(self._memory[0]):
            return
        self._at = 0
        self._filled += 1
        if self._filled - self._taken >= len(self._memory) - 1:
            self._is_paused = True
            self._transport.pause_reading()
        if self._waiter is not None:
            self._waiter.set_result(None)
            self._waiter = None

    async def message(self) -> memoryview:
        """Return the next message, whose memory may be used until the next call."""
        if self._taken == self._filled:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._taken += 1
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()
        return self._memory[(self._taken - 1) % len(self._memory)]
