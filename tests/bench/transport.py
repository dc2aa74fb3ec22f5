"""asyncio's transports, ours and others': messages one way, and there and back.

One way, sink.c takes them.  There and back, a plain socket asks, the same for all, and
the contender answers with what it got; its CPU time is reported.
"""

import asyncio
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

from bench.feeding import LOOPS, RIVAL_LOOPS, fed, in_python, python_sink, tcp_link
from bench.processes import Lab
from bench.race import Contender, Duel, Race, Work, best_of
from bench.worker import Job

SIZES = {"1 KiB": 1 << 10, "64 KiB": 64 << 10, "6 MB": 6_000_000}
MESSAGES = {"1 KiB": 40_000, "64 KiB": 4_000, "6 MB": 500}


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    """Ours on asyncio's loop beside its own transports, on uvloop beside the best."""
    for name, size in SIZES.items():
        for way, make in (("one way", one_way), ("echo", echo)):
            messages = 8 if quick else MESSAGES[name] // (5 if way == "echo" else 1)
            ours = [make(lab, f"ours, {loop}", loop, True) for loop in LOOPS]
            rivals = [make(lab, loop, loop, False) for loop in RIVAL_LOOPS]
            what = f"{name} messages" + " there and back" * (way == "echo")
            unit: Any = {"unit": "messages"}
            beside = (f"{what}: azc.transport, asyncio", "asyncio's transport")
            yield Race(
                "transport",
                f"{name}, Protocol, {way}",
                Work(size, messages, warm=max(4, messages // 40 * 4), buffers=4),
                [*ours, *rivals],
                [
                    Duel("ours, asyncio", "asyncio", *beside, **unit),
                    best_of("ours, uvloop", rivals, f"{what}: azc.transport", **unit),
                ],
                extra=name == "6 MB" or (name, way) == ("64 KiB", "echo"),
            )


def one_way(lab: Lab, name: str, loop: str, is_ours: bool) -> Contender:
    return fed(lab, name, tcp_link, in_python(lab, write, loop, is_ours=is_ours), loop)


def echo(lab: Lab, name: str, loop: str, is_ours: bool) -> Contender:
    answers = in_python(lab, answer, loop, is_ours=is_ours)
    asks = partial(python_sink, lab, ask, "asyncio")
    return fed(lab, name, tcp_link, answers, loop, receiver=asks)


# ---- one way -------------------------------------------------------------------------


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


async def write(job: Job) -> None:
    transport, gate = await connected(job, Gate)
    for message in job.messages_in_turn():
        transport.write(message)
        if not gate.is_open.is_set():
            await gate.is_open.wait()
    transport.close()
    await gate.lost


async def connected(job: Job, factory: Any) -> tuple[Any, Any]:
    create: Any = asyncio.get_running_loop().create_connection
    if job.is_ours:
        from aiozerocopy.transport import create_connection as create
    pair: tuple[Any, Any] = await create(factory, sock=job.socket())
    job.begin()
    return pair


# ---- there and back ------------------------------------------------------------------


def ask(job: Job) -> dict[str, Any]:
    """Send a message and take the answer, then the next."""
    messages, answer = job.pieces, memoryview(bytearray(job.size))
    with socket.socket(fileno=job.fd) as sock:
        for number in job.numbers():
            sock.sendall(messages[number % len(messages)])
            if sock.recv_into(answer, job.size, socket.MSG_WAITALL) < job.size:
                raise EOFError
            job.look(number, answer)
    return job.received()


class Echo(Gate):
    """Echoes without waiting: one message is on its way at a time."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def answer(job: Job) -> None:
    _, protocol = await connected(job, Echo)
    await protocol.lost
