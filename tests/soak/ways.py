"""Open a stream, and get the fd of its other end for the receiving process.

pipe      `azc.pipe()`                          unix    a socket pair
adopted   a pipe of the usual size              tcp4    127.0.0.1
lending   a pipe whose reader only reads, so    relay   a pipe, and a relay from there
          that a pool's frames are not copied           to one of `RELAYED`
fifo      a FIFO in the file system

lending-unix is a socket pair whose reader only reads, likewise.
"""

import os
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from links import open_link

import aiozerocopy as azc

# Out of a hundred streams
SHARES = {
    **{"pipe": 20, "adopted": 18, "lending": 8, "lending-unix": 7, "fifo": 10},
    **{"unix": 16, "tcp4": 12, "relay": 9},
}
RELAYED = ("pipe", "adopted", "fifo", "unix", "tcp4")  # where a relay may lead to


def shared_out(streams: int) -> list[str]:
    """Return the way of each stream."""
    hundred = [way for way, share in SHARES.items() for _ in range(share)]
    return [hundred[(2 * n + 1) * 100 // (2 * streams)] for n in range(streams)]


def open_end(way: str, folder: Path) -> tuple[azc.SendStream, int]:
    """Open our end, and the fd of the other end, which the caller must close."""
    if way == "pipe":
        reader, writer = azc.pipe()
        fd = os.dup(reader.fileno())
        reader.abort()
        return writer, fd
    with (
        tempfile.TemporaryDirectory(dir=folder) as own,
        open_link(way, Path(own)) as it,
    ):
        return it.sender(), it.take_read_fd()


async def relay(source: azc.ReceiveStream, sink: azc.SendStream) -> None:
    """Relay until the source or the sink ends."""
    async with AsyncExitStack() as stack:
        stack.callback(source.abort)
        stack.callback(sink.abort)
        try:
            await azc.relay(source, sink)
            await sink.aclose()
        except azc.StreamBroken:
            pass  # the reader has gone; the sender will learn of it
