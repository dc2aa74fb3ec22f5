"""One frame to many clients, beside websockets' broadcast, aiohttp and a C loop.

All serve the same frames over TCP loopback to the same clients, which read them and
throw them away.  A contestant is a process of this module (``python -m``) that serves
in one of the `WAYS`, and starts the process of the `clients`.  The comparison is by the
server's CPU seconds for each GB delivered.

The server notes when it published each frame and the clients when it had arrived, by
the same clock, so the frames need no timestamps.  They are sent as fast as possible, so
their age is the time they spent in buffers, the kernel's included.  (In `rate` they are
published sixty times a second.)
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import socket
import statistics
import subprocess
import sys
import time
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiozerocopy.bench import rate
from aiozerocopy.bench.clients import PREFIX
from aiozerocopy.bench.feeding import Crew, Lab
from aiozerocopy.bench.frames import cpu
from aiozerocopy.bench.network import age_sentence, command, run_on, tell
from aiozerocopy.bench.racing import (
    Comparison,
    Headline,
    Options,
    Race,
    Run,
    Work,
    WrongBytes,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from aiozerocopy.bench.racing import Entry

FRAME = 100_000
CLIENTS = (1, 10, 100, 1000)
_DELIVERED = 1_000_000_000  # bytes in one round


def races(lab: Lab, options: Options) -> list[Race]:
    counts = CLIENTS[2:3] if options.quick else CLIENTS
    fans = [race(lab, options, clients) for clients in counts]
    return [*fans, rate.race(lab, options)]


def race(lab: Lab, options: Options, clients: int) -> Race:
    frames = (0 if options.quick else _DELIVERED) // FRAME // clients
    work = Work(FRAME, clients * max(frames, 2), warm=2 * clients, buffers=1)
    fans = {
        way: [
            Fan(f"{name}, asyncio", lab, way, clients, needs=needs),
            Fan(f"{name}, uvloop", lab, way, clients, "uvloop", (*needs, "uvloop")),
        ]
        for way, name, needs in (
            ("broadcast", "Broadcast", ()),
            ("websockets", "websockets", ("websockets",)),
            ("aiohttp", "aiohttp", ("aiohttp",)),
        )
    }
    ours, *peers = fans.values()
    limit = Fan("C loop", lab, "c_loop", clients)
    comparisons = [
        Comparison(one.name, [rival.name for rival in peer], by_cpu=True)
        for one in ours
        for peer in (*peers, [limit])
    ]
    title = f"{FRAME // 1000} KB to {clients:,} client" + "s" * (clients > 1)
    field = [*(one for fan in fans.values() for one in fan), limit]
    headlines = [
        Headline(
            "Broadcast, uvloop",
            [rival],
            work=f"a frame of {title}: Broadcast",
            against=against,
            front=rival.startswith("websockets"),
        )
        for rival, against in (
            ("websockets, uvloop", "websockets on uvloop"),
            ("aiohttp, uvloop", "aiohttp on uvloop"),
            (limit.name, "a C loop of send"),
        )
        if clients == 100
    ]
    return FanRace(
        title,
        work,
        field,
        comparisons,
        count=clients,
        headlines=headlines,
        brief=40 * clients,
    )


@dataclass(frozen=True)
class FanRun(Run):
    """A run that also tells what a client costs, and what it gets."""

    memory: float  # of the server at its peak, in bytes for each client
    ages: Sequence[float]  # seconds, of every frame at every client


@dataclass(frozen=True)
class FanRace(Race):
    def remarks(self, entries: Sequence[Entry]) -> list[str]:
        return [remark(entry) for entry in entries]


def remark(entry: Entry) -> str:
    runs = [run for run in entry.runs if isinstance(run, FanRun)]
    memory = statistics.median(run.memory for run in runs)
    ages = [age for run in runs for age in run.ages]
    return (
        f"{entry.name}: {memory / 1e3:,.0f} KB of memory for each client, "
        f"{age_sentence(ages)}"
    )


@dataclass(frozen=True)
class Fan:
    """A server process in one of the `WAYS`, and its sink."""

    name: str
    lab: Lab
    way: str
    clients: int
    loop: str = "asyncio"
    needs: Sequence[str] = ()

    def run(self, work: Work, check: bool) -> FanRun:
        job = Job(
            self.way,
            self.loop,
            self.clients,
            work.size,
            work.warm // self.clients,
            work.messages // self.clients,
            self.lab.pattern(work),
            check,
            str(self.lab.path),
        )
        if self.way == "c_loop":
            self.lab.library("fan")
        with Crew(self.lab.path / "stderr") as crew:
            crew.start(command("fanout", job.__dict__))
            told = crew.finish()
        sink, sender = told["sink"], told["sender"]
        expected = (work.size + PREFIX[job.framing]) * (work.warm + work.messages)
        if sink["bytes"] != expected or sink["wrong"]:
            raise WrongBytes(
                f"{self.name}: {sink['bytes']:,} bytes came and not {expected:,}; "
                f"{sink['wrong']} clients got wrong ones"
            )
        return FanRun(
            sender["seconds"],
            sender["cpu"],
            sink["cpu"],
            None,
            sender["memory"] / self.clients,
            job.ages(),
        )

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
    folder: str  # for the times: nanoseconds, as 64 bits each

    @property
    def framing(self) -> str:
        return "wire" if self.way in ("broadcast", "c_loop") else "websocket"

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


# ---- the server -------------------------------------------------------------------


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
        port: int,
        send: Callable[[], Awaitable[object]],
        left: Callable[[Any], int] | None = None,
    ) -> None:
        """``send`` returns when the next frame may follow; ``left`` returns how much of
        a client's is not sent yet."""
        told = {"port": port, "framing": self.job.framing, **self.job.__dict__}
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
        for _ in range(frames):
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

    frame = bytearray(publisher.frame)  # (unlike bytes, it must be copied)
    async with Broadcast() as hub, aiozerocopy.serve_tcp(watch) as server:
        await publisher.run(
            server.port, lambda: hub.publish(frame), lambda client: client.stats.queued
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
    async with server.serve(
        watch,
        "127.0.0.1",
        0,
        compression=None,
        ping_interval=None,
        write_limit=(publisher.job.size, publisher.job.size),
        backlog=2048,
    ) as serving:
        port = next(iter(serving.sockets)).getsockname()[1]
        await publisher.run(port, send, left)


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
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    await web.SockSite(runner, listener).start()
    await publisher.run(listener.getsockname()[1], send)
    await runner.cleanup()


async def drained(left: Callable[[Any], int], clients: Sequence[Any]) -> None:
    """Wait until every client was sent all, with little work of our own."""
    for client in clients:
        while left(client):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.0005)


async def c_loop(publisher: Publisher) -> None:
    """No server, only the system calls: a frame goes to all, and then the next."""
    library = ctypes.CDLL(str(publisher.job.file("fan.so")))
    frame = bytes(PREFIX["wire"]) + publisher.frame
    fds = (ctypes.c_int * publisher.job.clients)()

    async def accept(listener: socket.socket) -> None:
        for number in range(len(fds)):
            client, _ = await asyncio.get_running_loop().sock_accept(listener)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            fds[number] = client.fileno()
            publisher.add(client)

    async def send() -> None:
        if library.send_to_all(fds, len(fds), frame, ctypes.c_size_t(len(frame))):
            raise ConnectionError("a client of the C loop has left")

    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        listener.setblocking(False)
        accepting = asyncio.create_task(accept(listener))
        await publisher.run(listener.getsockname()[1], send)
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
