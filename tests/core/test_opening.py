"""Adopting fds, files and sockets; pairs that the package makes."""

import bz2
import contextlib
import errno
import fcntl
import gc
import gzip
import io
import os
import re
import select
import socket
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from answering import Answering
from interruption import Interruption, hit_after_each_call, open_fds
from links import everything, linux_only
from unread import is_open

import aiozerocopy as azc
from aiozerocopy._core import channel, pipe_size
from aiozerocopy._core.binding import PORTABLE
from aiozerocopy._core.lifetime import Bound
from aiozerocopy._core.pipe_size import F_GETPIPE_SZ, capacity_of, enlarge_pipe
from aiozerocopy.opening import UNIX_BUFFER, stream_over
from aiozerocopy.streams import BorrowedSocket

pytestmark = pytest.mark.anyio


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """A pipe; the test closes the ends that no stream has taken."""
    fds = os.pipe()
    identities = [os.fstat(fd).st_ino for fd in fds]
    yield fds
    for fd, inode in zip(fds, identities, strict=True):
        with contextlib.suppress(OSError):
            if os.fstat(fd).st_ino == inode:
                os.close(fd)


# ---- what can be adopted -------------------------------------------------------


async def test_appending_file_opened_for_both(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old ")
    async with azc.open_writer(path.open("a+b")) as writer:
        await writer.send(b"new")
    assert path.read_bytes() == b"old new"


# ---- who owns what -------------------------------------------------------------


async def test_the_stream_has_an_fd_of_its_own(ends: tuple[int, int]) -> None:
    async with azc.open_writer(ends[1]) as writer:
        assert not is_open(ends[1])
        assert writer.fileno() >= 3
        assert fcntl.fcntl(writer.fileno(), fcntl.F_GETFD) & fcntl.FD_CLOEXEC


@pytest.mark.parametrize("mode", ["wb", "w"])
async def test_what_the_file_has_buffered_goes_first(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "file"
    file: Any = path.open(mode)
    file.write("first, " if mode == "w" else b"first, ")
    async with azc.open_writer(file) as writer:
        assert file.closed
        await writer.send(b"second")
    assert path.read_bytes() == b"first, second"


@pytest.mark.parametrize("mode", ["rb", "r+b"])
async def test_what_it_has_read_ahead_comes_again(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"header\nbody")
    file: Any = path.open(mode)
    assert file.readline() == b"header\n"
    async with azc.open_reader(file) as reader:
        assert await everything(reader) == b"body"


def test_flush_that_fails_leaves_the_file_alone(ends: tuple[int, int]) -> None:
    os.close(ends[0])
    file = os.fdopen(ends[1], "wb")
    file.write(b"nobody reads this")
    with pytest.raises(BrokenPipeError):
        azc.open_writer(file)
    assert is_open(ends[1])
    with pytest.raises(BrokenPipeError):
        file.close()


async def test_failure_leaves_the_callers_fd_alone(
    ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "lib", Answering("azc_open_from", -errno.ENOMEM))
    for opens in (lambda: azc.open_writer(ends[1]), azc.pipe):
        with pytest.raises(OSError, match="memory"):
            opens()
    assert is_open(ends[1])


async def test_default_timeout_of_sockets_changes_no_blocking_mode() -> None:
    one, other = socket.socketpair()
    socket.setdefaulttimeout(5)
    try:
        with other:
            number = one.detach()
            witness = os.dup(number)
            async with azc.open_writer(number):
                assert os.get_blocking(witness)
            os.close(witness)
    finally:
        socket.setdefaulttimeout(None)


# In a child: the test needs a process with a standard output of its own.
_STANDARD_STREAMS = """
import os, sys, anyio, aiozerocopy as azc

stdout = eval(sys.argv[1])

async def main():
    print("printed", end=" ")
    print("noted", end=" ", file=sys.stderr)
    async with azc.open_writer(stdout) as out, azc.open_writer(2) as err:
        fd = os.open("/dev/null", os.O_RDONLY)
        assert fd > 2, fd
        print("to nobody", flush=True)
        await out.send(b"sent")
        await err.send(b"complained")

anyio.run(main)
"""


@pytest.mark.parametrize(
    ("stdout", "unbuffered"),
    [
        *[("1", ""), ("sys.stdout", ""), ("sys.stdout", "1")],
        *[("sys.stdout.buffer", "1"), ("open(1, 'wb', closefd=False)", "")],
    ],
)
def test_standard_streams(stdout: str, unbuffered: str) -> None:
    command = [sys.executable, "-c", _STANDARD_STREAMS, stdout]
    settings = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(command, capture_output=True, check=False, env=settings)
    assert (done.stdout, done.stderr) == (b"printed sent", b"noted complained")


# ---- what is refused, at the call ----------------------------------------------


@pytest.mark.parametrize(
    "source",
    [True, None, 1.5, [1], object(), socket.socket],
    ids=lambda source: type(source).__name__,
)
def test_neither_fd_nor_file(source: Any) -> None:
    for open_it in (azc.open_writer, azc.open_reader, azc.wrap_socket):
        with pytest.raises(TypeError, match="an fd, or an object with fileno"):
            open_it(source)


@pytest.mark.parametrize("path", ["it", b"it", Path("it")])
def test_path_says_what_to_write(path: Any) -> None:
    for open_it, what in (
        (azc.open_writer, "open_writer(open({!r}, 'wb'))"),
        (azc.open_reader, "open_reader(open({!r}, 'rb'))"),
        (azc.wrap_socket, "connect_unix({!r})"),
    ):
        what = what.format(os.fspath(path))
        with pytest.raises(TypeError, match=f"write {re.escape(what)}$"):
            open_it(path)


def closed(source: Any) -> Any:
    os.close(source) if isinstance(source, int) else source.close()
    return source


@linux_only
def test_refused(tmp_path: Path) -> None:
    one, other = socket.socketpair()
    tls = ssl.create_default_context().wrap_socket(
        one, server_hostname="a", do_handshake_on_connect=False
    )
    packets = socket.socketpair(type=socket.SOCK_SEQPACKET)
    own: list[tuple[Any, type[Exception], str]] = [
        (os.open("/", os.O_RDONLY), IsADirectoryError, "is a directory"),
        (select.epoll(), io.UnsupportedOperation, "neither a pipe"),
        (socket.socket(type=socket.SOCK_DGRAM), io.UnsupportedOperation, "SOCK_DGRAM"),
        (packets[0], io.UnsupportedOperation, "SEQPACKET"),
        (socket.socket(), OSError, "not connected"),
        (socket.create_server(("", 0)), io.UnsupportedOperation, "listening"),
        (tls, TypeError, "TLS"),
    ]
    for module in (gzip, bz2):
        for mode in ("wb", "wt"):
            file = module.open(tmp_path / "file", mode)
            own.append((file, TypeError, "changes the bytes"))
    for source, error, words in [
        (-1, ValueError, r"^-1 is not a file descriptor"),
        (closed(os.open("/", os.O_RDONLY)), OSError, "is not open"),
        (1 << 40, OSError, "is not open"),
        (closed((tmp_path / "file").open("wb")), ValueError, "closed"),
        (closed(socket.socket()), ValueError, "closed"),
        (io.BytesIO(), io.UnsupportedOperation, "has no fd"),
        *own,
    ]:
        for open_it in (azc.open_writer, azc.wrap_socket):
            with pytest.raises(error, match=words) as caught:
                open_it(source)
            if type(caught.value) is OSError:
                assert caught.value.errno in (errno.EBADF, errno.ENOTCONN)
    for source in (other, packets[1], *(each for each, _, _ in own)):
        closed(source)


@linux_only
def test_refused_with_these_arguments(ends: tuple[int, int], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    unsupported, nice = io.UnsupportedOperation, {"peer": "nice"}
    peers = "one of 'unknown', 'reads', 'untrusted', not 'nice'"
    cases: list[tuple[Callable[..., Any], Any, Any, type[Exception], str]] = [
        (azc.open_writer, ends[0], {}, unsupported, "open for reading only"),
        (azc.open_reader, ends[1], {}, unsupported, "open for writing only"),
        (azc.open_reader, os.open(path, os.O_PATH), {}, unsupported, "O_PATH"),
        (azc.open_reader, path.open(), {}, TypeError, "binary"),
        (azc.wrap_socket, ends[0], {}, OSError, "is not a socket"),
        (azc.open_writer, ends[1], nice, ValueError, peers),
        (azc.open_reader, ends[0], nice, ValueError, peers),
    ]
    for name in ("queue_limit", "rescue_limit"):
        for value, kind in [(-1, ValueError), (1e8, TypeError), ("1M", TypeError)]:
            says = f"^{name} must be .*, not {value!r}"
            cases.append((azc.open_writer, ends[1], {name: value}, kind, says))
    for open_it, source, options, error, words in cases:
        with pytest.raises(error, match=words):
            open_it(source, **options)
    assert all(map(is_open, ends))
    for _, source, *_ in cases[2:4]:
        closed(source)
    azc.open_writer(ends[1], queue_limit=0, rescue_limit=1 << 70).abort()


@pytest.mark.parametrize("peer", ["unknown", "reads", "untrusted"])
async def test_known_peers(ends: tuple[int, int], peer: str) -> None:
    async with azc.open_reader(ends[0], peer) as reader:
        async with azc.open_writer(ends[1], peer) as writer:
            await writer.send(b"hello")
        assert await everything(reader) == b"hello"
    # For an untrusted peer, the loop's thread makes no system call of ours (nor where
    # an adopted pipe cannot be asked not to wait).
    never = peer == "untrusted" or PORTABLE
    assert writer.stats.sent_at_once == (0 if never else 1)


# ---- await, and async with -----------------------------------------------------


OPENS = ("open_", "connect_", "wrap_", "serve_", "pipe", "socketpair")


@pytest.mark.parametrize(
    "name", [it for it in dir(azc) if it.startswith(OPENS) and it != "pipe_capacity"]
)
def test_what_opens_something_can_be_entered_or_awaited(name: str) -> None:
    opens = getattr(azc, name)
    kind = opens.__globals__[opens.__annotations__["return"].partition("[")[0]]
    assert issubclass(kind, AbstractAsyncContextManager)
    assert issubclass(kind, Awaitable) or name.startswith("serve_")


async def test_ready_without_a_wait() -> None:
    async with azc.pipe() as ends:
        for ready in (ends, *ends):
            with pytest.raises(StopIteration) as caught:
                next(ready.__await__())
            assert caught.value.value is ready


async def test_the_sender_is_closed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Bound] = []
    real = Bound._close

    async def close(stream: Bound) -> None:
        closed.append(stream)
        await real(stream)

    monkeypatch.setattr(Bound, "_close", close)
    async with azc.pipe() as (reader, writer):
        await writer.put(b"accepted")
    assert closed == [writer, reader]


async def test_the_reader_is_closed_when_the_writer_cannot_be() -> None:
    with pytest.raises(azc.StreamBroken):
        async with azc.pipe() as (reader, writer):
            await writer.put(bytes(2 * pipe_size.PIPE_SIZE))
            reader.abort()
    assert reader.fileno() == writer.fileno() == -1


# ---- pairs that the package makes ----------------------------------------------


async def test_pipe() -> None:
    reader, writer = azc.pipe()
    async with reader:
        async with writer:
            await writer.send(b"piped")
            for fd in (reader.fileno(), writer.fileno()):
                assert not os.get_blocking(fd)
                assert not os.get_inheritable(fd)
        assert await everything(reader) == b"piped"


@linux_only
@pytest.mark.parametrize(
    ("size", "least"), [(1, 4096), (100_000, 100_000), (1 << 40, 4096)]
)
async def test_capacity_of_a_pipe(size: int, least: int) -> None:
    reader, writer = azc.pipe(size)
    async with reader, writer:
        capacity = azc.pipe_capacity(writer)
        assert capacity is not None
        assert capacity >= least
        assert azc.pipe_capacity(reader) == capacity
    assert azc.pipe_capacity(writer) is None


@pytest.mark.parametrize("seconds", [None, 0, 5])
async def test_wrap_socket_in_any_mode(seconds: float | None) -> None:
    one, other = socket.socketpair()
    one.settimeout(seconds)
    with other:
        async with azc.wrap_socket(one) as stream:
            assert one.fileno() == -1
            await stream.send(b"there")
            assert other.recv(10) == b"there"
            other.send(b"back")
            assert await stream.receive() == b"back"
        assert other.recv(10) == b""


@linux_only  # Linux doubles the size
@pytest.mark.parametrize("size", [None, 5000])
async def test_buffer_that_somebody_has_set_stays(size: int | None) -> None:
    one, other = socket.socketpair()
    with other, one.dup() as same:
        if size is not None:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        async with azc.wrap_socket(one):
            now = same.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    assert now == 2 * (size or UNIX_BUFFER)


@linux_only
@pytest.mark.parametrize("refused", [1, 2])
def test_pipe_that_cannot_be_set_up_leaves_no_fd(
    refused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(conftest.py looks for fds that are left.)"""
    calls = iter(range(1, 9))

    def set_blocking(_fd: int, _blocking: bool) -> None:
        if next(calls) == refused:
            raise OSError(errno.EIO, "no")

    monkeypatch.setattr(os, "set_blocking", set_blocking)
    with pytest.raises(OSError, match="no"):
        azc.pipe()


@pytest.mark.filterwarnings("ignore:unclosed")
@pytest.mark.parametrize(
    ("kind", "call"),
    [
        (socket.socket, "detach"),
        (channel.Channel, "__init__"),
        (channel.Channel, "_begin"),
    ],
)
def test_interruption_as_a_socket_is_taken_over_leaves_no_fd(
    monkeypatch: pytest.MonkeyPatch, kind: type, call: str
) -> None:
    """After the work of `detach`, or as one of our methods begins."""

    def interrupted(this: Any, *_: object) -> None:
        if isinstance(this, socket.socket):
            socket.SocketType.detach(this)
        raise Interruption

    before = open_fds()
    one, other = socket.socketpair()
    with one, other:
        with monkeypatch.context() as patch, contextlib.suppress(Interruption):
            patch.setattr(kind, call, interrupted)
            stream_over(one).abort()
    assert open_fds() <= before


async def test_after_a_daemon_has_closed_stdin_no_stream_gets_its_number() -> None:
    """Else what the program reads there, or prints, would be the stream's."""
    stdin = os.dup(0)
    try:
        os.close(0)
        one, other = azc.socketpair()
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            os.fstat(0)
    finally:
        os.dup2(stdin, 0)
        os.close(stdin)
    async with one, other:
        await one.send(b"as ever")
        assert await other.receive() == b"as ever"


@linux_only
@pytest.mark.filterwarnings("ignore:unclosed")
async def test_interruption_as_a_pipe_is_taken_over_leaves_no_fd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)

    async def take_over() -> None:
        read_fd, write_fd = os.pipe()
        with os.fdopen(read_fd), os.fdopen(write_fd, "wb") as file:
            azc.open_writer(file, peer="reads").abort()

    await hit_after_each_call(take_over, "opening", "_core.channel")


# ---- how much a pipe holds ------------------------------------------------------

PAGE = os.sysconf("SC_PAGE_SIZE")


@linux_only
def test_size_of_a_pipe_is_checked() -> None:
    size: Any
    for size, error in (("x", TypeError), (None, TypeError), (0, ValueError)):
        with pytest.raises(error, match="size must be"):
            azc.pipe(size)


def test_what_is_no_pipe_has_no_size(ends: tuple[int, int]) -> None:
    assert capacity_of(ends[1]) == 16 * PAGE
    with open(os.devnull) as file:
        assert capacity_of(file.fileno()) is None
        enlarge_pipe(file.fileno(), 1 << 20)
    assert capacity_of(-1) is None


@linux_only
def test_it_only_grows(ends: tuple[int, int]) -> None:
    for wanted, holds in ((32, 32), (8, 32), (32, 32), (33, 64)):
        enlarge_pipe(ends[1], wanted * PAGE)
        assert capacity_of(ends[1]) == holds * PAGE


@linux_only
@pytest.mark.parametrize("allowed", [1 << 30, 1 << 28, 100_000, 0])
def test_as_the_system_allows(allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def fcntl_of(_fd: int, what: int, size: int = 0) -> int:
        if what == F_GETPIPE_SZ:
            return 1 << 16
        asked.append(size)
        if size > allowed:
            raise PermissionError(errno.EPERM, "above the limit")
        return size

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "fcntl", fcntl_of)
        enlarge_pipe(7, 1 << 40)  # too large for the kernel
    halves = [(1 << 30) >> n for n in range(30)]
    last = next((n for n, size in enumerate(halves) if size <= allowed), 13)
    assert asked == [size for size in halves[: last + 1] if size > 1 << 16]


@pytest.mark.parametrize("way", ["extra_attributes", "wrap_socket"])
async def test_socket_object_that_is_lost_leaves_the_fd_open(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler raises when it has been made, and before it is stored."""
    made: Any = BorrowedSocket.__init__

    def interrupted(sock: Any, **options: Any) -> None:
        made(sock, **options)
        raise Interruption

    monkeypatch.setattr(BorrowedSocket, "__init__", interrupted)
    here, there = azc.socketpair()
    plain, other = socket.socketpair()
    with plain, other:
        async with here, there:
            with pytest.raises(Interruption):
                here.extra_attributes if way == "extra_attributes" else azc.wrap_socket(
                    plain
                )
            gc.collect()
            plain.sendall(b"hello")
            assert other.recv(9) == b"hello"
            await here.send(b"hello")
            assert await there.receive() == b"hello"
