"""Messages over a UNIX socket and TCP loopback, big and small."""

import asyncio
import collections
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from aiozerocopy import FramePool, SendStream, Ticket, open_process, wrap_socket
from bench.feeding import RIVAL_LOOPS, Link, fed, in_c, in_loops, tcp_link, unix_link
from bench.processes import Lab
from bench.race import Contender, Duel, Race, Work, best_of
from bench.worker import Job

SIZES = {"64 KiB": 64 << 10, "1 MiB": 1 << 20, "6 MB": 6_000_000}
IN_FLIGHT = 3
BATCH = 64


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    links: dict[str, Link] = {"UNIX": unix_link, "TCP": tcp_link}
    for where, link in links.items():
        for name, size in SIZES.items():
            yield big_messages(lab, quick, where, link, name, size)

    small = partial(Work, 1024, warm=100 * BATCH, buffers=BATCH)
    made, what = partial(in_loops, lab, unix_link), "1 KiB messages, UNIX"
    contenders: list[Contender] = []
    duels: list[Duel] = []
    for kind in ("bytes", "memoryview"):
        ours = made({f"send, {{}}, {kind}": send}, kind=kind)
        names = {f"sock_sendall, {{}}, {kind}": sock_sendall}
        rivals = made(names, RIVAL_LOOPS, kind=kind)
        contenders += [*ours, *rivals]
        duels += best(ours, rivals, f"{what} ({kind}): send", unit="messages")
    work = small(messages=BATCH * (10 if quick else 600))
    yield Race("sockets", "1 KiB, UNIX, one await each", work, contenders, duels)
    ours = made({"send_many of 64, {}": send_many})
    many = {"{} write+drain": write_and_drain, "{} writelines": writelines_and_drain}
    rivals = made(many, RIVAL_LOOPS)
    duels = best(ours, rivals, f"{what}: send_many of 64", unit="messages")
    work = small(messages=BATCH * (10 if quick else 5000))
    yield Race("sockets", "1 KiB, UNIX, 64 at a time", work, [*ours, *rivals], duels)


def best(
    ours: list[Contender], rivals: list[Contender], work: str, **more: Any
) -> list[Duel]:
    return [best_of(one.name, rivals, work, **more) for one in ours]


def big_messages(
    lab: Lab, quick: bool, where: str, link: Link, name: str, size: int
) -> Race:
    made = partial(in_loops, lab, link)
    sends, puts = made({"send, {}": send}), made({"put 3 in flight, {}": put})
    c_loop = fed(lab, "C send loop", link, partial(in_c, lab))
    ways = {"{} write+drain": write_and_drain, "{} sock_sendall": sock_sendall}
    rivals, what = made(ways, RIVAL_LOOPS), f"{name} messages, {where}"
    front = (name, where) == ("6 MB", "UNIX")
    lent = made({"send from a pool, {}": lend}) if front else []
    messages = 4 if quick else 600_000_000 // size // 4 * 4
    against_c = partial(Duel, rival=c_loop.name, against="C loop of send")
    return Race(
        "sockets",
        f"{name}, {where}",
        Work(size, messages, warm=4 if quick else 40, buffers=4),
        [*sends, *puts, *lent, *rivals, c_loop],
        [
            *best(sends, rivals, f"{what}: send", front=front),
            against_c("send, uvloop", work=f"{what}: send, uvloop"),
            *best(puts, rivals, f"{what}: put, 3 in flight"),
            *(
                against_c(one.name, work=f"{what}: send from a pool")
                for one in lent[:1]
            ),
        ],
        extra=name != "6 MB",
    )


# ---- aiozerocopy ---------------------------------------------------------------------


async def send(job: Job) -> None:
    async with opened(job) as stream:
        for message in job.messages_in_turn(are_bytes=job.kind == "bytes"):
            await stream.send(message)


async def lend(job: Job) -> None:
    pool = FramePool(job.size, slots=job.buffers)
    async with pool, wrap_socket(job.fd, peer="reads") as stream:
        frames = [pool.acquire_nowait() for _ in range(job.buffers)]
        for frame, piece in zip(frames, job.pieces, strict=True):
            frame.view[:] = piece
        for frame in job.in_turn(frames, 1):
            await stream.send(frame)
        job.end()
        for frame in frames:
            frame.release()


async def put(job: Job) -> None:
    async with opened(job) as stream:
        flying: collections.deque[Ticket] = collections.deque()
        for message in job.messages_in_turn():
            if len(flying) == IN_FLIGHT:
                await flying.popleft()
            flying.append(await stream.put(message))
        for ticket in flying:
            await ticket


async def send_many(job: Job) -> None:
    async with opened(job) as stream:
        for batch in job.batches():
            await stream.send_many(batch)


@asynccontextmanager
async def opened(job: Job) -> AsyncIterator[SendStream]:
    """The stream to the sink; without a link the sink is started as a child.

    All bytes are out before it is closed, which imports more of anyio the first time.
    """
    if job.fd >= 0:
        async with wrap_socket(job.fd) as stream:
            yield stream
            job.end()
    else:
        async with open_process(job.sink, stdout=None) as process:
            assert process.stdin is not None
            async with process.stdin as stdin:
                yield stdin
                job.end()


# ---- asyncio and uvloop --------------------------------------------------------------


async def write_and_drain(job: Job) -> None:
    """Send with a StreamWriter, asyncio's or ours, to a socket or a child's stdin."""
    process, writer = None, None
    if job.fd < 0:
        process = await asyncio.create_subprocess_exec(
            *job.sink, stdin=asyncio.subprocess.PIPE
        )
        writer = process.stdin
        assert writer is not None
    else:
        writer = await stream_writer(job)
    for message in job.messages_in_turn():
        writer.write(message)
        await writer.drain()
    await closed(writer)
    if process is not None:
        await process.wait()


async def writelines_and_drain(job: Job) -> None:
    writer = await stream_writer(job)
    for batch in job.batches():
        writer.writelines(batch)
        await writer.drain()
    await closed(writer)


async def sock_sendall(job: Job) -> None:
    loop = asyncio.get_running_loop()
    with job.socket() as sock:
        for message in job.messages_in_turn(are_bytes=job.kind == "bytes"):
            await loop.sock_sendall(sock, message)


async def stream_writer(job: Job) -> asyncio.StreamWriter:
    sock = job.socket()
    if sock.family == socket.AF_UNIX:
        return (await asyncio.open_unix_connection(sock=sock))[1]
    return (await asyncio.open_connection(sock=sock))[1]


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()
