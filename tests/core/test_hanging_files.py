"""A file whose file system does not answer delays only its own bytes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hanging_files import HangingFile, hanging_file
from oracle import payload

import aiozerocopy as azc
from aiozerocopy._core.binding import PORTABLE

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(
        PORTABLE, reason="only on Linux need calls not ask the file system"
    ),
]

DATA = bytes(payload(1, 3 << 20))


@pytest.fixture
def file(tmp_path: Path) -> Iterator[HangingFile]:
    with hanging_file(tmp_path) as file:
        yield file
        assert file.answers, "a call waited for the file system"


def writer(file: HangingFile) -> azc.SendStream:
    return azc.open_writer(os.open(file.path, os.O_WRONLY))


@pytest.mark.parametrize("way", ["aclose", "no linger", "abort", "dropped"])
async def test_sends_and_the_end(file: HangingFile, way: str) -> None:
    stream = writer(file)
    file.hold()
    await stream.send(DATA)
    await stream.put(DATA)
    await stream.flush()
    assert stream.stats.bytes_sent == 2 * len(DATA)
    if way == "abort":
        stream.abort()
    elif way == "dropped":
        with pytest.warns(ResourceWarning):
            del stream
    else:
        await stream.aclose(linger=0 if way == "no linger" else None)


async def test_another_relay_begins(file: HangingFile) -> None:
    async with writer(file) as stream, azc.socketpair() as (near, far):
        left, right = azc.pipe()
        async with left, right:
            file.hold()
            await stream.put(DATA)
            await right.send(b"some bytes")
            relay = azc.relay(left, near, 10)
            assert await relay == 10
            assert await far.receive() == b"some bytes"


def fork(file: HangingFile) -> None:
    """Fork a child that says that it runs; its exit closes the file, and waits."""
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if not child:
        os.write(write_fd, b"alive")
        os._exit(0)
    os.close(write_fd)
    assert os.read(read_fd, 5) == b"alive"
    os.close(read_fd)
    file.release()
    os.waitpid(child, 0)


async def test_a_fork(file: HangingFile) -> None:
    async with writer(file) as stream:
        file.hold()
        await stream.send(DATA)
        fork(file)


PROGRAM = """
import atexit, sys
atexit.register(print, "over", flush=True)
import anyio, aiozerocopy as azc, os

async def main():
    stream = azc.open_writer(os.open(sys.argv[1], os.O_WRONLY))
    print("open", flush=True)
    input()
    await stream.send(bytes(3 << 20))
    streams.append(stream)

streams = []
anyio.run(main)
"""


def test_the_end_of_the_program(file: HangingFile) -> None:
    command = [sys.executable, "-c", PROGRAM, file.path]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "open\n"
        file.hold()
        print(file=program.stdin, flush=True)
        assert program.stdout.readline() == "over\n"
        file.release()  # the kernel closes the file at exit, and waits for the answer
