"""What a stream outlives, and what its end costs others.

Numbers that are closed behind its back, a moment without memory or threads, a peer's
reset, a socket that lingers: whoever sends is told the truth, and nobody else suffers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import pty
import resource
import select
import shutil
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
import scripts
from links import (
    BIG,
    Link,
    attempt,
    begun,
    linux_only,
    open_link,
    reading,
    receives,
    submitted,
    until,
)
from oracle import Checker, assert_prefix, assert_same, message, payload

import aiozerocopy as azc
from aiozerocopy import StreamBroken, StreamClosed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator

SMALL = 1000
# For what takes seconds, and is the same with every loop.
only_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])


# ---- numbers that are closed behind our back ----------------------------------------

POLLED = ("pipe", "adopted", "unix", "tcp4")


@contextlib.contextmanager
def lost(number: int, *, reused: bool) -> Iterator[None]:
    """It is closed, or another file has it."""
    if reused:
        fd = os.open(os.devnull, os.O_RDONLY)
        os.dup2(fd, number)
        os.close(fd)
    else:
        os.close(number)
    yield
    if reused:
        os.close(number)


async def on_each_link(
    check: Callable[[Link, bool], Coroutine[Any, Any, None]], reused: bool, folder: Path
) -> None:
    """All at the same time: somebody looks at the numbers only now and then."""
    with contextlib.ExitStack() as opened:
        async with anyio.create_task_group() as tasks:
            for kind in POLLED:
                link = opened.enter_context(open_link(kind, folder))
                tasks.start_soon(check, link, reused)


async def _sender_is_told(link: Link, reused: bool) -> None:
    data = message(1, 0, BIG)
    sent = bytes(data)
    received = bytearray()
    async with reading(link, received.extend, start=False):
        stream = link.sender()
        async with anyio.create_task_group() as tasks:
            sending = attempt(tasks, stream.send, data)
            await begun(stream)
            behind = attempt(tasks, stream.send, b"behind")
            await begun(stream, 2)
            number = stream.fileno()
            await until(lambda: not select.select([], [number], [], 0)[1])
            with lost(number, reused=reused):
                await until(lambda: sending.done and behind.done)
                stream.abort()
        assert isinstance(sending.error, StreamBroken)
        assert isinstance(behind.error, StreamBroken)
        data.clear()
    assert_prefix(received, sent)


async def _receiver_is_told(link: Link, reused: bool) -> None:
    stream = link.receiver()
    async with anyio.create_task_group() as tasks:
        receiving = attempt(tasks, stream.receive)
        await until(lambda: receives(stream))
        with lost(stream.fileno(), reused=reused):
            await until(lambda: receiving.done)
            stream.abort()
    assert isinstance(receiving.error, StreamBroken)


@pytest.mark.anyio
class TestNumbers:
    @only_asyncio
    @pytest.mark.parametrize("reused", [False, True], ids=["closed", "reused"])
    @pytest.mark.parametrize("check", [_sender_is_told, _receiver_is_told])
    async def test_who_waits_is_told(
        self,
        check: Callable[[Link, bool], Coroutine[Any, Any, None]],
        reused: bool,
        tmp_path: Path,
    ) -> None:
        await on_each_link(check, reused, tmp_path)

    async def test_the_end_of_one_leaves_its_successor_alone(self) -> None:
        async with Successor() as pair:
            async with anyio.create_task_group() as tasks:
                sending = attempt(tasks, pair.first.send, payload(1, BIG))
                await begun(pair.first)
                async with pair.succeeded(tasks):
                    pair.first.abort()
            assert isinstance(sending.error, (StreamBroken, StreamClosed))

    async def test_waiting_for_one_leaves_its_successor_alone(self) -> None:
        async with Successor() as pair:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(pair.first.send, payload(1, BIG))
                await begun(pair.first)
                assert_same(await pair.read_first(), payload(1, BIG))
                await until(lambda: not pair.first.stats.messages_queued)
                # Its number is known to who watches the numbers, and is now another's.
                async with pair.succeeded(tasks):
                    late = attempt(tasks, pair.first.send, b"late" * 1000)
                    await until(lambda: late.done)
                    assert isinstance(late.error, StreamBroken)
                pair.first.abort()


class Successor:
    """A stream, and one that gets its number after it was closed behind its back."""

    async def __aenter__(self) -> Successor:
        ours, self._first_far = socket.socketpair()
        self.first = azc.wrap_socket(ours)
        self.second: azc.Stream
        return self

    async def __aexit__(self, *_: object) -> None:
        self.first.abort()
        self._first_far.close()

    async def read_first(self) -> bytes:
        return await _read(self._first_far, BIG)

    @contextlib.asynccontextmanager
    async def succeeded(self, tasks: anyio.abc.TaskGroup) -> AsyncIterator[None]:
        """Within the block another stream has the number, and waits."""
        number = self.first.fileno()
        ours, far = socket.socketpair()
        fillers = _occupy_below(number)
        os.close(number)
        second = azc.wrap_socket(ours)
        assert second.fileno() == number
        for fd in fillers:
            os.close(fd)
        with far:
            async with second:
                sending = attempt(tasks, second.send, payload(2, BIG))
                await begun(second)
                yield
                assert_same(await _read(far, BIG), payload(2, BIG))
                await until(lambda: sending.done)
                assert sending.error is None


def _occupy_below(number: int) -> list[int]:
    """Open something at each free number below this one, which is taken."""
    fds = [os.open(os.devnull, os.O_RDONLY)]
    while fds[-1] < number:
        fds.append(os.open(os.devnull, os.O_RDONLY))
    os.close(fds.pop())
    return fds


async def _read(sock: socket.socket, n: int) -> bytes:
    sock.setblocking(False)
    data = bytearray()
    while len(data) < n:
        with contextlib.suppress(BlockingIOError):
            data += sock.recv(n - len(data))
        await anyio.lowlevel.checkpoint()
    return bytes(data)


# ---- a peer that resets the connection ----------------------------------------------

RESET = struct.pack("ii", 1, 0)  # SO_LINGER: the close is a reset


async def _send(stream: azc.SendStream) -> None:
    await stream.send(b"one")


async def _send_pieces(stream: azc.SendStream) -> None:
    await stream.send(b"one", b"two")


async def _send_view(stream: azc.SendStream) -> None:
    await stream.send(memoryview(bytearray(100_000)))


async def _send_many(stream: azc.SendStream) -> None:
    await stream.send_many([b"one", b"two"])


async def _put(stream: azc.SendStream) -> None:
    await (await stream.put(b"one"))


async def _send_from_thread(stream: azc.SendStream) -> None:
    await anyio.to_thread.run_sync(stream.send_from_thread, b"one")


@pytest.mark.anyio
@pytest.mark.parametrize(
    "call",
    [_send, _send_pieces, _send_view, _send_many, _put, _send_from_thread],
)
async def test_reset_is_told_first_and_ever_after(
    call: Callable[[azc.SendStream], Awaitable[None]], tmp_path: Path
) -> None:
    with open_link("tcp4", tmp_path) as link:
        far = socket.socket(fileno=link.take_read_fd())
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        stream = link.sender()
        await stream.send(b"hello")
        far.close()
        for each in (call, _send, _send_pieces):
            with pytest.raises(StreamBroken) as caught:
                await each(stream)
            assert caught.value.errno == errno.ECONNRESET
            assert isinstance(caught.value.__cause__, OSError)
            assert caught.value.__cause__.errno == errno.ECONNRESET
        stream.abort()


# ---- a moment without something -----------------------------------------------------


@contextlib.contextmanager
def no_more_fds() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["pipe", "fifo", "pty", "unix"])
async def test_a_moment_without_fds(kind: str, tmp_path: Path) -> None:
    """What is to watch over the sends needs some; it gets them a little later."""
    checker = Checker()
    with open_link(kind, tmp_path) as link:
        async with reading(link, checker.feed, start=False) as reader:
            async with link.sender() as stream, anyio.create_task_group() as tasks:
                await stream.send(message(1, 0, SMALL))
                with no_more_fds():
                    sending = attempt(tasks, stream.send, message(1, 1, 200_000))
                    await submitted(stream, 1)
                    assert not sending.done, sending.error
                reader.start()
                await until(lambda: sending.done)
                assert sending.error is None
    checker.finish()
    assert checker.counts == {1: 2}


SHIM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

int no_threads, no_memory, refused_fd = -1, refused_with;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                   void *(*run)(void *), void *argument) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        dlsym(RTLD_NEXT, "pthread_create");
    return no_threads ? EAGAIN : real(thread, attributes, run, argument);
}

static int refuses(int fd) {
    if (fd == refused_fd) errno = refused_with;
    return fd == refused_fd;
}

ssize_t send(int fd, const void *data, size_t n, int flags) {
    ssize_t (*real)(int, const void *, size_t, int) = dlsym(RTLD_NEXT, "send");
    return refuses(fd) ? -1 : real(fd, data, n, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    ssize_t (*real)(int, const struct msghdr *, int) = dlsym(RTLD_NEXT, "sendmsg");
    return refuses(fd) ? -1 : real(fd, message, flags);
}

extern void *__libc_malloc(size_t n);

void *malloc(size_t n) {
    Dl_info caller;
    if (no_memory && dladdr(__builtin_return_address(0), &caller) &&
        strstr(caller.dli_fname, "_azc"))
        return NULL;
    return __libc_malloc(n);
}
"""
WITHOUT = """
    import ctypes, contextlib, errno, links, oracle, pathlib, socket
    shim = ctypes.CDLL(None)
    BIG = 1 << 20

    def variable(name):
        return ctypes.c_int.in_dll(shim, name)

    @contextlib.contextmanager
    def without(what):
        variable("no_" + what).value = 1
        try:
            yield
        finally:
            variable("no_" + what).value = 0

    async def soon(attempt):
        with anyio.fail_after(10):
            await links.until(lambda: attempt.done)
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What to run a program under, so that it can do without something for a while."""
    if platform.libc_ver()[0] != "glibc" or not shutil.which("cc"):
        pytest.skip("needs a C compiler and glibc")
    folder = tmp_path_factory.mktemp("shim")
    (folder / "shim.c").write_text(SHIM)
    command = ["cc", "-shared", "-fPIC", "-o", "shim.so", "shim.c", "-ldl"]
    subprocess.run(command, cwd=folder, check=True)
    return ["env", f"LD_PRELOAD={folder / 'shim.so'}"]


