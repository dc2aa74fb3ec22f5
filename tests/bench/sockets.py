"""Messages over a UNIX socket and TCP loopback, big and small."""

from __future__ import annotations

import asyncio
import collections
import socket
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from aiozerocopy import open_process, wrap_socket
from bench.feeding import LOOPS, fed, in_c, in_python, tcp_link, unix_link
from bench.race import Duel, Race, Work, duels

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from aiozerocopy import SendStream, Ticket
    from bench.feeding import Link
    from bench.processes import Lab
    from bench.worker import Job

BATCH = 64
KINDS = ("bytes", "memoryview")
DRAIN = "uvloop write + drain"


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    links: dict[str, Link] = {"UNIX": unix_link, "TCP": tcp_link}
    for name, link in links.items():
        yield big_messages(lab, quick, name, link, "6 MB", 6_000_000)
        yield big_messages(lab, quick, name, link, "1 MiB", 1 << 20)
    yield small_messages(lab, quick)
    yield small_batches(lab, quick)


def big_messages(
    lab: Lab, quick: bool, where: str, link: Link, name: str, size: int
) -> Race:
    ways = [
        *((f"send, {loop}", send, loop, {}) for loop in LOOPS),
        *((f"put 3 in flight, {loop}", put, loop, {"in_flight": 3}) for loop in LOOPS),
        *((f"{loop} write+drain", write_and_drain, loop, {}) for loop in LOOPS),
    ]
    messages = 4 if quick else 600_000_000 // size // 4 * 4
    work = f"{name} messages, {where}"
    written = {"uvloop write+drain": DRAIN}
    front = next(iter(written)) if (name, where) == ("6 MB", "UNIX") else ""
    return Race(
        "sockets",
        f"{name}, {where}",
        Work(size, messages, warm=4 if quick else 40, buffers=4),
        [
            *(
                fed(lab, title, link, in_python(lab, way, loop, **told), loop)
                for title, way, loop, told in ways
            ),
            fed(lab, "C send loop", link, in_c(lab)),
        ],
        [
            *duels(
                "send, uvloop",
                {**written, "C send loop": "C loop of send"},
                f"{work}: await send",
                front,
            ),
            *duels("put 3 in flight, uvloop", written, f"{work}: put, 3 in flight"),
        ],
        extra=name != "6 MB",
    )


def small_messages(lab: Lab, quick: bool) -> Race:
    kinds = [(way, kind) for kind in KINDS for way in (send, sock_sendall)]
    return Race(
        "sockets",
        "1 KiB, UNIX, one await each",
        small(quick, 600),
        [
            fed(
                lab,
                f"{way.__name__}, asyncio, {kind}",
                unix_link,
                in_python(lab, way, kind=kind),
            )
            for way, kind in kinds
        ],
        [
            Duel(
                f"send, asyncio, {kind}",
                f"sock_sendall, asyncio, {kind}",
                f"1 KiB messages, UNIX ({kind}): await send",
                against="loop.sock_sendall, asyncio",
                unit="messages",
            )
            for kind in KINDS
        ],
    )


def small_batches(lab: Lab, quick: bool) -> Race:
    make = partial(fed, lab, link=unix_link)
    work = f"1 KiB messages, UNIX: send_many of {BATCH}"
    lines = f"writelines of {BATCH}+drain"
    return Race(
        "sockets",
        f"1 KiB, UNIX, {BATCH} at a time",
        small(quick, 5000),
        [
            *(
                make(f"{name}", sender=in_python(lab, way, loop), loop=loop)
                for loop in LOOPS
                for name, way in (
                    (f"send_many of {BATCH}, {loop}", send_many),
                    (f"{loop} {lines}", writelines_and_drain),
                )
            ),
            make(
                "uvloop write+drain",
                sender=in_python(lab, write_and_drain, "uvloop"),
                loop="uvloop",
            ),
        ],
        [
            *duels(
                f"send_many of {BATCH}, uvloop",
                {
                    "uvloop write+drain": DRAIN,
                    f"uvloop {lines}": "uvloop writelines + drain",
                },
                work,
                unit="messages",
            ),
            *duels(
                f"send_many of {BATCH}, asyncio",
                {f"asyncio {lines}": "asyncio writelines + drain"},
                work,
                unit="messages",
            ),
        ],
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
            await put_each(stream, messages, job.in_flight)


async def send_many(job: Job) -> None:
    async with opened(job) as stream:
        for batches in job.batches():
            for batch in batches:
                await stream.send_many(batch)


async def send_each(stream: SendStream, messages: Iterable[Any]) -> None:
    for message in messages:
        await stream.send(message)


async def put_each(stream: SendStream, messages: Iterable[Any], in_flight: int) -> None:
    flying: collections.deque[Ticket] = collections.deque()
    for message in messages:
        if len(flying) == in_flight:
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
