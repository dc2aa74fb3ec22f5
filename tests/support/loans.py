"""Frames to lend, and a plain reader who takes them out of the lender's pages."""

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

# No multiple of a page, and more than a pipe of 64 KiB or a tiny socket buffer holds.
SIZE = 400_000


def ends(kind: str) -> tuple[int, int]:
    """A pipe's or a socket pair's ends: the reader's fd, and the writer's."""
    if kind == "pipe":
        return os.pipe()
    reader, writer = socket.socketpair()
    writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)  # doubled
    return reader.detach(), writer.detach()


def filled(pool: azc.FramePool, seed: int) -> azc.Frame:
    """A frame with the payload of this seed."""
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
        """Read n bytes, letting others run while there are none."""
        data = bytearray()
        while len(data) < n:
            new = await read_once(self.fd, min(piece, n - len(data)))
            assert new, f"it ended after {len(data):,} of {n:,} bytes"
            data += new
        return bytes(data)


async def read_once(fd: int, n: int) -> bytes:
    """Up to n bytes, as soon as there are some; none at the end."""
    while True:
        with contextlib.suppress(BlockingIOError):
            return os.read(fd, n)
        await anyio.lowlevel.checkpoint()


async def read_to_end(fd: int) -> bytes:
    """All that comes until the other end is closed."""
    data = bytearray()
    while piece := await read_once(fd, 1 << 20):
        data += piece
    return bytes(data)


async def cancel_halfway(stream: azc.SendStream, frame: azc.Frame) -> None:
    """Send the frame, and cancel that when some of it is out."""
    async with stuck(stream, frame) as tasks:
        tasks.cancel_scope.cancel()


def poison_in_a_child(buffer: Buffer) -> None:
    """Let a forked child store into its copy of it."""
    in_a_child(lambda: poison(buffer))


def in_a_child(call: Callable[[], object]) -> bool:
    """Whether what this returns in a forked child is true."""
    child = fork()
    if not child:
        os._exit(bool(call()))
    return os.waitpid(child, 0)[1] != 0
