"""The links that tests check every promise on, and readers at their other end.

pipe      a pipe that the package made              unix   a socket pair
adopted   a pipe that was made elsewhere            tcp4   127.0.0.1
fifo      a FIFO in the file system                 tcp6   ::1
file      a regular file                            cat    the stdin and stdout
pty       a terminal in raw mode                           of a child
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import pty
import shutil
import socket
import struct
import subprocess
import sys
import sysconfig
import termios
import threading
import tty
import types
import warnings
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
)
from contextlib import asynccontextmanager, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup
from oracle import Checker

import aiozerocopy as azc
from aiozerocopy import ReceiveStream, SendStream, Ticket
from aiozerocopy._core.channel import IN, OUT, OWN, Channel
from aiozerocopy._net.tls import TLSStream, secure

if TYPE_CHECKING:
    from typing_extensions import Buffer

FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
KINDS = ("pipe", "adopted", "fifo", "file", "pty", "unix", "tcp4", "tcp6", "cat")
STALLING = tuple(kind for kind in KINDS if kind != "file")  # a reader holds these up
EACH_WAY = ("adopted", "pty", "unix", "cat")  # one kind for each way to read and write
SOCKETS = ("unix", "tcp4", "tcp6")

# More than any clogged link holds in all buffers along the way.
BIG = 1 << 20
# The kernel's buffer for each direction of a socket here.
_SOCKET_BUFFER = 64 << 10

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

Sink = Callable[[memoryview], object]


# Kinds whose sender may lend a pool's pages, and the kind of link that each is.
LENDING = {"lending": "adopted", "lending-unix": "unix"}


def unread(fd: int) -> int:
    """Return how many bytes the kernel holds for the reader of an fd."""
    answer = fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4)
    return int(struct.unpack("i", answer)[0])


class Link:
    """Two connected fds.  `close` closes those that no stream or reader has taken."""

    def __init__(
        self,
        kind: str,
        write_fd: int,
        read_fd: int,
        child: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.kind = kind
        self.lends = False  # whether our side knows that the reader only uses read()
        self.child = child
        self._write_fd = write_fd
        self._read_fd = read_fd

    def __repr__(self) -> str:
        return f"<{self.kind} link>"

    def take_write_fd(self) -> int:
        fd, self._write_fd = self._write_fd, -1
        return fd

    def take_read_fd(self) -> int:
        fd, self._read_fd = self._read_fd, -1
        return fd

    def sender(self, **options: Any) -> SendStream:
        """Make our stream over the sending end."""
        fd = self.take_write_fd()
        if self.lends:
            options["peer"] = "reads"
        if self.kind == "pipe":  # as azc.pipe() does
            os.set_blocking(fd, False)
            return SendStream(Channel(fd, OUT | OWN), **options)
        opener = azc.wrap_socket if self.kind in SOCKETS else azc.open_writer
        return opener(fd, **options)

    def receiver(self) -> ReceiveStream:
        """Make our stream over the receiving end."""
        fd = self.take_read_fd()
        if self.kind == "pipe":
            os.set_blocking(fd, False)
            return ReceiveStream(Channel(fd, IN | OWN))
        return azc.wrap_socket(fd) if self.kind in SOCKETS else azc.open_reader(fd)

    def kill_reader(self) -> None:
        """Close the receiving end, or kill the child at it."""
        if self.child is not None:
            self.child.kill()
            self.child.wait()
        os.close(self.take_read_fd())

    def unread(self) -> int:
        return unread(self._read_fd)

    def read(self, n: int) -> bytes:
        """Read exactly n bytes, in a test that has no `PlainReader` or `OurReader`."""
        data = b""
        while len(data) < n:
            piece = os.read(self._read_fd, n - len(data))
            assert piece, "the stream ended"
            data += piece
        return data

    def close(self) -> None:
        for fd in (self.take_write_fd(), self.take_read_fd()):
            if fd >= 0:
                os.close(fd)
        if self.child is not None:
            try:
                self.child.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()


# ---- makers -------------------------------------------------------------------------


@contextmanager
def open_link(kind: str, folder: Path) -> Iterator[Link]:
    """Open a link of this kind, small enough that `BIG` clogs it."""
    link = _MAKERS[LENDING.get(kind, kind)](folder)
    link.lends = kind in LENDING
    try:
        yield link
    finally:
        link.close()


@contextmanager
def open_unread(kind: str, folder: Path, data: Buffer) -> Iterator[Link]:
    """Open a link; a thread writes data into its sending end, then closes that."""
    with open_link(kind, folder) as link:
        fd = link.take_write_fd()
        thread = threading.Thread(target=_write_all, args=(fd, data), daemon=True)
        thread.start()
        if kind == "file":  # the reader of a file does not wait for the writer
            thread.join()
        yield link
        link.close()  # so that the writer ends, even if not all was read
        thread.join()


def _write_all(fd: int, data: Buffer) -> None:
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(fd, rest[: 1 << 14]) :]
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        os.close(fd)


def _pipe(kind: str) -> Link:
    read_fd, write_fd = os.pipe()
    return Link(kind, write_fd, read_fd)


def _fifo(folder: Path) -> Link:
    path = folder / "fifo"
    os.mkfifo(path)
    read_fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(read_fd, True)
    return Link("fifo", os.open(path, os.O_WRONLY), read_fd)


def _file(folder: Path) -> Link:
    path = folder / "file"
    write_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    return Link("file", write_fd, os.open(path, os.O_RDONLY))


def _pty(_folder: Path) -> Link:
    master, slave = pty.openpty()
    tty.setraw(slave)
    return Link("pty", slave, master)


def _shrink(*ends: socket.socket) -> None:
    for end in ends:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BUFFER)


def _unix(_folder: Path) -> Link:
    ours, theirs = socket.socketpair()
    _shrink(ours, theirs)
    return Link("unix", ours.detach(), theirs.detach())


def _tcp(kind: str, family: int, host: str) -> Link:
    with socket.socket(family) as listener, contextlib.ExitStack() as opened:
        _shrink(listener)
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip(f"no {kind} on this machine")
        listener.listen(1)
        ours = opened.enter_context(socket.socket(family))
        _shrink(ours)
        ours.connect(listener.getsockname())
        theirs, _ = listener.accept()
        opened.pop_all()
    return Link(kind, ours.detach(), theirs.detach())


def _cat(_folder: Path) -> Link:
    child = subprocess.Popen(
        ["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert child.stdin is not None
    assert child.stdout is not None
    ends = (os.dup(child.stdin.fileno()), os.dup(child.stdout.fileno()))
    child.stdin.close()
    child.stdout.close()
    return Link("cat", *ends, child)


_MAKERS: dict[str, Callable[[Path], Link]] = {
    "pipe": lambda _: _pipe("pipe"),
    "adopted": lambda _: _pipe("adopted"),
    "fifo": _fifo,
    "file": _file,
    "pty": _pty,
    "unix": _unix,
    "tcp4": lambda _: _tcp("tcp4", socket.AF_INET, "127.0.0.1"),
    "tcp6": lambda _: _tcp("tcp6", socket.AF_INET6, "::1"),
    "cat": _cat,
}


# ---- readers ------------------------------------------------------------------------


class PlainReader:
    """A thread that reads to the end with plain blocking calls."""

    def __init__(self, link: Link, sink: Sink) -> None:
        self._fd = link.take_read_fd()
        self._sink = sink
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.started = False

    def start(self) -> None:
        if not self.started:
            self.started = True
            self._thread.start()

    def _run(self) -> None:
        try:
            os.set_blocking(self._fd, True)
            memory = bytearray(256 << 10)
            while n := _read_into(self._fd, memory):
                self._sink(memoryview(memory)[:n])
        except BaseException as error:
            self._error = error
        finally:
            os.close(self._fd)

    async def finish(self) -> None:
        """Wait for the end of the stream."""
        self.start()
        await until(lambda: not self._thread.is_alive())
        if self._error is not None:
            raise self._error


def _read_into(fd: int, memory: bytearray) -> int:
    """Return the number of bytes read; 0 at the end, which an error may report."""
    try:
        return os.readv(fd, [memory])
    except OSError as error:
        if error.errno not in (errno.EIO, errno.ECONNRESET):  # EIO: a terminal's end
            raise
        return 0


class OurReader:
    """A task that reads to the end with a stream of ours."""

    def __init__(self, link: Link, sink: Sink, tasks: TaskGroup) -> None:
        self._stream = link.receiver()
        self._sink = sink
        self._tasks = tasks
        self._ended = anyio.Event()
        self.started = False

    def start(self) -> None:
        if not self.started:
            self.started = True
            self._tasks.start_soon(self._run)

    async def _run(self) -> None:
        memory = bytearray(256 << 10)
        async with self._stream:
            with contextlib.suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while n := await self._stream.receive_into(memory):
                    self._sink(memoryview(memory)[:n])
        self._ended.set()

    async def finish(self) -> None:
        self.start()
        await self._ended.wait()


Reader = PlainReader | OurReader


@asynccontextmanager
async def reading(
    link: Link, sink: Sink, *, ours: bool = False, start: bool = True
) -> AsyncIterator[Reader]:
    """Feed all that arrives to sink; the end of the block waits for the end of data.

    Close the sending stream inside of the block.  Without start, and for a file,
    nothing is read before ``start()`` or the end of the block.
    """
    async with anyio.create_task_group() as tasks:
        reader: Reader = (
            OurReader(link, sink, tasks) if ours else PlainReader(link, sink)
        )
        if start and link.kind != "file":
            reader.start()
        yield reader
        await reader.finish()


@asynccontextmanager
async def checked(
    link: Link,
    counts: dict[int, int] | None = None,
    *,
    ours: bool = False,
    start: bool = False,
    **options: Any,
) -> AsyncIterator[tuple[SendStream, Reader]]:
    """A stream, and a reader that checks that messages arrive whole and in order.

    At the end, as many messages must have come from each stream as ``counts`` says.
    """
    checker = Checker()
    async with reading(link, checker.feed, ours=ours, start=start) as reader:
        async with link.sender(**options) as stream:
            yield stream, reader
    checker.finish()
    assert counts is None or checker.counts == counts


@asynccontextmanager
async def collected(
    link: Link, *, start: bool = False, **options: Any
) -> AsyncIterator[tuple[SendStream, Reader, bytearray]]:
    """A stream, its reader, and the bytes that have arrived."""
    received = bytearray()
    async with reading(link, received.extend, start=start) as reader:
        async with link.sender(**options) as stream:
            yield stream, reader, received


# ---- waiting without sleeping -------------------------------------------------------


async def until(condition: Callable[[], object]) -> None:
    """Let others run until the condition holds."""
    while not condition():
        await anyio.lowlevel.checkpoint()


async def turns(count: int = 5) -> None:
    """Let a loop of asyncio make the calls that are due, this many times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def begun(stream: SendStream, messages: int = 1) -> None:
    """Return once a first byte is out and this many messages are queued."""

    def has_begun() -> bool:
        stats = stream.stats
        return stats.messages_queued >= messages and stats.bytes_sent > 0

    await until(has_begun)


