"""One frame to many clients, beside websockets' broadcast, aiohttp and a C loop.

All serve the same frames over TCP loopback, or UNIX sockets, to the same clients, which
read them and throw them away.  A contender is a server's process, which starts the
process of the clients.

The server notes when it published each frame and the clients when it had arrived, by
the same clock, so the frames need no timestamps.  Sent as fast as possible, their age
is the time they spent in buffers, the kernel's included: the faster a server, the
fuller they are.  So there are also races at a number of frames a second that every
server can send.  There the age tells how long a frame takes, and the CPU what it costs.
"""

import asyncio
import contextlib
import ctypes
import select
import socket
import sys
import time
from array import array
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from bench.feeding import LOOPS, needs_of
from bench.processes import ENVIRONMENT, Lab, worker
from bench.race import Contender, Race, Run, Work, WrongBytes, duels
from bench.worker import Job

FRAME = 100_000
# Bytes of the header before each frame (of a frame of more than 64 KiB).
PREFIX = {"wire": 128, "websocket": 10}
HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\n\r\n"
)


class Crowd(NamedTuple):
    """The clients of a race: how many, over what, and how often they are served."""

    clients: int
    link: str = "TCP"  # or "UNIX"
    fps: int = 0  # frames a second; 0: as fast as possible

    @property
    def title(self) -> str:
        title = f"{FRAME // 1000} KB to {self.clients:,} clients"
        title += " over UNIX sockets" if self.link == "UNIX" else ""
        return title + (f", {self.fps} times a second" if self.fps else "")