def test_a_moment_without_threads(shim: list[str], tmp_path: Path) -> None:
    scripts.run(
        WITHOUT
        + """
    async def main():
        for kind in ("pipe", "fifo", "pty", "unix"):
            checker = oracle.Checker()
            with links.open_link(kind, pathlib.Path(sys.argv[2])) as link:
                async with link.sender() as stream, anyio.create_task_group() as tasks:
                    with without("threads"):
                        sending = links.attempt(
                            tasks, stream.send, oracle.message(1, 0, BIG)
                        )
                        await links.submitted(stream, 1)
                        assert not sending.done, sending.error
                    reader = links.PlainReader(link, checker.feed)
                    reader.start()
                    await soon(sending)
                    assert sending.error is None, sending.error
                await reader.finish()
            checker.finish()
            assert checker.counts == {1: 1}
    run(main)
    """,
        "asyncio",
        str(tmp_path),
        under=shim,
    )


@linux_only
def test_a_moment_without_address_space() -> None:
    """Nor is there any for a thread's stack then."""
    scripts.run(
        """
    import links, oracle, pathlib, resource
    def in_use():
        pages = pathlib.Path("/proc/self/statm").read_text().split()[0]
        return int(pages) * resource.getpagesize()
    async def main():
        reader, stream = azc.pipe(1 << 16)
        data = oracle.message(1, 0, 1 << 20)
        copy = bytearray(len(data))
        limits = resource.getrlimit(resource.RLIMIT_AS)
        async with reader, stream, anyio.create_task_group() as tasks:
            resource.setrlimit(resource.RLIMIT_AS, (in_use() + (1 << 20), limits[1]))
            sending = links.attempt(tasks, stream.send, data)
            await links.submitted(stream, 1)
            resource.setrlimit(resource.RLIMIT_AS, limits)
            assert not sending.done, sending.error
            with anyio.fail_after(10):
                await reader.receive_exactly(copy)
                await links.until(lambda: sending.done)
            assert sending.error is None, sending.error
        assert copy == data
    run(main)
    """
    )


