"""Events that a stream survives, and what its end costs others.

A moment without fds, a peer's reset, a socket that lingers: the sender gets the true
error, and other streams are not affected.
"""

import contextlib
import errno
import os
import pty
import resource
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
import scripts
from endings import ENDS
from limits import limited
from links import (
    BIG,
    SENDS,
    attempt,
    begun,
    cut_short,
    linux_only,
    open_link,
    reading,
    submitted,
    until,
)
from oracle import Checker, message

import aiozerocopy as azc
from aiozerocopy import StreamBroken

SMALL = 1000
Send = Callable[[azc.SendStream, bytes], Awaitable[object]]
# For tests that take seconds, and behave the same on every loop.
only_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])


# ---- a peer that resets the connection ----------------------------------------------

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: the close is a reset


async def in_thread(stream: azc.SendStream, data: bytes) -> None:
    await anyio.to_thread.run_sync(stream.send_from_thread, data)


@pytest.mark.anyio
@pytest.mark.parametrize("send", [*SENDS.values(), in_thread])
async def test_reset_is_told_first_and_ever_after(send: Send, tmp_path: Path) -> None:
    with open_link("tcp4", tmp_path) as link:
        far = socket.socket(fileno=link.take_read_fd())
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        stream = link.sender()
        await stream.send(b"hello")
        far.close()
        for each in (send, SENDS["send"], SENDS["pieces"]):
            with pytest.raises(StreamBroken) as caught:
                await each(stream, b"one")
            assert caught.value.errno == errno.ECONNRESET
            assert isinstance(caught.value.__cause__, OSError)
            assert caught.value.__cause__.errno == errno.ECONNRESET
        stream.abort()


# ---- a moment without something -----------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["pipe", "fifo", "pty", "unix"])
async def test_a_moment_without_fds(kind: str, tmp_path: Path) -> None:
    """The watch over sends needs fds, which it gets a little later."""
    checker = Checker()
    with open_link(kind, tmp_path) as link:
        async with reading(link, checker.feed, start=False) as reader:
            async with link.sender() as stream, anyio.create_task_group() as tasks:
                await stream.send(message(1, 0, SMALL))
                with limited(resource.RLIMIT_NOFILE, 3):
                    sending = attempt(tasks, stream.send, message(1, 1, 200_000))
                    await submitted(stream, 1)
                    assert not sending.done, sending.error
                reader.start()
                await until(lambda: sending.done)
                assert sending.error is None
    checker.finish()
    assert checker.counts == {1: 2}


# ---- the costs of an end for others --------------------------------------------------


@contextlib.asynccontextmanager
async def no_longer_than(seconds: float) -> AsyncIterator[None]:
    """Assert that the event loop never stops for this long during the block."""
    longest, beats = 0.0, 0

    async def beat() -> None:
        nonlocal longest, beats
        last = time.monotonic()
        while True:
            await anyio.lowlevel.checkpoint()
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            beats += 1

    async with cut_short(beat):
        await until(lambda: beats)
        yield
        seen = beats
        await until(lambda: beats > seen)
    assert longest < seconds


@pytest.mark.anyio
class TestEnds:
    """A loop that waited for these ends would stop for seconds (machines are busy)."""

    @pytest.mark.parametrize("end", ["abort", "cancelled aclose"])
    async def test_linger(self, end: str, tmp_path: Path) -> None:
        data = bytearray(BIG)
        with open_link("tcp4", tmp_path) as link:
            stream = link.sender()
            ours = socket.socket(fileno=os.dup(stream.fileno()))
            ours.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 10)
            )
            ours.close()
            await stream.put(data)
            await begun(stream)
            async with no_longer_than(5):
                await ENDS[end](stream)
            data.clear()
            far = socket.socket(fileno=link.take_read_fd())
            far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            far.close()  # this also ends the lingering

    @linux_only
    @only_asyncio
    @pytest.mark.parametrize("end", ["abort", "cancelled aclose"])
    async def test_stuck_terminals(self, end: str) -> None:
        data = bytearray(b"\n" * BIG)  # a terminal makes two bytes of each
        streams = []
        with contextlib.ExitStack() as others:
            for _ in range(20):
                master, slave = pty.openpty()
                others.callback(os.close, master)
                stream = azc.open_writer(slave)
                # A terminal with room for only some bytes of a piece blocks the writing
                # thread until it has room for the rest.
                await stream.send(b"x" * 100)
                await stream.put(data)
                streams.append(stream)
            with anyio.move_on_after(0.5):
                await until(lambda: _stuck_in_a_terminal() == len(streams))
            async with no_longer_than(5):
                for stream in streams:
                    await ENDS[end](stream)
            data.clear()


def _stuck_in_a_terminal() -> int:
    """Return how many threads of this process are stuck in a terminal."""
    count = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has just ended
            count += (task / "wchan").read_text() == "wait_woken"
    return count


@linux_only
def test_threads_of_what_waits() -> None:
    """Each pipe that is full has a thread; all sockets together have one to send."""
    scripts.run(
        """
    async def main():
        def threads():
            return len(os.listdir("/proc/self/task"))

        before, streams = threads(), []
        for make, number, more in (
            (azc.socketpair, 5, 1), (azc.pipe, 3, 4), (azc.socketpair, 5, 4)
        ):
            for _ in range(number):
                streams += make()
                await streams[-1].put(bytes(16 << 20))
                await begun(streams[-1])
            assert threads() == before + more
        for stream in streams:
            stream.abort()
    run(main)
    """
    )


# ---- a pipe of ours that was made blocking -------------------------------------------


@pytest.mark.parametrize("end", ["writer", "reader"])
def test_pipe_that_was_made_blocking(end: str) -> None:
    """O_NONBLOCK is shared with processes that inherited an end or were passed one."""
    scripts.run(
        f"""
    import links
    async def main():
        signal.alarm(10)  # ends what blocks
        reader, writer = azc.pipe(1 << 16)
        await writer.send(b"hello")
        assert await reader.receive() == b"hello"
        spare = os.dup({end}.fileno())
        os.set_blocking(spare, True)
        data, copy = os.urandom(1 << 20), bytearray(1 << 20)
        async with anyio.create_task_group() as tasks:
            if "{end}" == "writer":
                sizes = (1000, 1 << 16, (1 << 20) - (1 << 16) - 1000)
                for count, size in enumerate(sizes, start=2):
                    tasks.start_soon(writer.send, data[:size])
                    data = data[size:] + data[:size]
                    await links.begun_or_sent(writer, count)
                await reader.receive_exactly(copy)
            else:
                tasks.start_soon(reader.receive_exactly, copy)
                await links.others_wait()
                await writer.send(data)
        assert copy == data
        os.close(spare)
        reader.abort()
        writer.abort()
    run(main)
    """
    )
