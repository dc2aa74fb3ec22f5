"""One frame to many clients, beside websockets' broadcast and aiohttp.

All serve the same frames over TCP loopback to the same sink, which reads and throws
away.  A contestant is a process of this module (``python -m``) that serves in one of
the `WAYS`; it starts the sink, which is a process of this module too.  What counts is
the server's CPU seconds for each GB delivered.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiozerocopy.bench.feeding import Crew, Lab
from aiozerocopy.bench.kit import Goal, Options, Race, Run, Work, WrongBytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

FRAME = 100_000
CLIENTS = (1, 10, 100, 1000)
PICTURE = 1920 * 1080 * 3
_DELIVERED = 2_000_000_000  # bytes in one round
_PREFIX = {"wire": 128, "websocket": 10}  # before each frame, as it arrives
_HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\n\r\n"
)


def races(lab: Lab, options: Options) -> list[Race]:
    counts = CLIENTS[1:2] if options.quick else CLIENTS
    return [race(lab, options, clients) for clients in counts]


def race(lab: Lab, options: Options, clients: int) -> Race:
    frames = (5_000_000 if options.quick else _DELIVERED) // FRAME // clients
    work = Work(FRAME, clients * max(frames, 2), warm=2 * clients, buffers=1)
    ours = [
        Fan("Broadcast, asyncio", lab, "broadcast", clients),
        Fan("Broadcast, uvloop", lab, "broadcast", clients, "uvloop", ("uvloop",)),
    ]
    rivals = [
        Fan(f"{way}, {loop}", lab, way, clients, loop, needs)
        for way in ("websockets", "aiohttp")
        for loop, needs in (("asyncio", (way,)), ("uvloop", (way, "uvloop")))
    ]
    names = [rival.name for rival in rivals]
    goals = [Goal("S7", one.name, [name]) for one in ours for name in names]
    title = f"S7 {FRAME // 1000} KB to {clients:,} clients"
    return Race(title, work, [*ours, *rivals], goals)


@dataclass(frozen=True)
class Fan:
    """A server process in one of the `WAYS`, and its sink."""

    name: str
    lab: Lab
    way: str
    clients: int
    loop: str = "asyncio"
    needs: Sequence[str] = ()

    def run(self, work: Work, check: bool) -> Run:
        job = Job(
            self.way,
            self.loop,
            self.clients,
            work.size,
            work.warm // self.clients,
            work.messages // self.clients,
            self.lab.pattern(work),
            check,
        )
        crew = Crew(self.lab.path / "stderr")
        crew.start(_command("serve", job.__dict__))
        told = crew.finish()
        sink, sender = told["sink"], told["sender"]
        expected = (work.size + _PREFIX[job.framing]) * (work.warm + work.messages)
        if sink["bytes"] != expected or sink["wrong"]:
            raise WrongBytes(
                f"{self.name}: {sink['bytes']:,} bytes came and not {expected:,}; "
                f"{sink['wrong']} clients got wrong ones"
            )
        return Run(sender["seconds"], sender["cpu"], sink["cpu"], None)

    def count_calls(self, work: Work) -> float | None:
        return None


@dataclass(frozen=True)
class Job:
    """What a server process is told."""

    way: str
    loop: str
    clients: int
    size: int
    warm: int  # frames
    frames: int
    pattern: str
    check: bool

    @property
    def framing(self) -> str:
        return "wire" if self.way == "broadcast" else "websocket"


def _command(role: str, job: dict[str, Any]) -> list[str]:
    module = ["-m", "aiozerocopy.bench.fanout"]
    return [sys.executable, *module, role, json.dumps(job)]


# ---- the server -------------------------------------------------------------------


class Show:
    """The frames of a job: sends them once all clients are there, and measures."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.frame = Path(job.pattern).read_bytes()
        self.clients: list[Any] = []
        self.everybody = asyncio.Event()
        self.over = asyncio.Event()

    def add(self, client: Any) -> None:
        self.clients.append(client)
        if len(self.clients) == self.job.clients:
            self.everybody.set()

    async def run(
        self,
        port: int,
        send: Callable[[], Awaitable[object]],
        left: Callable[[Any], int] | None = None,
    ) -> None:
        """``send`` returns when a frame may follow, ``left`` says what is not out."""
        told = {"port": port, "framing": self.job.framing, **self.job.__dict__}
        sink = subprocess.Popen(_command("view", told))  # noqa: ASYNC220
        await self.everybody.wait()
        for _ in range(self.job.warm):
            await send()
        started, before = time.perf_counter(), cpu()
        for _ in range(self.job.frames):
            await send()
        if left is not None:
            await drained(left, self.clients)
        report = {
            "who": "sender",
            "seconds": time.perf_counter() - started,
            "cpu": cpu() - before,
        }
        tell(report)
        await asyncio.get_running_loop().run_in_executor(None, sink.wait)
        self.over.set()


def tell(report: dict[str, Any]) -> None:
    os.write(1, json.dumps(report).encode() + b"\n")  # in one piece


def cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def broadcast(show: Show) -> None:
    import aiozerocopy
    from aiozerocopy.broadcast import Broadcast

    async def watch(stream: aiozerocopy.Stream) -> None:
        client = hub.attach(stream, policy="block")
        show.add(client)
        await client.wait_closed()

    frame = bytearray(show.frame)  # (bytes would not have to be copied)
    async with Broadcast() as hub, aiozerocopy.serve_tcp(watch) as server:
        await show.run(
            server.port, lambda: hub.publish(frame), lambda client: client.stats.queued
        )
        await hub.aclose(0)


async def websockets(show: Show) -> None:
    from websockets.asyncio import server

    async def watch(connection: server.ServerConnection) -> None:
        show.add(connection)
        await show.over.wait()
        connection.transport.abort()

    def left(connection: server.ServerConnection) -> int:
        return connection.transport.get_write_buffer_size()

    async def send() -> None:
        server.broadcast(show.clients, show.frame)
        # It never waits by itself; so one frame waits, as with the others.
        await drained(lambda c: left(c) > show.job.size, show.clients)

    # Without compression, and without what runs beside: the best there is.
    async with server.serve(
        watch, "127.0.0.1", 0, compression=None, ping_interval=None, backlog=2048
    ) as serving:
        port = next(iter(serving.sockets)).getsockname()[1]
        await show.run(port, send, left)


async def aiohttp(show: Show) -> None:
    from aiohttp import web

    async def watch(request: web.Request) -> web.WebSocketResponse:
        response = web.WebSocketResponse(compress=False, timeout=0.1)
        await response.prepare(request)
        show.add(response)
        await show.over.wait()
        return response

    async def send() -> None:
        await asyncio.gather(
            *(client.send_bytes(show.frame) for client in show.clients)
        )

    application = web.Application()
    application.router.add_get("/", watch)
    runner = web.AppRunner(application)
    await runner.setup()
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    await web.SockSite(runner, listener).start()
    await show.run(listener.getsockname()[1], send)
    await runner.cleanup()


async def drained(left: Callable[[Any], int], clients: Sequence[Any]) -> None:
    """Wait until no client has anything left, with little work of our own."""
    for client in clients:
        while left(client):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.0005)


WAYS = {"broadcast": broadcast, "websockets": websockets, "aiohttp": aiohttp}


def serve(job: Job) -> None:
    async def main() -> None:
        await WAYS[job.way](Show(job))

    if job.loop == "uvloop":
        import uvloop

        uvloop.run(main())
    else:
        asyncio.run(main())


# ---- the sink ---------------------------------------------------------------------


class Sink:
    """Many clients that read all that comes; with check, each compares every byte."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.prefix = _PREFIX[told["framing"]]
        self.pattern = Path(told["pattern"]).read_bytes() if told["check"] else b""
        self.total = (self.prefix + told["size"]) * (told["warm"] + told["frames"])
        self.memory = bytearray(1 << 20)
        self.sockets: dict[int, socket.socket] = {}
        self.received: dict[int, int] = {}
        self.wrong: set[int] = set()
        for _ in range(told["clients"]):
            self._connect(told["port"], told["framing"])

    def _connect(self, port: int, framing: str) -> None:
        sock = socket.create_connection(("127.0.0.1", port))
        if framing == "websocket":
            sock.sendall(_HANDSHAKE)
            answer = b""
            while not answer.endswith(b"\r\n\r\n"):
                answer += sock.recv(1)
        sock.setblocking(False)
        self.sockets[sock.fileno()] = sock
        self.received[sock.fileno()] = 0

    def run(self) -> None:
        poll = select.epoll()
        for fd in self.sockets:
            poll.register(fd, select.EPOLLIN)
        left = len(self.sockets)
        while left:
            for fd, _ in poll.poll():
                if not self._read(fd):
                    poll.unregister(fd)
                    left -= 1

    def _read(self, fd: int) -> bool:
        """True if more must come."""
        # Unchecked bytes are thrown away by the kernel itself.
        flags = 0 if self.pattern else socket.MSG_TRUNC
        n = self.sockets[fd].recv_into(self.memory, len(self.memory), flags)
        if self.pattern and not self._is_right(self.received[fd], n):
            self.wrong.add(fd)
        self.received[fd] += n
        return n > 0 and self.received[fd] < self.total

    def _is_right(self, start: int, n: int) -> bool:
        """Compare what came, but for what is before each frame."""
        view = memoryview(self.memory)[:n]
        whole = self.prefix + len(self.pattern)
        while view:
            at = start % whole
            size = min(len(view), (self.prefix if at < self.prefix else whole) - at)
            if at >= self.prefix:
                expected = self.pattern[at - self.prefix : at - self.prefix + size]
                if view[:size] != expected:
                    return False
            view, start = view[size:], start + size
        return True


def view(told: dict[str, Any]) -> None:
    sink = Sink(told)
    before = cpu()
    sink.run()
    report = {
        "who": "sink",
        "bytes": sum(sink.received.values()),
        "wrong": len(sink.wrong),
        "cpu": cpu() - before,
    }
    tell(report)


if __name__ == "__main__":
    arguments = json.loads(sys.argv[2])
    if sys.argv[1] == "serve":
        serve(Job(**arguments))
    else:
        view(arguments)