async def begun_or_sent(stream: SendStream, count: int) -> None:
    """Return once this many messages are queued or sent."""

    def have_begun() -> bool:
        stats = stream.stats  # one snapshot, as a message moves between the two counts
        return stats.messages_queued + stats.messages_sent >= count

    await until(have_begun)


async def submitted(stream: SendStream, messages: int) -> None:
    """Return once C has this many messages: queued, or waiting for room."""

    def are_in() -> bool:
        stats = stream._out.stats()
        return stats.queued + stats.waiting >= messages

    await until(are_in)


def in_line(stream: SendStream) -> int:
    """How many messages wait for room in the queue."""
    return stream._out.stats().waiting


def receives(stream: ReceiveStream) -> bool:
    """Whether a receive waits for its bytes."""
    return stream._in.stats().queued > 0


@asynccontextmanager
async def tls_over(
    ends: tuple[azc.Stream, azc.Stream], contexts: Any
) -> AsyncIterator[tuple[TLSStream, TLSStream]]:
    """TLS over both ends of a connection: the server's, and the client's."""
    one, other = ends
    async with anyio.create_task_group() as tasks:
        options: Any = {"server_side": True, "patience": 0.2}
        server = attempt(tasks, partial(secure, one, contexts[0], **options))
        client = await secure(other, contexts[1], hostname="localhost", patience=0.2)
    yield server.result, client
    server.result.abort()
    client.abort()


