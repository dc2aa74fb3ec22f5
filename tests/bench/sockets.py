"""Messages over a UNIX socket and TCP loopback, big and small."""

from __future__ import annotations

import asyncio
import collections
import socket
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from aiozerocopy import open_process, wrap_socket
from bench.feeding import fed, in_c, in_loops, in_python, tcp_link, unix_link
from bench.race import Duel, Race, Work, duels

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from aiozerocopy import SendStream, Ticket
    from bench.feeding import Link
    from bench.processes import Lab
    from bench.worker import Job

SIZES = {"6 MB": 6_000_000, "1 MiB": 1 << 20}
IN_FLIGHT = 3
BATCH = 64
KINDS = ("bytes", "memoryview")
DRAIN = "uvloop write + drain"


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    links: dict[str, Link] = {"UNIX": unix_link, "TCP": tcp_link}
    for where, link in links.items():
        for name, size in SIZES.items():
            yield big_messages(lab, quick, where, link, name, size)
    yield Race(
        "sockets",
        "1 KiB, UNIX, one await each",
        small(quick, 600),
        [
            fed(lab, f"{way.__name__}, asyncio, {kind}", unix_link, sender)
            for kind in KINDS
            for way in (send, sock_sendall)
            for sender in [in_python(lab, way, kind=kind)]
        ],
        [
            Duel(f"send, {how}", f"sock_sendall, {how}", what, against, "messages")
            for kind in KINDS
            for how in [f"asyncio, {kind}"]
            for what in [f"1 KiB messages, UNIX ({kind}): await send"]
            for against in ["loop.sock_sendall, asyncio"]
        ],
    )
    ways = {"send_many of 64, {}": send_many, "{} write+drain": write_and_drain}
    ways["{} writelines of 64+drain"] = writelines_and_drain
    what, lines = "1 KiB messages, UNIX: send_many of 64", "writelines of 64+drain"
    yield Race(
        "sockets",
        "1 KiB, UNIX, 64 at a time",
        small(quick, 5000),
        in_loops(lab, unix_link, ways),
        [
            Duel(f"send_many of 64, {loop}", rival, what, against, "messages")
            for loop, rival, against in (
                ("uvloop", "uvloop write+drain", DRAIN),
                ("uvloop", f"uvloop {lines}", "uvloop writelines + drain"),
                ("asyncio", f"asyncio {lines}", "asyncio writelines + drain"),
            )
        ],
    )


def big_messages(
    lab: Lab, quick: bool, where: str, link: Link, name: str, size: int
) -> Race:
    ways = {"send, {}": send, "put 3 in flight, {}": put}
    ways["{} write+drain"] = write_and_drain
    what, theirs = f"{name} messages, {where}", "uvloop write+drain"
    rivals = {theirs: DRAIN, "C send loop": "C loop of send"}
    front = theirs if (name, where) == ("6 MB", "UNIX") else ""
    messages = 4 if quick else 600_000_000 // size // 4 * 4
    return Race(
        "sockets",
        f"{name}, {where}",
        Work(size, messages, warm=4 if quick else 40, buffers=4),
        [*in_loops(lab, link, ways), fed(lab, "C send loop", link, partial(in_c, lab))],
        duels("send, uvloop", rivals, f"{what}: await send", front)
        + duels(
            "put 3 in flight, uvloop", {theirs: DRAIN}, f"{what}: put, 3 in flight"
        ),
        extra=name != "6 MB",
    )


def small(quick: bool, batches: int) -> Work:
    """Messages of 1 KiB, in whole batches."""
    return Work(1024, (10 if quick else batches) * BATCH, 100 * BATCH, buffers=BATCH)


# ---- aiozerocopy ---------------------------------------------------------------------


async def send(job: Job) -> None:
    async with opened(job) as stream:
        for messages in job.messages_in_turn(are_bytes=job.kind == "bytes"):
            await send_each(stream, messages)


async def put(job: Job) -> None:
    async with opened(job) as stream:
        for messages in job.messages_in_turn():
            await put_each(stream, messages)


async def send_many(job: Job) -> None:
    async with opened(job) as stream:
        for batches in job.batches():
            for batch in batches:
                await stream.send_many(batch)


async def send_each(stream: SendStream, messages: Iterable[Any]) -> None:
    for message in messages:
        await stream.send(message)


async def put_each(stream: SendStream, messages: Iterable[Any]) -> None:
    flying: collections.deque[Ticket] = collections.deque()
    for message in messages:
        if len(flying) == IN_FLIGHT:
            await flying.popleft()
        flying.append(await stream.put(message))
    for ticket in flying:
        await ticket


@asynccontextmanager
async def opened(job: Job) -> AsyncIterator[SendStream]:
    """The stream to the sink; without a link the sink is started as a child."""
    if job.fd >= 0:
        async with wrap_socket(job.fd) as stream:
            yield stream
    else:
        async with open_process(job.sink, stdout=None) as process:
            assert process.stdin is not None
            async with process.stdin as stdin:
                yield stdin


# ---- asyncio and uvloop --------------------------------------------------------------


async def write_and_drain(job: Job) -> None:
    """With a StreamWriter, to a socket or a child's stdin; or with our own."""
    process, writer = None, None
    if job.fd < 0:
        process = await asyncio.create_subprocess_exec(
            *job.sink, stdin=asyncio.subprocess.PIPE
        )
        writer = process.stdin
        assert writer is not None
    else:
        writer = await stream_writer(job)
    for messages in job.messages_in_turn():
        for message in messages:
            writer.write(message)
            await writer.drain()
    await closed(writer)
    if process is not None:
        await process.wait()


async def writelines_and_drain(job: Job) -> None:
    writer = await stream_writer(job)
    for batches in job.batches():
        for batch in batches:
            writer.writelines(batch)
            await writer.drain()
    await closed(writer)


async def sock_sendall(job: Job) -> None:
    loop = asyncio.get_running_loop()
    with job.socket() as sock:
        for messages in job.messages_in_turn(are_bytes=job.kind == "bytes"):
            for message in messages:
                await loop.sock_sendall(sock, message)


async def stream_writer(job: Job) -> asyncio.StreamWriter:
    sock = job.socket()
    if sock.family == socket.AF_UNIX:
        return (await asyncio.open_unix_connection(sock=sock))[1]
    return (await asyncio.open_connection(sock=sock))[1]


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()
