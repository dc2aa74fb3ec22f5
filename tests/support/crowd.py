"""A hostile crowd, the server that it attacks, and honest viewers beside it.

    crowd.py serve FACE         one of `FACES`; prints its port, and a line of JSON for
                                each line of input: CPU seconds, memory and the like
    crowd.py attack FACE PORT   3,200 clients from 20 addresses, which connect again
                                whenever the server closes
    crowd.py watch FACE PORT SECONDS
                                50 viewers: prints how many milliseconds frames took,
                                how many were lost, and how ``/healthz`` answered

A hostile client is silent, or sends its request or token byte by byte, or watches
without reading, or asks again and again.  (A Dask client is hostile before the
handshake: it may run any code afterwards.)  For `ours` and `tcp`, gc is disabled.
"""

import asyncio
import contextlib
import gc
import itertools
import json
import logging
import os
import random
import resource
import socket
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import anyio
from web_client import asking, upgrade
from web_servers import PREFIX, serving

import aiozerocopy as azc
from aiozerocopy._net.frame_header import HEADER_SIZE, FrameHeader

FACES = ("ours", "uvicorn", "hypercorn", "aiohttp", "tcp", "distributed")
CROWD = {"silent": 1000, "dripping": 1000, "stuck": 1000, "flooding": 200}
VIEWERS, RATE = 50, 30  # viewers, and frames a second
TOKEN = b"crowd"
PAGES = 4096
COMMS: set[Any] = set()  # connections of Dask's clients


# ---- the server ---------------------------------------------------------------------


async def publish(hub: azc.Broadcast) -> None:
    """Publish frames that hold the time."""
    async with azc.FramePool((48, 64, 3), slots=4) as pool:
        due = time.monotonic()
        while True:
            with await pool.acquire() as frame:
                struct.pack_into("<d", frame.array, 0, time.time())
                await hub.publish(frame, pixel_format="rgb24")
            due += 1 / RATE
            await anyio.sleep(max(0.0, due - time.monotonic()))


@contextlib.asynccontextmanager
async def face(name: str, hub: azc.Broadcast) -> AsyncIterator[int]:
    if name == "tcp":

        async def watch(stream: azc.Stream) -> None:
            await hub.attach(stream, policy="latest", deadline=15).wait_closed()

        async with azc.serve_tcp(watch, token=TOKEN) as server:
            yield server.port
    elif name == "distributed":
        from distributed.comm.core import listen

        async with listen("azc://127.0.0.1", tell) as listener:
            yield int(listener.listen_address.rpartition(":")[2])
    else:
        async with serving(name, hub, modes=["raw"]) as place:
            yield place.port


async def tell(comm: Any) -> None:
    COMMS.add(comm)
    with contextlib.suppress(OSError):
        for sequence in itertools.count():
            await comm.write((sequence, time.time()))
            await anyio.sleep(1 / RATE)
    COMMS.discard(comm)


def figures(hub: azc.Broadcast) -> dict[str, float]:
    with open("/proc/self/statm") as statm:
        resident = int(statm.read().split()[1]) * PAGES
    return {
        "cpu": time.process_time(),
        "rss": resident,
        "fds": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "frames": hub.sequence,
        "viewers": len(hub.clients) + len(COMMS),
    }


async def serve(name: str) -> None:
    if name in ("ours", "tcp"):
        gc.disable()
    async with azc.Broadcast() as hub, face(name, hub) as port:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(publish, hub)
            print(port, flush=True)
            while await anyio.to_thread.run_sync(sys.stdin.readline):
                print(json.dumps(figures(hub)), flush=True)
            tasks.cancel_scope.cancel()


# ---- the hostile crowd --------------------------------------------------------------


def words(name: str) -> tuple[bytes, bytes]:
    """Return the request of a viewer, and the bytes that a flood repeats."""
    if name == "tcp":
        shown = struct.pack("<4sH", b"AZCT", len(TOKEN)) + TOKEN
        return shown, shown[:-1] + b"?"
    if name == "distributed":  # one buffer, and its length
        return struct.pack("<QQ", 1, 16_000) + b"x", struct.pack("<QQ", 1, 1 << 40)
    prefix = "" if name == "ours" else PREFIX
    return upgrade(f"{prefix}/raw"), asking(f"{prefix}/healthz")


async def visit(kind: str, sock: socket.socket, name: str) -> None:
    """Behave as a client of this kind does on one connection."""
    loop = asyncio.get_running_loop()
    watching, flood = words(name)
    if kind == "dripping":
        for letter in (watching[:-1] + b"x" * 999)[:999]:
            await loop.sock_sendall(sock, bytes([letter]))
            await asyncio.sleep(0.5)
    elif kind == "flooding":
        for _ in range(50):
            await loop.sock_sendall(sock, flood)
            await asyncio.sleep(0.2)
    elif kind == "stuck":
        await loop.sock_sendall(sock, watching)
        await asyncio.sleep(60)
    else:
        await loop.sock_recv(sock, 1)


