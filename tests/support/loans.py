"""Frames to lend, and a plain reader of the lender's pages."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
from links import fork, stuck
from oracle import payload, poison

import aiozerocopy as azc

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Not a multiple of a page, and more than a 64 KiB pipe or a tiny socket buffer holds.
SIZE = 400_000


def ends(kind: str) -> tuple[int, int]:
    """Make a pipe or a socket pair; return the reader's fd, and the writer's."""
    if kind == "pipe":
        return os.pipe()
    reader, writer = socket.socketpair()
    writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)  # (gets doubled)
    return reader.detach(), writer.detach()


def filled(pool: azc.FramePool, seed: int) -> azc.Frame:
    """Acquire a frame, with the payload of this seed."""
    frame = pool.acquire_nowait()
    frame.view[:] = payload(seed, len(frame.view))
    return frame


class Loan:
    """A stream that lends, the fd at its other end, and a pool."""

    def __init__(self, stream: azc.SendStream, fd: int, slots: int) -> None:
        os.set_blocking(fd, False)
        self.stream = stream
        self.fd = fd
        self.pool = azc.FramePool(SIZE, slots=slots)

    async def read(self, n: int, piece: int = 32 << 10) -> bytes:
        """Read n bytes, and let other tasks run while there are none."""
        data = bytearray()
        while len(data) < n:
            new = await read_once(self.fd, min(piece, n - len(data)))
            assert new, f"the data ended after {len(data):,} of {n:,} bytes"
            data += new
        return bytes(data)


async def read_once(fd: int, n: int) -> bytes:
    """Read up to n bytes as soon as there are some; b"" at the end."""
    while True:
        with contextlib.suppress(BlockingIOError):
            return os.read(fd, n)
        await anyio.lowlevel.checkpoint()


async def read_to_end(fd: int) -> bytes:
    """Read all data until the other end is closed."""
    data = bytearray()
    while piece := await read_once(fd, 1 << 20):
        data += piece
    return bytes(data)


async def cancel_halfway(stream: azc.SendStream, frame: azc.Frame) -> None:
    """Send the frame, and cancel the send when some bytes are out."""
    async with stuck(stream, frame) as tasks:
        tasks.cancel_scope.cancel()


def poison_in_a_child(buffer: Buffer) -> None:
    """Let a forked child overwrite its copy of the buffer."""
    in_a_child(lambda: poison(buffer))


def in_a_child(call: Callable[[], object]) -> bool:
    """Call this in a forked child; tell whether it returned something true."""
    child = fork()
    if not child:
        os._exit(bool(call()))
    return os.waitpid(child, 0)[1] != 0
