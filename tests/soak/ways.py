"""A stream to send to, and how its other end gets to the process that receives.

pipe      `azc.pipe()`                               unix    a socket pair
adopted   a pipe with the usual size, as it is       tcp4    127.0.0.1
lending     a pipe whose reader only reads, so that    relay   a pipe, and a relay from
          a pool's frames travel without a copy              there to any of the others
fifo      a FIFO in the file system
"""

import os
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from links import open_link

import aiozerocopy as azc

# How many of each hundred
SHARES = {
    **{"pipe": 20, "adopted": 18, "lending": 8, "lending-unix": 7, "fifo": 10},
    **{"unix": 16, "tcp4": 12, "relay": 9},
}
RELAYED = ("pipe", "adopted", "fifo", "unix", "tcp4")  # where a relay may lead to


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
    with (
        tempfile.TemporaryDirectory(dir=folder) as own,
        open_link(way, Path(own)) as it,
    ):
        return it.sender(), it.take_read_fd()


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
