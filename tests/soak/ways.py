"""A stream to send to, and how its other end gets to the process that receives.

pipe      `azc.pipe()`                               unix    a socket pair
adopted   a pipe with the usual size, as it is       tcp     127.0.0.1
lent      a pipe whose reader only reads, so that    relay   a pipe, and a relay from
          a pool's frames travel without a copy              there to any of the others
fifo      a FIFO in the file system                  ring    shared memory
"""

from __future__ import annotations

import os
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import aiozerocopy as azc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# How many of each hundred, and whether they need a receiver of ours.
SHARES = {
    **{"pipe": 20, "adopted": 18, "lent": 15, "fifo": 10},
    **{"unix": 16, "tcp": 12, "relay": 6, "ring": 3},
}
KERNEL = ("pipe", "adopted", "lent", "fifo", "unix", "tcp")
RING = 1 << 20  # bytes
LARGEST = RING // 4 - 100  # bytes of a record


def shared_out(streams: int) -> list[str]:
    """The way of each of so many streams."""
    total = sum(SHARES.values())
    ways = list(SHARES)
    bounds = [sum(SHARES[way] for way in ways[: i + 1]) for i in range(len(ways))]
    places = ((2 * n + 1) * total / (2 * streams) for n in range(streams))
    return [
        next(way for way, bound in zip(ways, bounds, strict=True) if place < bound)
        for place in places
    ]


@dataclass
class End:
    """Our end, and the fd of the other one, which is to be closed here."""

    stream: azc.SendStream
    fd: int


def open_pipe(_folder: Path) -> End:
    reader, writer = azc.pipe()
    fd = os.dup(reader.fileno())
    reader.abort()
    return End(writer, fd)


def open_adopted(_folder: Path) -> End:
    read_fd, write_fd = os.pipe()
    return End(azc.open_writer(write_fd), read_fd)


def open_lent(_folder: Path) -> End:
    read_fd, write_fd = os.pipe()
    return End(azc.open_writer(write_fd, peer="reads"), read_fd)


def open_fifo(folder: Path) -> End:
    path = folder / f"fifo{os.urandom(8).hex()}"
    os.mkfifo(path)
    read_fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_fd = os.open(path, os.O_WRONLY)
    path.unlink()
    return End(azc.open_writer(write_fd), read_fd)


def open_unix(_folder: Path) -> End:
    ours, theirs = socket.socketpair()
    return End(azc.wrap_socket(ours), theirs.detach())


def open_tcp(_folder: Path) -> End:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    ours.setblocking(False)
    return End(azc.wrap_socket(ours), theirs.detach())


OPEN: dict[str, Callable[[Path], End]] = {
    "pipe": open_pipe,
    "adopted": open_adopted,
    "lent": open_lent,
    "fifo": open_fifo,
    "unix": open_unix,
    "tcp": open_tcp,
}


class Relayed:
    """A pipe to send to, and a task that relays from there to the real end."""

    def __init__(self, end: End) -> None:
        self.source, self.writer = azc.pipe()
        self.sink = end.stream

    async def run(self) -> None:
        """Until the source's end, or that of the sink."""
        async with AsyncExitStack() as stack:
            stack.callback(self.source.abort)
            stack.callback(self.sink.abort)
            try:
                await azc.relay(self.source, self.sink)
                await self.sink.aclose()
            except azc.StreamBroken:
                pass  # the reader has gone, and whoever sends will hear of it
