"""A send that leaves the caller's memory alone: some of it goes at once, a copy later.

So OpenGL's mapped buffers are sent, which must be unmapped before the call returns.
The portable build sends nothing at once: its threads may not write to a pipe that
could block them.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import termios
import time
from typing import TYPE_CHECKING

import pytest

from aiozerocopy import StreamBroken, StreamClosed
from aiozerocopy._core.binding import PORTABLE
from aiozerocopy._core.borrows import Port
from aiozerocopy._core.channel import OUT, Channel
from aiozerocopy._core.pins import pin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aiozerocopy._core.borrows import Operation

BIG = 3_000_003  # bytes, more than a pipe takes


class Pipe:
    """A channel, and the other end if it is a pipe's."""

    def __init__(self, writer: int = -1) -> None:
        self.reader = -1
        if writer < 0:
            self.reader, writer = os.pipe()
        self.port = Port()
        self.channel = Channel(writer, OUT)
        self.channel.set_limit(1 << 40)

    def send(self, data: bytes) -> Operation:
        """From memory that is another's as soon as the call returns."""
        memory = bytearray(data)
        with pin(memory) as view:
            copy = mmap.mmap(-1, max(1, len(data)))
            operation = self.channel.send_copied(self.port, view, copy)
        memory[:] = bytes(len(memory))
        memory.append(0)
        return operation

    def read(self, n: int) -> bytes:
        data = b""
        while len(data) < n:
            data += os.read(self.reader, n - len(data))
        return data

    def wait(self, operation: Operation) -> None:
        assert self.port.wait(operation, 10)
        operation.raise_if_failed()

    def wait_until_full(self) -> int:
        """Return what is in the pipe once it takes no more."""
        size = fcntl.fcntl(self.reader, fcntl.F_GETPIPE_SZ)
        deadline = time.monotonic() + 10
        while self.unread() < size:
            assert time.monotonic() < deadline
        return size

    def unread(self) -> int:
        answer = fcntl.ioctl(self.reader, termios.FIONREAD, bytes(4))
        return int.from_bytes(answer, sys.byteorder)

    def close_reader(self) -> None:
        os.close(self.reader)
        self.reader = -1

    def close(self) -> None:
        self.channel.abort()
        if self.reader >= 0:
            self.close_reader()
        for operation in list(self.port.operations.values()):
            assert self.port.wait(operation, 10)
        assert self.port.close()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    try:
        yield pipe
    finally:
        pipe.close()


@pytest.mark.parametrize("n", [0, 1, 5000, 60_000])
def test_what_fits_is_out_at_once(pipe: Pipe, n: int) -> None:
    data = os.urandom(n)
    operation = pipe.send(data)
    assert operation.done or PORTABLE
    assert pipe.read(n) == data
    pipe.wait(operation)
    assert pipe.channel.stats().messages == 1


def test_rest_follows_from_the_copy(pipe: Pipe) -> None:
    data = os.urandom(BIG)
    operation = pipe.send(data)
    assert not operation.done
    out = pipe.channel.stats().bytes
    assert PORTABLE or 0 < out < BIG  # it has begun already
    assert pipe.read(BIG) == data
    pipe.wait(operation)
    assert pipe.channel.stats().messages == 1


def test_order_is_that_of_the_calls(pipe: Pipe) -> None:
    sent = [os.urandom(n) for n in (BIG, 10, 200_000, 0, BIG)]
    operations = [pipe.send(data) for data in sent]
    assert pipe.read(2 * BIG + 200_010) == b"".join(sent)
    for operation in operations:
        pipe.wait(operation)


def test_copy_is_borrowed_until_it_is_out(pipe: Pipe) -> None:
    copy = bytearray(BIG)
    with pin(bytes(BIG)) as view:
        operation = pipe.channel.send_copied(pipe.port, view, copy)
    with pytest.raises(BufferError):
        copy.append(0)
    pipe.read(BIG)
    pipe.wait(operation)
    copy.append(0)


def test_reader_that_is_gone(pipe: Pipe) -> None:
    operation = pipe.send(bytes(BIG))
    out = pipe.wait_until_full()
    pipe.close_reader()
    with pytest.raises(StreamBroken) as raised:
        pipe.wait(operation)
    assert (raised.value.bytes_sent, raised.value.total) == (out, BIG)
    with pytest.raises(StreamBroken):
        pipe.send(b"more")


def test_reader_that_was_never_there(pipe: Pipe) -> None:
    pipe.close_reader()
    with pytest.raises(StreamBroken) as raised:
        pipe.wait(pipe.send(bytes(BIG)))
    assert (raised.value.bytes_sent, raised.value.total) == (0, BIG)


def test_closed(pipe: Pipe) -> None:
    waiting = pipe.send(bytes(BIG))
    pipe.channel.abort()
    with pytest.raises(StreamClosed):
        pipe.wait(waiting)
    with pytest.raises(StreamClosed):
        pipe.send(b"late")


def test_file(tmp_path: Path) -> None:
    """No pipe: all of it is copied first."""
    pipe = Pipe(os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY))
    data = os.urandom(BIG)
    pipe.wait(pipe.send(data))
    pipe.close()
    assert (tmp_path / "file").read_bytes() == data
