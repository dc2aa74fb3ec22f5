"""What other libraries get wrong, as tests of ours.

Most of it is the contract, and tested there (contract/), on every link:

    a buffer can be resized, or is freed, while it is in flight     P0
    the reader's death kills the process, or reads as success       P6
    one stalled fd holds up others                                  P5
    concurrent senders are refused, or mixed                        P1
    a cancelled send leaves bytes that change later                 P2
    abort makes a pending send look like a success                  test_closing.py
    a number that was closed gets the bytes of another file         TestNumbers
    a forked child hangs; what was queued is lost without a word    TestFork, TestExit
    NumPy, mmap and array are refused, or sent in part              core/test_buffers.py
    the rest of a view is counted in elements                       core/test_buffers.py
    a batch is taken before its reader takes it                     core/test_batches.py
    a child cannot open /dev/stdin                                  core/test_opening.py
    a stream's file must be non-blocking, or blocking               TestModes

Here is the rest.
"""

from __future__ import annotations

import array
import gc
import logging
import os
import socket
import struct
import threading
import tracemalloc
from typing import TYPE_CHECKING

import anyio
import pytest
from links import (
    BIG,
    Link,
    attempt,
    begun,
    open_link,
    others_wait,
    reading,
    until,
)
from oracle import assert_same, message, payload, poison

import aiozerocopy as azc
from aiozerocopy import StreamBroken

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def unix(tmp_path: Path) -> Iterator[Link]:
    with open_link("unix", tmp_path) as opened:
        yield opened


async def test_many_objects_leave_nothing_behind(
    pipe: Link, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "asyncio")  # (it tells of slow callbacks)
    came = threading.Event()
    async with reading(pipe, lambda _: came.set()), pipe.sender() as stream:
        await stream.send(b"warm")
        await until(came.is_set)  # the reader has its memory
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for n in range(3_000):
                await stream.send(bytearray(50), b"%d" % n)
                await stream.put(array.array("b", b"x" * 50))
            await stream.flush()
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert after - before < 100_000


async def test_message_that_fits_half_is_not_done_before_it_is_out(unix: Link) -> None:
    """A water mark of 64 KiB would say yes here, with half of it still in memory."""
    received = bytearray()
    async with reading(unix, received.extend, start=False) as reader:
        stream = unix.sender()
        with socket.socket(fileno=os.dup(stream.fileno())) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_608)
        async with stream:
            frame = bytearray(payload(1, 60_000))
            async with anyio.create_task_group() as tasks:
                sending = attempt(tasks, stream.send, frame)
                await begun(stream)
                await others_wait()
                assert not sending.done
                reader.start()
            poison(frame)
    assert_same(received, payload(1, 60_000))


@pytest.mark.parametrize("end", ["aclose", "abort", "reset"])
async def test_closing_twice_closes_nobody_elses_file(pipe: Link, end: str) -> None:
    read_fd = pipe.take_read_fd()
    reader, stream = azc.open_reader(read_fd), pipe.sender()
    await stream.send(b"x")
    numbers = {reader.fileno(), stream.fileno()}
    if end == "reset":
        reader.abort()
        with pytest.raises(StreamBroken):
            await stream.send(b"x")
    for each in (reader, stream):
        if end == "aclose":
            await each.aclose()
        else:
            each.abort()
    others: list[int] = []
    while not numbers <= set(others):
        others.append(os.open(os.devnull, os.O_RDONLY))
    for each in (reader, stream):
        await each.aclose()
        each.abort()
    del reader, stream, each
    gc.collect()
    for fd in others:
        os.close(fd)


async def test_reset_while_a_send_waits(tmp_path: Path) -> None:
    with open_link("tcp4", tmp_path) as link:
        async with link.sender() as stream, anyio.create_task_group() as tasks:
            sending = attempt(tasks, stream.send, message(1, 0, 10 * BIG // 4))
            await begun(stream)
            with socket.socket(fileno=link.take_read_fd()) as peer:
                linger = struct.pack("ii", 1, 0)
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        assert isinstance(sending.error, StreamBroken)
        assert isinstance(sending.error.__cause__, ConnectionResetError)
