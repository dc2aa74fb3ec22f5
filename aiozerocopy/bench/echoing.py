"""The two processes of an echo: one asks, the other answers with what it got.

Who asks is the same for all contestants: a plain socket, which sends a message and
takes the answer at the same time, then the next.
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiozerocopy.bench.frames import cpu
from aiozerocopy.bench.network import run_on, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

READ_SIZE = 64 << 10


@dataclass
class Job:
    role: str  # "ask" or "answer"
    fd: int
    size: int
    warm: int
    messages: int
    pattern: str
    check: bool = False
    face: str = "protocol"  # or "buffered", or "streams"
    loop: str = "asyncio"
    is_ours: bool = False

    def socket(self) -> socket.socket:
        sock = socket.socket(fileno=self.fd)
        sock.setblocking(False)
        return sock


# ---- who asks -----------------------------------------------------------------------


def ask(job: Job) -> None:
    data = Path(job.pattern).read_bytes()
    messages = [
        memoryview(data)[at : at + job.size] for at in range(0, len(data), job.size)
    ]
    answer = memoryview(bytearray(job.size))
    wrong, start, used = -1, time.perf_counter(), cpu()
    with job.socket() as sock:
        ready = select.poll()
        ready.register(sock, select.POLLIN)
        for number in range(job.warm + job.messages):
            if number == job.warm:
                start, used = time.perf_counter(), cpu()
            message = messages[number % len(messages)]
            _exchange(sock, ready, message, answer)
            if job.check and wrong < 0 and answer != message:
                wrong = number
    tell(
        {
            "who": "sink",
            "seconds": time.perf_counter() - start,
            "cpu": cpu() - used,
            "wrong": wrong,
        }
    )


def _exchange(
    sock: socket.socket, ready: select.poll, message: memoryview, answer: memoryview
) -> None:
    sent = got = 0
    while got < len(message):
        try:
            if sent < len(message):
                sent += sock.send(message[sent:])
        except BlockingIOError:
            pass
        ready.modify(sock, select.POLLIN | select.POLLOUT * (sent < len(message)))
        ready.poll()
        try:
            n = sock.recv_into(answer[got:])
        except BlockingIOError:
            continue
        if not n:
            raise ConnectionError("who answers has left")
        got += n


# ---- who answers --------------------------------------------------------------------


class Echo(asyncio.Protocol):
    """Without flow control: one message is on its way."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(None)


class BufferedEcho(asyncio.BufferedProtocol, Echo):
    """The same with a buffer of its own, of which it writes copies."""

    def __init__(self) -> None:
        super().__init__()
        self._view = memoryview(bytearray(256 << 10))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        self.transport.write(bytes(self._view[:nbytes]))


async def by_protocol(job: Job) -> None:
    factory: Callable[[], Any] = BufferedEcho if job.face == "buffered" else Echo
    create: Any = asyncio.get_running_loop().create_connection
    if job.is_ours:
        from aiozerocopy.transport import create_connection as create
    _, protocol = await create(factory, sock=job.socket())
    await protocol.lost


async def by_streams(job: Job) -> None:
    open_connection: Any = asyncio.open_connection
    if job.is_ours:
        from aiozerocopy.transport import open_connection
    reader, writer = await open_connection(sock=job.socket())
    while data := await reader.read(READ_SIZE):
        writer.write(data)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


async def answer(job: Job) -> None:
    if job.is_ours:
        import aiozerocopy.transport  # noqa: F401 - before the clock runs
    used = cpu()
    work: Coroutine[Any, Any, None] = (
        by_streams(job) if job.face == "streams" else by_protocol(job)
    )
    await work
    tell({"who": "sender", "cpu": cpu() - used, "calls": None})


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    if job.role == "ask":
        ask(job)
    else:
        run_on(job.loop, answer(job))


if __name__ == "__main__":
    main()
