"""Proves that an installed aiozerocopy works with only its dependencies."""

import os
import sys

import anyio

import aiozerocopy as azc

DATA = bytes(range(256)) * 4096  # 1 MiB: more than a pipe holds


async def send(fd: int) -> None:
    """Send all of it, then end the stream."""
    async with azc.open_writer(fd) as stream:
        await stream.send(DATA)


async def main() -> None:
    """Send a message through a pipe and compare what arrives."""
    reader, writer = os.pipe()
    received = bytearray(len(DATA))
    async with anyio.create_task_group() as tasks, azc.open_reader(reader) as stream:
        tasks.start_soon(send, writer)
        await stream.receive_exactly(received)
    assert received == DATA
    gil = "on" if getattr(sys, "_is_gil_enabled", lambda: True)() else "off"
    print(f"{len(received)} bytes arrived, from {azc.__file__}: the GIL is {gil}")


anyio.run(main)