def test_a_moment_without_memory(shim: list[str], tmp_path: Path) -> None:
    """A call may say so; then nothing of it was sent, and the stream is well."""
    scripts.run(
        WITHOUT
        + """
    async def main():
        for kind in ("pipe", "unix", "tcp4"):
            checker = oracle.Checker()
            with links.open_link(kind, pathlib.Path(sys.argv[2])) as link:
                async with link.sender() as stream, anyio.create_task_group() as tasks:
                    await stream.send(oracle.message(1, 0, 100))
                    # It may clog the link, and then has to be remembered.
                    with contextlib.suppress(MemoryError), without("memory"):
                        await stream.send(oracle.message(2, 0, 500_000))
                    reader = links.PlainReader(link, checker.feed)
                    reader.start()
                    await stream.send(oracle.message(1, 1, BIG))
                await reader.finish()
            checker.finish()
            assert checker.counts[1] == 2, checker.counts
    run(main)
    """,
        "asyncio",
        str(tmp_path),
        under=shim,
    )


def test_a_socket_without_memory_while_others_are_busy(shim: list[str]) -> None:
    """For 300 ms the kernel has none for one of them: that is not its end."""
    scripts.run(
        WITHOUT
        + """
    async def keep_busy(until):
        pair = socket.socketpair()
        pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # many turns
        one, other = map(azc.wrap_socket, pair)
        data, copy = bytes(1 << 16), bytearray(1 << 16)
        async with one, other:
            while time.monotonic() < until:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(one.send, data)
                    await other.receive_exactly(copy)

    async def main():
        for error in (errno.ENOBUFS, errno.ENOMEM):
            reader, stream = azc.socketpair()
            data, copy = oracle.message(1, 0, BIG), bytearray(BIG + 32)
            async with reader, stream, anyio.create_task_group() as tasks:
                variable("refused_with").value = error
                variable("refused_fd").value = stream.fileno()
                sending = links.attempt(tasks, stream.send, data)
                end = time.monotonic() + 0.3
                async with anyio.create_task_group() as others:
                    for _ in range(5):
                        others.start_soon(keep_busy, end)
                assert not sending.done, sending.error
                variable("refused_fd").value = -1
                with anyio.fail_after(10):
                    await reader.receive_exactly(copy)
                await soon(sending)
                assert sending.error is None, sending.error
                assert copy == data
    run(main)
    """,
        under=shim,
    )


