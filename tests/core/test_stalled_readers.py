"""A reader that stops inside of the kernel's copy delays only its own pipe.

Every system call on such a pipe waits for the reader, and no signal ends that wait.  So
with `peer="untrusted"`, the event loop's thread makes no such call.
"""

import os
import platform
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import figures
import pytest
from links import attempt, linux_only, submitted, until
from oracle import poison

import aiozerocopy as azc

pytestmark = [
    linux_only,
    pytest.mark.anyio,
    pytest.mark.skipif(
        platform.machine() != "x86_64", reason="userfaultfd has another number"
    ),
]

PROGRAM = Path(__file__).parents[1] / "support" / "stalled_reader.py"
BIG = 1 << 20
TURNS = 300


@pytest.fixture(scope="module", autouse=True)
def may_stall() -> None:
    """Skip all tests where the kernel permits userfaultfd only to root."""
    wait_fd, go_fd = os.pipe()
    os.write(go_fd, b"!")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(wait_fd)],
        input="x",
        capture_output=True,
        text=True,
        check=True,
        pass_fds=[wait_fd],
    )
    os.close(wait_fd)
    os.close(go_fd)
    if done.stdout.startswith("refused"):
        figures.remark("a reader that stops inside of the copy", done.stdout)
        pytest.skip(f"no userfaultfd here: {done.stdout}")


class Stalled:
    """A pipe's reader that has stopped in the middle of a page."""

    def __init__(self, process: subprocess.Popen[str], go: int, stream: Any) -> None:
        self.process = process
        self.stream = stream
        self._go = go

    def let_go(self) -> None:
        if self._go >= 0:
            os.write(self._go, b"!")
            os.close(self._go)
            self._go = -1

    async def total(self) -> int:
        """Return how much it has read when its pipe has ended."""
        assert self.process.stdout is not None
        return int(await anyio.to_thread.run_sync(self.process.stdout.readline))


@asynccontextmanager
async def stalled(peer: str, tasks: Any) -> AsyncIterator[Stalled]:
    """A pipe whose reader stops at the first byte that we send."""
    read_fd, write_fd = os.pipe()
    wait_fd, go_fd = os.pipe()
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, str(PROGRAM), str(wait_fd)],
        stdin=read_fd,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[wait_fd],
    )
    os.close(read_fd)
    os.close(wait_fd)
    reader = Stalled(process, go_fd, azc.open_writer(write_fd, peer=peer))
    try:
        tasks.start_soon(reader.stream.send, b"x" * 100)
        assert process.stdout is not None
        assert await anyio.to_thread.run_sync(process.stdout.readline) == "stalled\n"
        yield reader
    finally:
        reader.let_go()
        reader.stream.abort()
        if process.poll() is None:
            process.kill()
        with process:
            process.wait()


async def beat(turns: int) -> None:
    """Make round trips on another stream, which need the loop several times."""
    worst = 0.0
    async with azc.socketpair() as (one, other):
        for _ in range(turns):
            begin = time.monotonic()
            await one.send(b"x")
            await other.receive(1)
            await anyio.lowlevel.checkpoint()
            worst = max(worst, time.monotonic() - begin)
    figures.worst("a round trip beside a reader that has stopped", worst * 1000, "ms")


async def test_the_loop_and_other_streams_go_on() -> None:
    data = bytearray(BIG)
    async with anyio.create_task_group() as tasks:
        async with stalled("untrusted", tasks) as reader:
            stream = reader.stream
            small = attempt(tasks, stream.send, b"z" * 1000)
            sending = attempt(tasks, stream.send, data)
            putting = attempt(tasks, stream.put, b"y" * 1000)
            await submitted(stream, 3)
            await beat(TURNS)
            assert not small.done
            assert not sending.done
            _ = stream.stats, stream.lane
            reader.let_go()  # only this releases the reader
            await until(lambda: sending.done and putting.done)
            assert small.error is sending.error is putting.error is None
            await stream.aclose()
            assert await reader.total() == 100 + 1000 + BIG + 1000


@pytest.mark.parametrize("end", ["cancel", "abort"])
async def test_buffers_are_ours_while_it_stalls(end: str) -> None:
    """A cancel or an abort does not wait for the reader."""
    data = bytearray(BIG)
    async with anyio.create_task_group() as outer:
        async with stalled("untrusted", outer) as reader:
            async with anyio.create_task_group() as tasks:
                sending = attempt(tasks, reader.stream.send, data)
                await submitted(reader.stream, 1)
                await beat(20)
                if end == "cancel":
                    tasks.cancel_scope.cancel()
                else:
                    reader.stream.abort()
            assert sending.done
            poison(data)
            data.clear()  # the reader has not moved
            await beat(20)
            outer.cancel_scope.cancel()
