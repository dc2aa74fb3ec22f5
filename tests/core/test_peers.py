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

Here is the rest.
"""

from __future__ import annotations

import array
import gc
import logging
import os
import socket
import struct
import subprocess
import threading
import tracemalloc
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
from links import (
    BIG,
    EACH_WAY,
    Link,
    attempt,
    begun,
    open_link,
    others_wait,
    reading,
    stuck,
    until,
)
from oracle import Checker, assert_same, message, payload, poison

import aiozerocopy as azc
from aiozerocopy import StreamBroken

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.every_loop]


@pytest.fixture(params=EACH_WAY)
def link(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Link]:
    with open_link(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Link]:
    with open_link("pipe", tmp_path) as opened:
        yield opened


@pytest.fixture
def unix(tmp_path: Path) -> Iterator[Link]:
    with open_link("unix", tmp_path) as opened:
        yield opened


async def test_fd_that_was_set_non_blocking_works(link: Link) -> None:
    fd = link.take_write_fd()
    os.set_blocking(fd, False)
    checker = Checker()
    async with reading(link, checker.feed), azc.open_writer(fd) as stream:
        await stream.send(message(1, 0, BIG))
    checker.finish()


async def test_reader_in_the_same_loop_gets_its_turn(link: Link) -> None:
    """A library that holds the GIL, or the loop, while it waits would hang here."""
    data = message(1, 0, BIG)
    copy = bytearray(len(data))
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await anyio.lowlevel.checkpoint()

    async with link.receiver() as receiver, link.sender() as stream:
        async with anyio.create_task_group() as ticking:
            ticking.start_soon(tick)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.send, data)
                await receiver.receive_exactly(copy)
            ticking.cancel_scope.cancel()
    assert copy == data
    assert ticks > 1


async def test_view_that_nobody_keeps(link: Link) -> None:
    data = message(1, 0, BIG)
    checker = Checker()
    async with reading(link, checker.feed, start=False) as reader:
        async with link.sender() as stream:
            async with anyio.create_task_group() as tasks:
                sending = attempt(tasks, stream.send, memoryview(data)[:])
                await begun(stream)
                gc.collect()
                with pytest.raises(BufferError):
                    data.clear()
                assert not sending.done
                reader.start()
            data.clear()
    checker.finish()


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


@pytest.mark.parametrize("kind", ["float", "double", "int", "short"])
async def test_rest_of_a_view_is_counted_in_bytes(link: Link, kind: str) -> None:
    data = bytes(payload(1, BIG))
    view = memoryview(data)
    views: dict[str, memoryview[Any]] = {
        "float": view.cast("f"),
        "double": view.cast("d"),
        "int": view.cast("I"),
        "short": view.cast("H"),
    }
    received = bytearray()
    async with reading(link, received.extend, start=False) as reader:
        async with link.sender() as stream:
            async with stuck(stream, views[kind]):
                reader.start()
            await stream.send(np.frombuffer(data, np.uint8).reshape(16, -1))
    assert_same(received, data * 2)


async def test_batch_is_taken_as_the_reader_takes_it(link: Link) -> None:
    taken = 0
    checker = Checker()

    def messages() -> Iterator[bytearray]:
        nonlocal taken
        for sequence in range(1_000):
            taken += 1
            yield message(1, sequence, 20_000)

    async with reading(link, checker.feed, start=False) as reader:
        async with link.sender() as stream, anyio.create_task_group() as tasks:
            tasks.start_soon(stream.send_many, messages())
            await begun(stream)
            await others_wait()
            assert taken * 20_000 < 3 * BIG
            assert stream.stats.bytes_queued < 2 * BIG
            tasks.cancel_scope.cancel()
            reader.start()
    checker.finish()


async def test_batch_that_ends_with_an_empty_message(link: Link) -> None:
    received = bytearray()
    async with reading(link, received.extend, start=False) as reader:
        async with link.sender() as stream, anyio.create_task_group() as tasks:
            tasks.start_soon(stream.send_many, [bytes(payload(1, BIG)), b""])
            await begun(stream)
            reader.start()
    assert_same(received, payload(1, BIG))


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


async def test_child_can_open_its_standard_input() -> None:
    child = subprocess.Popen(  # noqa: ASYNC220 - it is the fds that matter here
        ["cat", "/dev/stdin"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    data = message(1, 0, BIG)
    copy = bytearray(len(data))
    async with azc.open_reader(child.stdout) as reader:
        async with azc.open_writer(child.stdin) as stream:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.send, data)
                await reader.receive_exactly(copy)
        with pytest.raises(anyio.EndOfStream):
            await reader.receive()
    assert copy == data
    assert child.wait() == 0
