"""A stream to send to, and how its other end gets to the process that receives.

pipe      `azc.pipe()`                               unix    a socket pair
adopted   a pipe with the usual size, as it is       tcp     127.0.0.1
lent      a pipe whose reader only reads, so that    relay   a pipe, and a relay from
          a pool's frames travel without a copy              there to any of the others
fifo      a FIFO in the file system
"""

import os
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import aiozerocopy as azc

# How many of each hundred
SHARES = {
    **{"pipe": 20, "adopted": 18, "lent": 8, "lent-unix": 7, "fifo": 10},
    **{"unix": 16, "tcp": 12, "relay": 9},
}
RELAYED = ("pipe", "adopted", "fifo", "unix", "tcp")  # where a relay may lead to


def shared_out(streams: int) -> list[str]:
    """The way of each of so many streams."""
    hundred = [way for way, share in SHARES.items() for _ in range(share)]
    return [hundred[(2 * n + 1) * 100 // (2 * streams)] for n in range(streams)]


def open_end(way: str, folder: Path) -> tuple[azc.SendStream, int]:
    """Our end, and the fd of the other one, which is to be closed here."""
    if way == "pipe":
        reader, writer = azc.pipe()
        fd = os.dup(reader.fileno())
        reader.abort()
        return writer, fd
    peer = "reads" if way.startswith("lent") else "unknown"
    if way in ("unix", "lent-unix"):
        ours, theirs = socket.socketpair()
        return azc.wrap_socket(ours, peer=peer), theirs.detach()
    if way == "tcp":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            theirs, _ = listener.accept()
        ours.setblocking(False)
        return azc.wrap_socket(ours), theirs.detach()
    if way == "fifo":
        path = folder / f"fifo{os.urandom(8).hex()}"
        os.mkfifo(path)
        read_fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        write_fd = os.open(path, os.O_WRONLY)
        path.unlink()
    else:
        read_fd, write_fd = os.pipe()
    return azc.open_writer(write_fd, peer), read_fd


async def relay(source: azc.ReceiveStream, sink: azc.SendStream) -> None:
    """Until the source's end, or that of the sink."""
    async with AsyncExitStack() as stack:
        stack.callback(source.abort)
        stack.callback(sink.abort)
        try:
            await azc.relay(source, sink)
            await sink.aclose()
        except azc.StreamBroken:
            pass  # the reader has gone, and whoever sends will hear of it
