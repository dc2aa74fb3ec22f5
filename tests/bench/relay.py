"""Bytes that are only passed on: a file to TCP, and pipe to pipe.

The source is the relay's standard input: a file, or a pipe that another process fills
with as many bytes as are to be moved.  The CPU time is that of the relay alone.
"""

import asyncio
import os
import stat
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import aiozerocopy as azc
from bench.feeding import Link, Source, fed, in_c, in_python, pipe_link, tcp_link
from bench.processes import Crew, Lab
from bench.race import Race, Work, duels
from bench.worker import Job

CHUNK = 256 << 10  # bytes that are received, and sent, at a time
IN = 0


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    yield race(lab, quick, "file to TCP", partial(opened_file, lab), tcp_link)
    yield race(lab, quick, "pipe to pipe", partial(filled_pipe, lab), pipe_link)


def race(lab: Lab, quick: bool, title: str, source: Source, link: Link) -> Race:
    make = partial(fed, lab, link=link, source=source)
    ours, others = "relay, asyncio", "receive and send, asyncio"
    ways = {ours: relay, others: receive_and_send}
    rivals = {"C splice loop": "C loop of splice"}
    if title == "file to TCP":
        ways["loop.sendfile"] = sendfile
        rivals = {"C splice loop": "C loop of sendfile", "loop.sendfile": ""}
    rivals[others] = "receive and send"
    return Race(
        "relay",
        title,
        Work(1 << 20, 16 if quick else 512, warm=4, buffers=4),
        [
            make("C splice loop", sender=partial(splice, lab)),
            *(make(name, sender=in_python(lab, way)) for name, way in ways.items()),
        ],
        duels(ours, rivals, f"{title}: relay", front="loop.sendfile"),
    )


def splice(lab: Lab, work: Work, fd: int, sink: list[str]) -> list[str]:
    """A loop in C that calls sendfile or splice."""
    return [lab.program("splice"), str(fd), str(work.total)]


# ---- where the bytes come from: an fd to read from -----------------------------------


def opened_file(lab: Lab, crew: Crew, work: Work) -> int:
    """Open a file of exactly as many bytes as are moved: some copy a whole file."""
    path = lab.path / f"source-{work.total}"
    if not path.exists():
        data = Path(lab.pattern(work)).read_bytes()
        path.write_bytes(data * (work.total // len(data)))
    return os.open(path, os.O_RDONLY)


def filled_pipe(lab: Lab, crew: Crew, work: Work) -> int:
    writer, reader = pipe_link()
    feed = in_c(lab, work, writer, [])
    try:
        crew.start(feed, pass_fds=(writer,), stdout=subprocess.DEVNULL)
    finally:
        os.close(writer)
    return reader


# ---- aiozerocopy ---------------------------------------------------------------------


@asynccontextmanager
async def opened_sink(job: Job) -> AsyncIterator[azc.SendStream]:
    os.set_blocking(job.fd, False)  # as are all fds that this package makes
    async with azc.open_writer(job.fd) as sink:
        job.begin()
        yield sink


async def relay(job: Job) -> None:
    is_file = stat.S_ISREG(os.fstat(IN).st_mode)
    source: Any = nullcontext(IN) if is_file else azc.open_reader(IN)
    async with source as given, opened_sink(job) as sink:
        await azc.relay(given, sink, job.total)


async def receive_and_send(job: Job) -> None:
    """The obvious loop."""
    async with azc.open_reader(IN) as source, opened_sink(job) as sink:
        left = job.total
        while left:
            data = await source.receive(min(CHUNK, left))
            left -= len(data)
            await sink.send(data)


# ---- others --------------------------------------------------------------------------


async def sendfile(job: Job) -> None:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=job.socket())
    with closing(transport), os.fdopen(IN, "rb", buffering=0) as source:
        job.begin()
        await loop.sendfile(transport, source, 0, job.total, fallback=False)
