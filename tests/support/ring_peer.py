"""The other side of a ring, made by hand from docs/pages/ring-layout.md."""

import contextlib
import fcntl
import mmap
import os
import socket
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
from links import attempting
from rings import SMALL

import aiozerocopy as azc

# csrc/azc_ring.h
MAGIC = int.from_bytes(b"AZCRING1", "little")
ABI = 1
PAGE = 65_536
HELLO = struct.Struct("=QIIIiQ")  # magic, abi, kind, role, status, capacity
ASK, OFFER, ANSWER = 1, 2, 3
PRODUCER, CONSUMER = 1, 2
INDEX_OF_PRODUCER, INDEX_OF_CONSUMER = 128, 384
F_ADD_SEALS, F_GET_SEALS = 1033, 1034
SEALS = 1 | 2 | 4  # seal, shrink, grow


def hello(kind: int, role: int = 0, capacity: int = 0, **changes: int) -> bytes:
    fields = {"magic": MAGIC, "abi": ABI, "kind": kind, "role": role, "status": 0}
    fields |= {"capacity": capacity} | changes
    return HELLO.pack(*fields.values())


def memory(
    capacity: int = SMALL, seals: int = SEALS, size: int | None = None, **changes: int
) -> int:
    """Make a memfd like a listener's, or with deviations."""
    fd = os.memfd_create("azc_ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, PAGE + capacity if size is None else size)
    page = {"magic": MAGIC, "abi": ABI, "page_bytes": PAGE, "capacity": capacity}
    os.pwrite(fd, struct.pack("=QIIQ", *(page | changes).values()), 0)
    for side in (INDEX_OF_PRODUCER, INDEX_OF_CONSUMER):
        os.pwrite(fd, b"\xff" * 8, side + 128)  # wake_at: never
    if seals:
        fcntl.fcntl(fd, F_ADD_SEALS, seals)
    return fd


def bell() -> int:
    return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)


class Peer:
    """The hand-made peer of one of our rings."""

    def __init__(self, sock: socket.socket, fd: int, bells: list[int]) -> None:
        self.sock = sock
        self.fd = fd
        self.page = mmap.mmap(fd, PAGE + SMALL)
        self.bell, self.their_bell = bells

    def put(self, at: int, value: int, size: int = 8) -> None:
        self.page[at : at + size] = value.to_bytes(size, sys.byteorder)

    def ring(self) -> None:
        os.eventfd_write(self.their_bell, 1)

    def commit(self, position: int, stamp: int, size: int) -> None:
        """Write a record's header, in the first lap, and move the index behind it."""
        at = PAGE + position + 48
        self.page[at : at + 16] = struct.pack("=QII", stamp, size, 7)
        self.put(INDEX_OF_PRODUCER, position + 64)
        self.ring()

    def close(self) -> None:
        self.sock.close()
        self.page.close()
        for fd in (self.fd, self.bell, self.their_bell):
            os.close(fd)


@contextlib.asynccontextmanager
async def facing(folder: Path, sends: bool) -> AsyncIterator[tuple[azc.shm.Ring, Peer]]:
    """A ring of ours, and its hand-made peer."""
    path = folder / "ring"
    async with attempting(listen, path, sends) as listener:
        while not path.exists():
            await anyio.lowlevel.checkpoint()
        peer = await anyio.to_thread.run_sync(meet, path)
    try:
        async with listener.result as ring:
            yield ring, peer
    finally:
        peer.close()


async def listen(path: Path, sends: bool) -> azc.shm.Ring:
    return await azc.shm.listen_ring(path, SMALL, sends=sends)


def meet(path: Path) -> Peer:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    while sock.connect_ex(str(path)):
        pass
    sock.send(hello(ASK))
    offer, fds, _, _ = socket.recv_fds(sock, 100, 3)
    assert offer in (hello(OFFER, role, SMALL) for role in (PRODUCER, CONSUMER))
    assert fcntl.fcntl(fds[0], F_GET_SEALS) & SEALS == SEALS
    peer = Peer(sock, fds[0], fds[1:])
    sock.send(hello(ANSWER))
    return peer
