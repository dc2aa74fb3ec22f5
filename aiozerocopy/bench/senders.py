"""What the senders written in Python do: one process each, started by `feeding`.

Every function sends the same messages in the same order: those of `Job.phases`, the
warm-up first.  The buffers rotate and never change, so a library that returns before
the bytes are out is not at a disadvantage.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import json
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiozerocopy.bench.frames import cpu
from aiozerocopy.bench.network import run_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator

    from aiozerocopy import SendStream, Ticket

    Message = bytes | bytearray | memoryview


@dataclass
class Job:
    way: str
    loop: str
    options: dict[str, Any]
    fd: int
    size: int
    warm: int
    messages: int
    pattern: str
    sink: list[str]
    cpu_at_start: float = 0.0
    calls: int | None = None

    def buffers(self) -> list[bytes | memoryview]:
        data = Path(self.pattern).read_bytes()
        pieces = [data[at : at + self.size] for at in range(0, len(data), self.size)]
        if self.options.get("kind") == "bytes":
            return list(pieces)
        return [memoryview(bytearray(piece)) for piece in pieces]

    def phases(self) -> Iterator[Iterable[bytes | memoryview]]:
        """The messages of the warm-up, then those that count."""
        buffers = self.buffers()
        yield itertools.islice(itertools.cycle(buffers), self.warm)
        self.mark()
        yield itertools.islice(itertools.cycle(buffers), self.messages)

    def batches(self) -> Iterator[Iterable[list[bytes | memoryview]]]:
        """The same in batches of all buffers."""
        buffers = self.buffers()
        yield itertools.repeat(buffers, self.warm // len(buffers))
        self.mark()
        yield itertools.repeat(buffers, self.messages // len(buffers))

    def mark(self) -> None:
        self.cpu_at_start = cpu()

    def report(self) -> None:
        used = cpu() - self.cpu_at_start
        report = {"who": "sender", "cpu": used, "calls": self.calls}
        os.write(1, json.dumps(report).encode() + b"\n")

    def socket(self) -> socket.socket:
        sock = socket.socket(fileno=self.fd)
        sock.setblocking(False)
        return sock


# ---- aiozerocopy ------------------------------------------------------------------


async def send_each(stream: SendStream, messages: Iterable[Message]) -> None:
    for message in messages:
        await stream.send(message)


async def put_each(
    stream: SendStream, messages: Iterable[Message], in_flight: int
) -> None:
    flying: collections.deque[Ticket] = collections.deque()
    for message in messages:
        if len(flying) == in_flight:
            await flying.popleft()
        flying.append(await stream.put(message))
    for ticket in flying:
        await ticket


async def send(job: Job) -> None:
    async with opened(job) as stream:
        for messages in job.phases():
            await send_each(stream, messages)


async def put(job: Job) -> None:
    async with opened(job) as stream:
        for messages in job.phases():
            await put_each(stream, messages, job.options["in_flight"])


async def send_many(job: Job) -> None:
    async with opened(job) as stream:
        for batches in job.batches():
            for batch in batches:
                await stream.send_many(batch)


@contextlib.asynccontextmanager
async def opened(job: Job) -> AsyncIterator[SendStream]:
    """The stream to the sink; without a link the sink is started as a child."""
    from aiozerocopy import open_process, wrap_socket

    stream: SendStream
    if job.fd >= 0:
        async with wrap_socket(job.fd) as stream:
            yield stream
    else:
        async with open_process(job.sink, stdout=None) as process:
            assert process.stdin is not None
            async with process.stdin as stream:
                yield stream
    job.calls = stream.stats.send_calls


# ---- StreamWriter, of asyncio and uvloop -------------------------------------------


async def write_and_drain(job: Job) -> None:
    writer = await stream_writer(job)
    limit = job.options.get("limit")
    if limit is not None:
        writer.transport.set_write_buffer_limits(high=limit)
    for messages in job.phases():
        for message in messages:
            writer.write(message)
            await writer.drain()
    writer.close()
    await writer.wait_closed()


async def writelines_and_drain(job: Job) -> None:
    writer = await stream_writer(job)
    for batches in job.batches():
        for batch in batches:
            writer.writelines(batch)
            await writer.drain()
    writer.close()
    await writer.wait_closed()


class Gate(asyncio.Protocol):
    """Open while the transport takes more."""

    def __init__(self) -> None:
        self.is_open: asyncio.Event = asyncio.Event()
        self.is_open.set()
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def pause_writing(self) -> None:
        self.is_open.clear()

    def resume_writing(self) -> None:
        self.is_open.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(None)


async def protocol_write(job: Job) -> None:
    create: Any = asyncio.get_running_loop().create_connection
    if job.options["is_ours"]:
        from aiozerocopy.transport import create_connection as create
    transport, gate = await create(Gate, sock=job.socket())
    for messages in job.phases():
        for message in messages:
            transport.write(message)
            if not gate.is_open.is_set():
                await gate.is_open.wait()
    transport.close()
    await gate.lost


async def stream_writer(job: Job) -> asyncio.StreamWriter:
    sock = job.socket()
    if job.options.get("is_ours"):
        from aiozerocopy.transport import open_connection

        return (await open_connection(sock=sock))[1]
    if sock.family == socket.AF_UNIX:
        return (await asyncio.open_unix_connection(sock=sock))[1]
    return (await asyncio.open_connection(sock=sock))[1]


async def child_write_and_drain(job: Job) -> None:
    process = await asyncio.create_subprocess_exec(
        *job.sink, stdin=asyncio.subprocess.PIPE
    )
    writer = process.stdin
    assert writer is not None
    for messages in job.phases():
        for message in messages:
            writer.write(message)
            await writer.drain()
    writer.close()
    await process.wait()


async def sock_sendall(job: Job) -> None:
    loop = asyncio.get_running_loop()
    with job.socket() as sock:
        for messages in job.phases():
            for message in messages:
                await loop.sock_sendall(sock, message)


WAYS: dict[str, Callable[[Job], Awaitable[None]]] = {
    function.__name__: function
    for function in (
        send,
        put,
        send_many,
        protocol_write,
        write_and_drain,
        writelines_and_drain,
        child_write_and_drain,
        sock_sendall,
    )
}


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))

    async def run() -> None:
        await WAYS[job.way](job)
        job.report()  # before the interpreter ends, which is not part of the work

    run_on(job.loop, run())


if __name__ == "__main__":
    main()
