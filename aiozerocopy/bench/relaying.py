"""What the relays written in Python do: one process each, started by `relay`.

Every function moves all bytes from the standard input to an fd.  A file is read through
`Job.file`, so that whoever can only read a pipe's fd is not given one.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import stat
import sys
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from os import fdopen, fstat, set_blocking
from typing import TYPE_CHECKING, Any

from aiozerocopy.bench.frames import cpu
from aiozerocopy.bench.network import run_on, tell

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from io import FileIO

    from anyio.abc import ByteReceiveStream, ByteSendStream

    from aiozerocopy import ReceiveStream, SendStream

CHUNK = 256 << 10  # bytes that are received, and sent, at a time
IN = 0


@dataclass
class Job:
    way: str
    loop: str
    fd: int  # a pipe or socket
    total: int  # bytes to move

    cpu_at_start: float = 0.0

    def begin(self) -> None:
        """All is open: what comes now is the work."""
        self.cpu_at_start = cpu()

    def report(self) -> None:
        used = cpu() - self.cpu_at_start
        tell({"who": "sender", "cpu": used, "calls": None})

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(fstat(IN).st_mode)

    @property
    def is_socket(self) -> bool:
        return stat.S_ISSOCK(fstat(self.fd).st_mode)

    def file(self) -> FileIO:
        return fdopen(IN, "rb", buffering=0)

    def socket(self) -> socket.socket:
        return socket.socket(fileno=self.fd)


# ---- aiozerocopy ------------------------------------------------------------------


async def our_sink(job: Job, stack: AsyncExitStack) -> SendStream:
    from aiozerocopy import open_writer

    set_blocking(job.fd, False)  # as all are that this package has made
    return await stack.enter_async_context(open_writer(job.fd))


async def our_source(stack: AsyncExitStack) -> ReceiveStream:
    from aiozerocopy import open_reader

    return await stack.enter_async_context(open_reader(IN))


async def relay(job: Job) -> None:
    from aiozerocopy import relay

    async with AsyncExitStack() as stack:
        source = IN if job.is_file else await our_source(stack)
        sink = await our_sink(job, stack)
        job.begin()
        await relay(source, sink, job.total)


async def receive_and_send(job: Job) -> None:
    async with AsyncExitStack() as stack:
        source, sink = await our_source(stack), await our_sink(job, stack)
        await pass_on(job, source, sink)


async def pass_on(job: Job, source: ByteReceiveStream, sink: ByteSendStream) -> None:
    """The loop that anybody would write."""
    job.begin()
    left = job.total
    while left:
        data = await source.receive(min(CHUNK, left))
        left -= len(data)
        await sink.send(data)


# ---- others -------------------------------------------------------------------------


async def anyio_receive_and_send(job: Job) -> None:
    from anyio.abc import SocketStream
    from anyio.streams.file import FileReadStream, FileWriteStream

    source = FileReadStream(fdopen(IN, "rb", buffering=0))
    sink: ByteSendStream
    if job.is_socket:
        sink = await SocketStream.from_socket(job.socket())
    else:
        sink = FileWriteStream(fdopen(job.fd, "wb", buffering=0))
    async with source, sink:
        await pass_on(job, source, sink)


async def copyfileobj(job: Job) -> None:
    """In a thread, as an asyncio program has to."""
    with job.file() as source, fdopen(job.fd, "wb", buffering=0) as sink:
        job.begin()
        await asyncio.to_thread(shutil.copyfileobj, source, sink, CHUNK)


async def sendfile(job: Job) -> None:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=job.socket())
    with closing(transport), job.file() as source:
        job.begin()
        await loop.sendfile(transport, source, 0, job.total, fallback=False)


WAYS: dict[str, Callable[[Job], Awaitable[None]]] = {
    function.__name__: function
    for function in (
        relay,
        receive_and_send,
        anyio_receive_and_send,
        copyfileobj,
        sendfile,
    )
}


def main() -> None:
    told: dict[str, Any] = json.loads(sys.argv[1])
    job = Job(**told)

    async def run() -> None:
        await WAYS[job.way](job)
        job.report()  # before the interpreter ends, which is not part of the work

    run_on(job.loop, run())


if __name__ == "__main__":
    main()
