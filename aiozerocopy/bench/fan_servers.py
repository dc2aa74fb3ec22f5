"""The servers of the bench `fanout`: one frame to many clients, in one of the `WAYS`.

Each runs in a process of its own (``python -m``), which also starts the process of the
`clients`.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import socket
import subprocess
import sys
import time
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiozerocopy.bench.clients import PREFIX
from aiozerocopy.bench.frames import cpu
from aiozerocopy.bench.network import command, run_on, tell

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

Address = tuple[str, int] | str  # as `socket.getsockname` has it


@dataclass(frozen=True)
class Job:
    """What a server process is told."""

    way: str
    loop: str
    clients: int
    link: str
    size: int
    warm: int  # frames
    frames: int
    fps: float  # or 0: as fast as possible
    pattern: str
    check: bool
    folder: str  # for the times: nanoseconds, as 64 bits each

    @property
    def framing(self) -> str:
        return "wire" if self.way in ("broadcast", "c_loop") else "websocket"

    @property
    def path(self) -> str:
        """Of the UNIX socket to serve at, or nothing."""
        return str(self.file(f"socket-{os.getpid()}")) if self.link == "unix" else ""

    def file(self, name: str) -> Path:
        return Path(self.folder) / name

    def ages(self) -> list[float]:
        """Seconds, of each frame that counts at each client."""
        published, arrived = (
            array("q", self.file(name).read_bytes())
            for name in ("published", "arrived")
        )
        return [
            (there - published[number % len(published)]) / 1e9
            for number, there in enumerate(arrived)
            if number % len(published) >= self.warm
        ]


class Publisher:
    """Publishes the frames of a job once all clients are there, and measures."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.frame: bytes = Path(job.pattern).read_bytes()
        self.clients: list[Any] = []
        self.everybody: asyncio.Event = asyncio.Event()
        self.over: asyncio.Event = asyncio.Event()
        self.published: array[int] = array("q")

    def add(self, client: Any) -> None:
        self.clients.append(client)
        if len(self.clients) == self.job.clients:
            self.everybody.set()

    async def run(
        self,
        address: Address,
        send: Callable[[], Awaitable[object]],
        left: Callable[[Any], int] | None = None,
    ) -> None:
        """``send`` returns when the next frame may follow; ``left`` returns how much of
        a client's is not sent yet."""
        told = {"address": address, "framing": self.job.framing, **self.job.__dict__}
        small = peak_memory()
        sink = subprocess.Popen(command("clients", told))  # noqa: ASYNC220
        await self.everybody.wait()
        await self._publish(self.job.warm, send)
        started, before = time.perf_counter(), cpu()
        await self._publish(self.job.frames, send)
        if left is not None:
            await drained(left, self.clients)
        report = {
            "who": "sender",
            "seconds": time.perf_counter() - started,
            "cpu": cpu() - before,
            "memory": peak_memory() - small,
        }
        self.job.file("published").write_bytes(self.published)
        tell(report)
        await asyncio.get_running_loop().run_in_executor(None, sink.wait)
        self.over.set()

    async def _publish(
        self, frames: int, send: Callable[[], Awaitable[object]]
    ) -> None:
        started = time.perf_counter()
        for number in range(frames):
            if self.job.fps:
                due = started + number / self.job.fps
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            self.published.append(time.monotonic_ns())
            await send()


def peak_memory() -> int:
    """The most memory that this process has had so far, in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


async def broadcast(publisher: Publisher) -> None:
    import aiozerocopy
    from aiozerocopy.broadcast import Broadcast

    async def watch(stream: aiozerocopy.Stream) -> None:
        client = hub.attach(stream, policy="block")
        publisher.add(client)
        await client.wait_closed()

    path = publisher.job.path
    serving = (
        aiozerocopy.serve_unix(watch, path) if path else aiozerocopy.serve_tcp(watch)
    )
    frame = bytearray(publisher.frame)  # (unlike bytes, it must be copied)
    async with Broadcast() as hub, serving as server:
        await publisher.run(
            server.addresses[0],
            lambda: hub.publish(frame),
            lambda client: client.stats.queued,
        )
        await hub.aclose(0)


async def websockets(publisher: Publisher) -> None:
    from websockets.asyncio import server

    async def watch(connection: server.ServerConnection) -> None:
        publisher.add(connection)
        await publisher.over.wait()
        connection.transport.abort()

    def left(connection: server.ServerConnection) -> int:
        return int(connection.transport.get_write_buffer_size())

    async def send() -> None:
        server.broadcast(publisher.clients, publisher.frame)
        # It never waits by itself: so let one frame be queued, as with the others.
        for connection in publisher.clients:
            if connection.paused:
                await connection.drain()

    # Without compression and pings: as fast as it can be.
    options: dict[str, Any] = {
        "compression": None,
        "ping_interval": None,
        "write_limit": (publisher.job.size, publisher.job.size),
        "backlog": 2048,
    }
    path = publisher.job.path
    async with (
        server.unix_serve(watch, path, **options)
        if path
        else server.serve(watch, "127.0.0.1", 0, **options)
    ) as serving:
        await publisher.run(next(iter(serving.sockets)).getsockname(), send, left)


async def aiohttp(publisher: Publisher) -> None:
    from aiohttp import web

    async def watch(request: web.Request) -> web.WebSocketResponse:
        response = web.WebSocketResponse(compress=False, timeout=0.1)
        await response.prepare(request)
        publisher.add(response)
        await publisher.over.wait()
        return response

    async def send() -> None:
        await asyncio.gather(
            *(client.send_bytes(publisher.frame) for client in publisher.clients)
        )

    application = web.Application()
    application.router.add_get("/", watch)
    runner = web.AppRunner(application)
    await runner.setup()
    path = publisher.job.path
    site = (
        web.UnixSite(runner, path, backlog=2048)
        if path
        else web.TCPSite(runner, "127.0.0.1", 0, backlog=2048)
    )
    await site.start()
    await publisher.run(runner.addresses[0], send)
    await runner.cleanup()


async def drained(left: Callable[[Any], int], clients: Sequence[Any]) -> None:
    """Wait until every client was sent all, with little work of our own."""
    for client in clients:
        while left(client):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.0005)


async def c_loop(publisher: Publisher) -> None:
    """No server, only the system calls: a frame goes to all, and then the next."""
    path = publisher.job.path
    library = ctypes.CDLL(str(publisher.job.file("fan.so")))
    frame = bytes(PREFIX["wire"]) + publisher.frame
    fds = (ctypes.c_int * publisher.job.clients)()

    async def accept(listener: socket.socket) -> None:
        for number in range(len(fds)):
            client, _ = await asyncio.get_running_loop().sock_accept(listener)
            if not path:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            fds[number] = client.fileno()
            publisher.add(client)

    async def send() -> None:
        if library.send_to_all(fds, len(fds), frame, ctypes.c_size_t(len(frame))):
            raise ConnectionError("a client of the C loop has left")

    family = socket.AF_UNIX if path else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind(path or ("127.0.0.1", 0))
        listener.listen(2048)
        listener.setblocking(False)
        accepting = asyncio.create_task(accept(listener))
        await publisher.run(listener.getsockname(), send)
        await accepting
    for client in publisher.clients:
        client.close()


WAYS = {
    "broadcast": broadcast,
    "websockets": websockets,
    "aiohttp": aiohttp,
    "c_loop": c_loop,
}


def serve(job: Job) -> None:
    async def main() -> None:
        await WAYS[job.way](Publisher(job))

    run_on(job.loop, main())


if __name__ == "__main__":
    serve(Job(**json.loads(sys.argv[1])))