class Attempt:
    """A call in a task of its own, and how it ended."""

    def __init__(self) -> None:
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None

    async def run(self, call: Callable[..., Awaitable[Any]], *args: Any) -> None:
        try:
            self.result = await call(*args)
        except BaseException as error:
            self.error = error
            if not isinstance(error, Exception):
                raise
        finally:
            self.done = True


def attempt(
    tasks: TaskGroup, call: Callable[..., Awaitable[Any]], *args: Any
) -> Attempt:
    """Start the call in a task of its own."""
    started = Attempt()
    tasks.start_soon(started.run, call, *args)
    return started


@asynccontextmanager
async def meanwhile(call: Callable[..., Any], *args: Any) -> AsyncIterator[None]:
    """Run the call in a task of its own, and wait for it at the end of the block."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, *args)
        yield


@asynccontextmanager
async def cut_short(call: Callable[..., Any], *args: Any) -> AsyncIterator[None]:
    """Run the call in a task of its own, and cancel it at the end of the block."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, *args)
        yield
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def attempting(call: Callable[..., Any], *args: Any) -> AsyncIterator[Attempt]:
    """Attempt the call, and wait for it at the end of the block."""
    async with anyio.create_task_group() as tasks:
        yield attempt(tasks, call, *args)


async def put_and_wait(stream: SendStream, *buffers: Any) -> None:
    await (await stream.put(*buffers))