USUAL = Crowd(100)
PACED = ((100, 30), (1000, 3))  # clients, and frames a second: 300 MB/s
CROWDS = [Crowd(clients, link) for link in ("TCP", "UNIX") for clients in (100, 1000)]
CROWDS += [Crowd(n, link, fps) for link in ("TCP", "UNIX") for n, fps in PACED]
RIVALS = {
    "websockets, uvloop": "websockets on uvloop",
    "aiohttp, uvloop": "aiohttp on uvloop",
    "C loop": "a C loop of send",
}


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    for crowd in [USUAL] if quick else CROWDS:
        frames = 2 if quick else max(2, 4000 // crowd.clients)
        servers = {
            f"{way.__name__}, {loop}": (way, loop, needs_of(loop, *needs))
            for way, needs in SERVERS.items()
            for loop in LOOPS
        }
        servers["C loop"] = (c_loop, "asyncio", ())
        yield Race(
            "fanout",
            crowd.title,
            Work(FRAME, crowd.clients * frames, warm=2 * crowd.clients, buffers=1),
            [
                Contender(name, partial(fan, lab, name, crowd, way, loop), needs)
                for name, (way, loop, needs) in servers.items()
            ],
            duels(
                "Broadcast, uvloop",
                RIVALS,
                f"a frame of {crowd.title}: Broadcast",
                front="websockets, uvloop",
            ),
            extra=crowd != USUAL,
        )


def fan(
    lab: Lab, name: str, crowd: Crowd, way: Any, loop: str, work: Work, check: bool
) -> Run:
    framing = "wire" if way in (Broadcast, c_loop) else "websocket"
    told = {"size": work.size, "pattern": lab.pattern(work), "check": check}
    warm, frames = (n // crowd.clients for n in (work.warm, work.messages))
    told |= {"warm": warm, "messages": frames, **crowd._asdict(), "framing": framing}
    told |= {"path": str(lab.folder() / "socket") if crowd.link == "UNIX" else ""}
    told |= {"library": lab.library("fan") if way is c_loop else ""}
    reports = lab.reports(worker(way, loop=loop, **told))
    sink, sender = reports["sink"], reports["sender"]
    expected = (work.size + PREFIX[framing]) * (work.warm + work.messages)
    if sink["bytes"] != expected or sink["wrong"]:
        raise WrongBytes(
            f"{name}: {sink['bytes']:,} bytes came, not {expected:,}; "
            f"{sink['wrong']} clients got wrong ones"
        )
    more = {"ms old (99 of 100)": sink["late"] * 1e3}
    return Run(sender["seconds"], sender["cpu"], sink["cpu"], more)


# ---- the servers ---------------------------------------------------------------------


class Publisher:
    """Publishes the frames of a job once all clients are there, and measures."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.frame: bytes = job.data()
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
        address: Any,
        send: Callable[[], Awaitable[object]],
        left: Callable[[Any], int] | None = None,
    ) -> None:
        """``send`` returns when the next frame may follow; ``left`` returns how much
        is not yet sent to a client."""
        sink = await asyncio.create_subprocess_exec(
            *worker(view, **{**self.job.told, "address": address}),
            env=ENVIRONMENT,
            stdin=asyncio.subprocess.PIPE,
        )
        await self.everybody.wait()
        await self._publish(self.job.warm, send)
        self.job.begin()
        await self._publish(self.job.messages, send)
        for client in self.clients if left else ():
            while left and left(client):  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.0005)
        self.job.end()
        await sink.communicate(self.published.tobytes())
        self.over.set()

    async def _publish(self, frames: int, send: Callable[[], Awaitable[Any]]) -> None:
        started = time.perf_counter()
        for number in range(frames):
            if self.job.fps:
                due = started + number / self.job.fps
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            self.published.append(time.monotonic_ns())
            await send()


def listening(job: Job) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX if job.path else socket.AF_INET)
    sock.bind(job.path or ("127.0.0.1", 0))
    sock.listen(2048)
    sock.setblocking(False)
    return sock


async def Broadcast(job: Job) -> None:
    import aiozerocopy
    from aiozerocopy import broadcast

    publisher = Publisher(job)

    async def watch(stream: aiozerocopy.Stream) -> None:
        client = hub.attach(stream, policy="block")
        publisher.add(client)
        await client.wait_closed()

    serve: Any = aiozerocopy.serve_unix if job.path else aiozerocopy.serve_tcp
    where = [job.path] if job.path else []
    frame = bytearray(publisher.frame)  # (unlike bytes, it must be copied)
    async with broadcast.Broadcast() as hub, serve(watch, *where) as server:
        address, left = server.addresses[0], lambda client: client.stats.queued
        await publisher.run(address, lambda: hub.publish(frame), left)
        await hub.aclose(0)


async def websockets(job: Job) -> None:
    from websockets.asyncio import server

    publisher = Publisher(job)

    async def watch(connection: server.ServerConnection) -> None:
        publisher.add(connection)
        await publisher.over.wait()
        connection.transport.abort()

    def left(connection: server.ServerConnection) -> int:
        return int(connection.transport.get_write_buffer_size())

    async def send() -> None:
        server.broadcast(publisher.clients, publisher.frame)
        # It never waits by itself, so let one frame be queued, as with the others.
        for connection in publisher.clients:
            if connection.paused:
                await connection.drain()

    # Without compression and pings: as fast as it can be.
    options: dict[str, Any] = {"compression": None, "ping_interval": None}
    options |= {"write_limit": (job.size, job.size), "sock": listening(job)}
    async with server.serve(watch, **options):
        await publisher.run(options["sock"].getsockname(), send, left)


async def aiohttp(job: Job) -> None:
    from aiohttp import web

    publisher = Publisher(job)

    async def watch(request: web.Request) -> web.WebSocketResponse:
        response = web.WebSocketResponse(compress=False, timeout=0.1)
        await response.prepare(request)
        publisher.add(response)
        await publisher.over.wait()
        return response

    async def send() -> None:
        sent = (client.send_bytes(publisher.frame) for client in publisher.clients)
        await asyncio.gather(*sent)

    application = web.Application()
    application.router.add_get("/", watch)
    runner = web.AppRunner(application)
    await runner.setup()
    listener = listening(job)
    await web.SockSite(runner, listener).start()
    await publisher.run(listener.getsockname(), send)
    await runner.cleanup()


async def c_loop(job: Job) -> None:
    """No server, only the system calls: a frame goes to all, and then the next."""
    publisher = Publisher(job)
    library = ctypes.CDLL(job.library)
    frame = bytes(PREFIX["wire"]) + publisher.frame
    fds = (ctypes.c_int * job.clients)()

    async def accept(listener: socket.socket) -> None:
        for number in range(len(fds)):
            client, _ = await asyncio.get_running_loop().sock_accept(listener)
            if not job.path:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            fds[number] = client.fileno()
            publisher.add(client)

    async def send() -> None:
        if library.send_to_all(fds, len(fds), frame, ctypes.c_size_t(len(frame))):
            raise ConnectionError("a client of the C loop has left")

    with listening(job) as listener:
        accepting = asyncio.create_task(accept(listener))
        await publisher.run(listener.getsockname(), send)
        await accepting
    for client in publisher.clients:
        client.close()


SERVERS = {Broadcast: (), websockets: ("websockets",), aiohttp: ("aiohttp",)}


# ---- the clients, all in one process -------------------------------------------------


class Client:
    """Reads whatever comes; with a pattern, it compares every byte."""

    def __init__(self, job: Job, pattern: bytes) -> None:
        self._prefix, self._pattern = PREFIX[job.framing], pattern
        self._whole = self._prefix + job.size
        self._total = self._whole * (job.warm + job.messages)
        self._came = bytearray()  # of a frame; without a pattern it stays empty
        self.received: int = 0
        self.arrived: list[int] = []
        self.is_wrong: bool = False
        family = socket.AF_UNIX if job.path else socket.AF_INET
        self.socket: socket.socket = socket.socket(family)
        self.socket.connect(job.address if job.path else tuple(job.address))
        if job.framing == "websocket":
            self.socket.sendall(HANDSHAKE)
            answer = b""
            while not answer.endswith(b"\r\n\r\n"):
                answer += self.socket.recv(1)
        self.socket.setblocking(False)

    def read(self, memory: bytearray) -> bool:
        """Read once; return whether more must come."""
        # Without a pattern, the kernel itself discards the bytes.
        flags = 0 if self._pattern else socket.MSG_TRUNC
        n = self.socket.recv_into(memory, len(memory), flags)
        now, before = time.monotonic_ns(), self.received
        if self._pattern:
            self._compare(memory[:n])
        self.received += n
        completed = self.received // self._whole - before // self._whole
        self.arrived += [now] * completed
        return n > 0 and self.received < self._total

    def _compare(self, data: bytearray) -> None:
        """Compare each whole frame, except its header."""
        self._came += data
        while len(self._came) >= self._whole:
            self.is_wrong |= self._came[self._prefix : self._whole] != self._pattern
            del self._came[: self._whole]


def view(job: Job) -> dict[str, Any]:
    pattern = job.data() if job.check else b""
    memory = bytearray(1 << 20)
    clients = [Client(job, pattern) for _ in range(job.clients)]
    reading = {client.socket.fileno(): client for client in clients}
    with contextlib.closing(select.epoll()) as poll:
        for fd in reading:
            poll.register(fd, select.EPOLLIN)
        job.begin()
        left = len(reading)
        while left:
            for fd, _ in poll.poll():
                if not reading[fd].read(memory):
                    poll.unregister(fd)
                    left -= 1
        job.end()
    published = array("q", sys.stdin.buffer.read())
    ages = sorted(
        there - here
        for client in clients
        for here, there in [*zip(published, client.arrived, strict=False)][job.warm :]
    )
    return {
        "who": "sink",
        "bytes": sum(client.received for client in clients),
        "wrong": sum(client.is_wrong for client in clients),
        "late": ages[len(ages) * 99 // 100] / 1e9,
    }