async def come_again(kind: str, address: str, name: str, port: int) -> None:
    loop = asyncio.get_running_loop()
    while True:
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.bind((address, 0))
            await loop.sock_connect(sock, ("127.0.0.1", port))
            await visit(kind, sock, name)
        await asyncio.sleep(0.5 + random.random())


async def attack(name: str, port: int) -> None:
    await asyncio.gather(
        *(
            come_again(kind, f"127.0.0.{2 + number % 20}", name, port)
            for kind, count in CROWD.items()
            for number in range(count)
        )
    )


# ---- the honest viewers -------------------------------------------------------------


class Watch:
    """What all viewers have seen together."""

    def __init__(self, name: str, port: int, seconds: float) -> None:
        self.name, self.port = name, port
        self.until = time.monotonic() + seconds
        self.delays: list[float] = []
        self.lost = self.gone = self.probes = self.unanswered = 0
        self.slowest = 0.0

    async def view(self, number: int) -> None:
        await asyncio.sleep(number * 0.01)
        try:
            if self.name == "distributed":
                from distributed.comm.core import connect

                comm = await connect(f"azc://127.0.0.1:{self.port}")
                await self.count(comm.read)
                comm.abort()
                return
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", self.port, local_addr=(f"127.0.1.{1 + number}", 0)
            )
            with contextlib.closing(writer):
                writer.write(words(self.name)[0])
                if self.name == "tcp":
                    await reader.readexactly(1)
                else:
                    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
                await self.count(partial(self.frame, reader, writer))
        except (OSError, EOFError, AssertionError) as error:
            self.gone += 1
            print(repr(error), file=sys.stderr)

    async def count(self, frame: Callable[[], Awaitable[tuple[int, float]]]) -> None:
        last = None
        while time.monotonic() < self.until:
            sequence, sent = await frame()
            self.delays.append(time.time() - sent)
            if last is not None:
                self.lost += sequence - last - 1
            last = sequence

    async def frame(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[int, float]:
        """Return a frame's number, and when it was sent."""
        if self.name == "tcp":
            header = FrameHeader.unpack(await reader.readexactly(HEADER_SIZE), 1 << 20)
            pixels = await reader.readexactly(header.payload_length)
            return header.sequence, struct.unpack_from("<d", pixels)[0]
        while True:
            kind, size = await reader.readexactly(2)
            if size == 126:
                (size,) = struct.unpack("!H", await reader.readexactly(2))
            message = await reader.readexactly(size)
            if kind == 0x82:
                return struct.unpack_from("<Q", message, 16)[0], struct.unpack_from(
                    "<d", message, 32
                )[0]
            if kind == 0x89:
                pong = bytes([0x8A, 0x80 | size, 0, 0, 0, 0]) + message
                writer.write(pong)

    async def probe(self) -> None:
        """Ask on a new connection each time, as a supervisor does."""
        ask = words(self.name)[1].replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        while time.monotonic() < self.until:
            begin = time.monotonic()
            self.probes += 1
            try:
                answer = await asyncio.wait_for(self.answer(ask), 5)
                self.unanswered += b" 200 " not in answer
            except (OSError, asyncio.TimeoutError):
                self.unanswered += 1
            self.slowest = max(self.slowest, time.monotonic() - begin)
            await asyncio.sleep(0.2)

    async def answer(self, ask: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, local_addr=("127.0.2.1", 0)
        )
        writer.write(ask)
        with contextlib.closing(writer):
            return await reader.read()

    async def all(self) -> None:
        viewers = [self.view(number) for number in range(VIEWERS)]
        if self.name not in ("tcp", "distributed"):
            viewers.append(self.probe())
        await asyncio.gather(*viewers)
        self.delays.sort()
        told: dict[str, Any] = {
            "frames": len(self.delays),
            "lost": self.lost,
            "gone": self.gone,
            "p50": self.delays[len(self.delays) // 2] * 1000,
            "p99": self.delays[len(self.delays) * 99 // 100] * 1000,
            "probes": self.probes,
            "unanswered": self.unanswered,
            "slowest_probe": self.slowest,
        }
        print(json.dumps(told))


def main() -> None:
    logging.getLogger("aiozerocopy").setLevel(logging.CRITICAL)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    role, name, *rest = sys.argv[1:]
    if role == "serve":
        anyio.run(serve, name)
    elif role == "attack":
        asyncio.run(attack(name, int(rest[0])))
    else:
        asyncio.run(Watch(name, int(rest[0]), float(rest[1])).all())


if __name__ == "__main__":
    main()