# Ways to send a buffer and to wait until the caller owns it again.
SENDS: dict[str, Callable[[SendStream, Any], Awaitable[object]]] = {
    "send": lambda stream, data: stream.send(data),
    "pieces": lambda stream, data: stream.send(b"", data, b""),
    "put": put_and_wait,
    "send_many": lambda stream, data: stream.send_many([data]),
}


async def wait_for(ticket: Ticket) -> None:
    """Await the ticket, for callers that need a coroutine."""
    await ticket


def begun_in_thread(call: Callable[..., object], *args: Any) -> Callable[[], object]:
    """Make the call in a thread; the returned function waits for its end."""
    ends: list[object] = []

    def run() -> None:
        try:
            ends.append(call(*args))
        except Exception as error:
            ends.append(error)

    def end() -> object:
        thread.join()
        return ends[0]

    thread = threading.Thread(target=run)
    thread.start()
    return end


def error_in_thread(call: Callable[..., object], *args: Any) -> object:
    """Make the call in a thread; return what it raises or returns."""
    return begun_in_thread(call, *args)()


async def everything(stream: ReceiveStream | None) -> bytes:
    """Return all data up to the end."""
    assert stream is not None
    return b"".join([data async for data in stream])


def fork() -> int:
    with warnings.catch_warnings():  # 3.12 and later warn of threads
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def is_gone(pid: int) -> bool:
    """Tell whether the process has ended and was reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def is_trio() -> bool:
    """Whether the loop is trio's, which wakes tasks in no particular order."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


@asynccontextmanager
async def stuck(stream: SendStream, *messages: Any) -> AsyncIterator[TaskGroup]:
    """A task group in which these messages are being sent, the first halfway out."""
    async with anyio.create_task_group() as tasks:
        for count, message in enumerate(messages, start=1):
            tasks.start_soon(stream.send, message)
            await begun(stream, count)
        yield tasks


async def others_wait() -> None:
    """Return once every other task waits for something.

    Like anyio.wait_all_tasks_blocked, without its naps of 0.1 s on asyncio.
    """
    if is_trio():
        await anyio.wait_all_tasks_blocked()
        return
    await anyio.lowlevel.checkpoint()  # tasks that were just started begin

    def wait() -> bool:
        others: set[Any] = asyncio.all_tasks() - {asyncio.current_task()}
        awaited = [task._fut_waiter for task in others]
        return all(future and not future.done() for future in awaited)

    await until(wait)


# ---- what a machine can do ----------------------------------------------------------


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@cache
def _strace_works() -> bool:
    """Whether strace may inject faults into system calls here."""
    if shutil.which("strace") is None:
        return False
    command = ["strace", "-o", os.devnull, "true"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def refusing(fault: str) -> list[str]:
    """Return the command that runs a program with a fault, as strace spells it."""
    if not _strace_works():
        pytest.skip("strace is not installed, or not allowed here")
    trace = f"trace={fault.partition(':')[0]}"
    strace = ["strace", "-f", "-qq", "-o", os.devnull]
    return [*strace, "-e", trace, "-e", f"inject={fault}"]


# ---- cancelling ---------------------------------------------------------------------


@types.coroutine
def _cancelling(
    call: Coroutine[Any, Any, Any], n: int, cancel: Callable[[], object]
) -> Generator[Any, Any, Any]:
    """Await a coroutine, and call cancel when it waits for the n-th time."""
    given: Any = None
    thrown: list[BaseException] = []  # (a variable would make a cycle)
    while True:
        try:
            awaited = call.throw(thrown.pop()) if thrown else call.send(given)
        except StopIteration as end:
            return end.value
        n -= 1
        if not n:
            cancel()
        try:
            given = yield awaited
        except BaseException as error:
            thrown.append(error)


async def cancelled_at(call: Coroutine[Any, Any, Any], n: int) -> tuple[bool, Any]:
    """Cancel the call at its n-th wait; return if it was cancelled, and its result."""
    with anyio.CancelScope() as scope:
        result = await _cancelling(call, n, scope.cancel)
    if scope.cancelled_caught:
        return True, None
    await anyio.lowlevel.checkpoint()
    return False, result
