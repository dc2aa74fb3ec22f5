"""A thousand clients a second that come and go, and others who watch meanwhile."""

import gc
import os
import resource
import sys
from typing import Any

import anyio
import numpy as np
import pytest

pytest.importorskip("h11")
pytest.importorskip("wsproto")

from collections.abc import AsyncIterator, Callable

from links import until
from own_threads import thread_ids
from soak.samples import private

import aiozerocopy as azc
from aiozerocopy import web
from aiozerocopy.broadcast import Broadcast
from aiozerocopy.framing import FrameReceiver

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.quiet,
    pytest.mark.timeout(60),
]

CLIENTS = 100
FEW_THREADS = 4
EACH = 200_000  # bytes of memory for a client

RATE = 1200  # a second, so that a thousand are left on a busy machine
SECONDS = 3

# Connects, says nothing or something, and leaves: with FIN and RST by turns.
VISITORS = """
import socket, struct, sys, time
port, count, rate = map(int, sys.argv[1:])
words = [b"", b"GET / HT", b"GET /healthz HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n"]
reset = struct.pack("ii", 1, 0)
start = time.monotonic()
for number in range(count):
    time.sleep(max(0, start + number / rate - time.monotonic()))
    with socket.create_connection(("127.0.0.1", port)) as visitor:
        if number % 2:
            visitor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        visitor.sendall(words[number % 3])
print(count / (time.monotonic() - start))
"""

RAW = (
    b"GET /raw HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
FRAME = np.zeros((36, 64, 3), np.uint8)
MESSAGE = 4 + 32 + FRAME.nbytes  # of a WebSocket: its header, ours, the pixels


async def frames_over_websocket(stream: azc.Stream) -> AsyncIterator[int]:
    await stream.send(RAW)
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += await stream.receive(1)
    message = bytearray(MESSAGE)
    while True:
        await stream.receive_exactly(memoryview(message)[:2])
        if message[0] == 0x89:  # a ping, without content
            continue
        await stream.receive_exactly(memoryview(message)[2:])
        yield int.from_bytes(message[20:28], "little")


async def frames_of_ours(stream: azc.Stream) -> AsyncIterator[int]:
    async for frame in FrameReceiver(stream):
        yield frame.sequence


def resident() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


class Watch:
    """A viewer that must get every frame, and what the process had at the most."""

    def __init__(self, hub: Broadcast) -> None:
        self.hub = hub
        self.numbers: list[int] = []
        self.fds = 0

    async def publish(self) -> None:
        while True:
            await self.hub.publish(FRAME)
            self.fds = max(self.fds, len(os.listdir("/proc/self/fd")))
            await anyio.sleep(1 / 60)

    async def view(
        self, port: int, frames: Callable[[azc.Stream], AsyncIterator[int]]
    ) -> None:
        async with azc.connect_tcp("127.0.0.1", port) as stream:
            async for number in frames(stream):
                self.numbers.append(number)


async def visit(port: int, seconds: float) -> float:
    """How many a second came."""
    count = str(int(RATE * seconds))
    done = await anyio.run_process(
        [sys.executable, "-c", VISITORS, str(port), count, str(RATE)]
    )
    return float(done.stdout)


@pytest.mark.parametrize(
    ("kind", "anyio_backend"),
    # (in debug mode asyncio itself is slower than what is asked of it here)
    [("web", ("asyncio", {})), ("tcp", ("trio", {}))],
    ids=["web", "tcp"],
)
async def test_a_thousand_come_and_go_each_second(
    anyio_backend: object, kind: str
) -> None:
    async with Broadcast() as hub:
        watch = Watch(hub)

        async def handler(stream: azc.Stream) -> None:
            await hub.attach(stream).wait_closed()

        server: Any = web.serve(hub) if kind == "web" else azc.serve_tcp(handler)
        frames = frames_over_websocket if kind == "web" else frames_of_ours
        async with server, anyio.create_task_group() as tasks:
            inner = server._server if kind == "web" else server
            tasks.start_soon(watch.view, server.port, frames)
            await until(lambda: inner.connections == 1)
            tasks.start_soon(watch.publish)
            await visit(server.port, 0.5)
            await until(lambda: inner.connections == 1)
            before = resident()
            fds = len(os.listdir("/proc/self/fd"))
            rate = await visit(server.port, SECONDS)
            await until(lambda: inner.connections == 1)
            growth = resident() - before
            left = len(os.listdir("/proc/self/fd")) - fds
            tasks.cancel_scope.cancel()
        seen = watch.numbers
        print(f"{kind}: {rate:.0f}/s, {growth:,} bytes, at most {watch.fds} fds")
    assert rate >= 1000
    assert seen == list(range(seen[0], seen[0] + len(seen)))
    assert hub.sequence - seen[-1] < 60  # it is shown what is new
    assert len(seen) > 15 * SECONDS  # (60 a second, or what is left to the loop)
    assert growth < 8 << 20
    assert left <= 0
    assert watch.fds < 600


async def test_clients_share_threads_and_memory() -> None:
    """Nothing that a client costs the process is a thread, or a copy of a frame."""
    frame = np.zeros(1 << 20, np.uint8)
    async with Broadcast() as hub:
        ends: list[azc.Stream] = []
        await hub.publish(frame)
        memory, threads = private(), len(thread_ids())
        for _ in range(CLIENTS):
            near, far = azc.socketpair()
            ends += near, far
            hub.attach(near)
        for _ in range(5):
            await hub.publish(frame)  # of which nobody reads a byte
        assert len(thread_ids()) - threads <= FEW_THREADS
        assert private() - memory < EACH * CLIENTS + (16 << 20)
        for end in ends:
            end.abort()
