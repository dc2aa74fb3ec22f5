"""asyncio's transports, ours and others': messages one way, and there and back.

One way sink.c takes them.  There and back a plain socket asks, the same for all, and
the contender answers with what it got; its CPU time is told.
"""

import asyncio
import os
import select
from collections.abc import Iterator
from functools import partial
from typing import Any

from bench.feeding import LOOPS, RIVAL_LOOPS, fed, in_python, needs_of, tcp_link
from bench.processes import Crew, Lab, worker
from bench.race import Contender, Duel, Race, Run, Work, WrongBytes, best_of
from bench.worker import Job

SIZES = {"1 KiB": 1 << 10, "64 KiB": 64 << 10, "6 MB": 6_000_000}
MESSAGES = {"1 KiB": 40_000, "64 KiB": 4_000, "6 MB": 500}


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    for name, size in SIZES.items():
        for way, make in (("one way", one_way), ("echo", echo)):
            messages = 8 if quick else MESSAGES[name] // (5 if way == "echo" else 1)
            ours = [make(lab, f"ours, {loop}", loop, True) for loop in LOOPS]
            rivals = [make(lab, loop, loop, False) for loop in RIVAL_LOOPS]
            what = f"{name} messages" + " there and back" * (way == "echo")
            yield Race(
                "transport",
                f"{name}, Protocol, {way}",
                Work(size, messages, warm=max(4, messages // 40 * 4), buffers=4),
                [*ours, *rivals],
                [*duels(f"{what}: azc.transport", rivals)],
                extra=name == "6 MB" or (name, way) == ("64 KiB", "echo"),
            )


def duels(work: str, rivals: list[Contender]) -> Iterator[Duel]:
    """On asyncio's loop beside its own transports, on uvloop beside the best of all."""
    on_asyncio = f"{work}, asyncio"
    yield Duel(
        "ours, asyncio", "asyncio", on_asyncio, "asyncio's transport", "messages"
    )
    yield best_of("ours, uvloop", rivals, work, unit="messages")


def one_way(lab: Lab, name: str, loop: str, is_ours: bool) -> Contender:
    return fed(lab, name, tcp_link, in_python(lab, write, loop, is_ours=is_ours), loop)


def echo(lab: Lab, name: str, loop: str, is_ours: bool) -> Contender:
    return Contender(name, partial(echoed, lab, name, loop, is_ours), needs_of(loop))


def echoed(
    lab: Lab, name: str, loop: str, is_ours: bool, work: Work, check: bool
) -> Run:
    ours, theirs = tcp_link()
    told = {**work.told, "pattern": lab.pattern(work), "check": check}
    with Crew(lab) as crew:
        try:
            answers = worker(answer, loop=loop, is_ours=is_ours, fd=ours, **told)
            crew.start(answers, pass_fds=(ours,))
            crew.start(worker(ask, fd=theirs, **told), pass_fds=(theirs,))
        finally:
            os.close(ours)
            os.close(theirs)
        reports = crew.finish()
    asked = reports["sink"]
    if asked["wrong"] >= 0:
        raise WrongBytes(f"{name}: answer {asked['wrong']} is another")
    return Run(asked["seconds"], reports["sender"]["cpu"], asked["cpu"])


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
    for messages in job.messages_in_turn():
        for message in messages:
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
    """Send a message and take the answer at the same time, then the next."""
    messages = [memoryview(piece) for piece in job.pieces()]
    answer = memoryview(bytearray(job.size))
    wrong = -1
    with job.socket() as sock:
        ready = select.poll()
        ready.register(sock, select.POLLIN)
        for numbers in job.numbers():
            for number in numbers:
                message = messages[number % len(messages)]
                exchange(sock, ready, message, answer)
                if job.check and wrong < 0 and answer != message:
                    wrong = number
    return {"who": "sink", "wrong": wrong}


def exchange(
    sock: Any, ready: select.poll, message: memoryview, answer: memoryview
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


class Echo(Gate):
    """It never waits: one message is on its way."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


async def answer(job: Job) -> None:
    _, protocol = await connected(job, Echo)
    await protocol.lost