def test_rescue_without_memory_blames_no_limit(shim: list[str]) -> None:
    scripts.run(
        WITHOUT
        + """
    async def main():
        reader, stream = azc.pipe(1 << 16)
        data = bytearray(BIG)
        with without("memory"):
            async with anyio.create_task_group() as tasks:
                variable("no_memory").value = 0
                tasks.start_soon(stream.send, data)
                await begun(stream)
                variable("no_memory").value = 1
                tasks.cancel_scope.cancel()
        data.clear()
        try:
            await stream.send(b"more")
        except azc.StreamBroken as error:
            assert "rescue_limit" not in str(error), error
            assert error.errno == error.__cause__.errno == errno.ENOMEM, error
        else:
            raise AssertionError("it must be broken")
        stream.abort()
        reader.abort()
    run(main)
    """,
        under=shim,
    )


# ---- what the end of one costs others -----------------------------------------------


async def _abort(stream: azc.SendStream) -> None:
    stream.abort()


async def _aclose_at_once(stream: azc.SendStream) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await stream.aclose()


@contextlib.asynccontextmanager
async def no_longer_than(seconds: float) -> AsyncIterator[None]:
    """The event loop is not stopped for so long while the block runs."""
    longest, beats = 0.0, 0

    async def beat() -> None:
        nonlocal longest, beats
        last = time.monotonic()
        while True:
            await anyio.lowlevel.checkpoint()
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            beats += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beat)
        await until(lambda: beats)
        yield
        seen = beats
        await until(lambda: beats > seen)
        tasks.cancel_scope.cancel()
    assert longest < seconds


@pytest.mark.anyio
class TestEnds:
    """A loop that waits for them stops for some seconds; but machines are busy."""

    @pytest.mark.parametrize("end", [_abort, _aclose_at_once])
    async def test_linger(
        self, end: Callable[[azc.SendStream], Awaitable[None]], tmp_path: Path
    ) -> None:
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
                await end(stream)
            data.clear()
            far = socket.socket(fileno=link.take_read_fd())
            far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            far.close()  # and so ends the lingering

    @linux_only
    @only_asyncio
    @pytest.mark.parametrize("end", [_abort, _aclose_at_once])
    async def test_stuck_terminals(
        self, end: Callable[[azc.SendStream], Awaitable[None]]
    ) -> None:
        data = bytearray(b"\n" * BIG)  # each becomes two bytes
        streams = []
        with contextlib.ExitStack() as others:
            for _ in range(20):
                master, slave = pty.openpty()
                others.callback(os.close, master)
                stream = azc.open_writer(slave)
                # A terminal that has room for some bytes of a longer piece keeps
                # who brought it until it has room for all.
                await stream.send(b"x" * 100)
                await stream.put(data)
                streams.append(stream)
            with anyio.move_on_after(0.5):
                await until(lambda: _stuck_in_a_terminal() == len(streams))
            async with no_longer_than(5):
                for stream in streams:
                    await end(stream)
            data.clear()


def _stuck_in_a_terminal() -> int:
    """Threads of this process that a terminal does not let go of."""
    count = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            count += (task / "wchan").read_text() == "wait_woken"
    return count


# ---- a pipe of ours that somebody made blocking -------------------------------------


@pytest.mark.parametrize("end", ["writer", "reader"])
def test_pipe_that_was_made_blocking(end: str) -> None:
    """Its ends may have been inherited, or passed on, and O_NONBLOCK is shared."""
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
