"""Contenders that feed sink.c, over a link or as its parent, or that feed.c feeds.

The receiver's clock runs from the first byte after the warm-up to the last; the sender
reports the CPU seconds that it used from there on.
"""

import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from aiozerocopy._core.pipe_size import PIPE_SIZE, enlarge_pipe
from bench.processes import Crew, Lab, worker
from bench.race import Contender, Run, Work, WrongBytes

Link = Callable[[], tuple[int, int]]
# Its arguments: the work, the fd of the link (-1: start the sink), the sink.
Sender = Callable[[Work, int, list[str]], list[str]]
Source = Callable[[Crew, Work], int]
# Its arguments: the work, and whether to check; the link is its stdin.
Receiver = Callable[[Work, bool], list[str]]

READ_SIZE = 1 << 20
LOOPS = ("asyncio", "uvloop")
RIVAL_LOOPS = (*LOOPS, *(f"{loop}+aiofastnet" for loop in LOOPS))


def unix_link() -> tuple[int, int]:
    """Return the sender's fd and the sink's, for the caller to close."""
    a, b = socket.socketpair()
    return a.detach(), b.detach()


def tcp_link() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        a = socket.create_connection(server.getsockname())
        b, _ = server.accept()
    # asyncio and uvloop set it anyway, so set it for all.
    a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return a.detach(), b.detach()


def pipe_link(size: int = PIPE_SIZE) -> tuple[int, int]:
    reader, writer = os.pipe()
    enlarge_pipe(writer, size)
    return writer, reader


def fed(
    lab: Lab,
    name: str,
    link: Link | None,
    sender: Sender,
    loop: str = "asyncio",
    **more: Any,
) -> Contender:
    run = partial(feed, lab, name, link, sender, **more)
    return Contender(name, run, needs_of(loop))


def in_loops(
    lab: Lab,
    link: Link | None,
    ways: dict[str, Callable[..., Any]],
    loops: Sequence[str] = LOOPS,
    *,
    receive: bool = False,
    kind: str = "memoryview",
    **more: Any,
) -> list[Contender]:
    """Make contenders in Python, one in each loop, with the loop's name in theirs."""

    def made(name: str, way: Callable[..., Any], loop: str) -> Contender:
        if receive:
            sink: Any = {"receiver": partial(python_sink, lab, way, loop)}
            sink |= {"measured": "sink"}
            return fed(lab, name, link, partial(in_c, lab), loop, **sink, **more)
        return fed(lab, name, link, in_python(lab, way, loop, kind=kind), loop, **more)

    return [
        made(name.format(loop), way, loop)
        for name, way in ways.items()
        for loop in loops
    ]


def needs_of(loop: str, *modules: str) -> tuple[str, ...]:
    return (*(name for name in loop.split("+") if name != "asyncio"), *modules)


def feed(
    lab: Lab,
    name: str,
    link: Link | None,
    sender: Sender,
    work: Work,
    check: bool,
    read_size: int = READ_SIZE,
    source: Source | None = None,
    receiver: Receiver | None = None,
    measured: str = "sender",
) -> Run:
    """Do the work once: start the sink, the source if there is one, and the sender.

    The sink is sink.c, or the `receiver`; the CPU time that counts is that of the
    `measured` end.
    """
    sink = (receiver or partial(c_sink, lab, read_size, fill=False))(work, check)
    with Crew(lab) as crew:
        if link is None:
            crew.start(sender(work, -1, sink))
        else:
            fds = [*link()]
            try:
                crew.start(sink, stdin=fds[1])
                if source is not None:
                    fds.append(source(crew, work))
                stdin = None if source is None else fds[2]
                crew.start(sender(work, fds[0], sink), stdin=stdin, pass_fds=fds[:1])
            finally:
                for fd in fds:
                    os.close(fd)
        told = crew.finish()
    got = told["sink"]
    if got["bytes"] != work.total or got["wrong"] >= 0:
        raise WrongBytes(
            f"{name}: {got['bytes']:,} bytes came, not {work.total:,}, "
            f"the first wrong one is number {got['wrong']}"
        )
    other = {"sender": "sink", "sink": "sender"}[measured]
    return Run(got["seconds"], told[measured]["cpu"], told[other]["cpu"])


def c_sink(lab: Lab, size: int, work: Work, check: bool, *, fill: bool) -> list[str]:
    """A loop of reads of `size`; with `fill`, each goes on until all of it is there."""
    numbers = (work.size * work.warm, work.total, size, int(fill))
    pattern = [lab.pattern(work)] if check else []
    return [lab.program("sink"), *map(str, numbers), *pattern]


def in_c(lab: Lab, work: Work, to: int | str, sink: list[str]) -> list[str]:
    """A loop of writes or sends to an fd, or of records to the ring at a path."""
    numbers = (to, work.size, work.warm, work.messages)
    return [lab.program("feed"), *map(str, numbers), lab.pattern(work)]


def in_python(
    lab: Lab, way: Callable[..., Any], loop: str = "asyncio", **told: Any
) -> Sender:
    def command(work: Work, fd: int, sink: list[str]) -> list[str]:
        about = {**work.told, "pattern": lab.pattern(work), **told}
        return worker(way, loop=loop, fd=fd, sink=sink, **about)

    return command


def python_sink(
    lab: Lab, way: Callable[..., Any], loop: str, work: Work, check: bool, **more: Any
) -> list[str]:
    told = {**work.told, "pattern": lab.pattern(work), **more}
    return worker(way, loop=loop, fd=0, check=check, **told)
