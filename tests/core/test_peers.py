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

import array
import gc
import logging
import os
import threading
import tracemalloc

import pytest
from links import Link, reading, until

import aiozerocopy as azc
from aiozerocopy import StreamBroken

pytestmark = pytest.mark.anyio


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
