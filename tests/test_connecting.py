"""TCP and Unix clients."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from anyio import EndOfStream
from links import let_others_run, linux_only

import aiozerocopy as azc
from aiozerocopy import connecting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", autouse=True)
def warm_resolver() -> None:
    """uvloop looks names up in threads that it keeps: not to be taken for leaks."""
    if importlib.util.find_spec("uvloop"):
        options = {"use_uvloop": True}
        anyio.run(anyio.getaddrinfo, "127.0.0.1", None, backend_options=options)


@pytest.fixture(params=["127.0.0.1", "::1"])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.socket(family) as sock:
        try:
            sock.bind((request.param, 0))
        except OSError:
            pytest.skip("no IPv6 on this machine")
        sock.listen()
        yield sock


@pytest.fixture
def unix_listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "socket"))
        sock.listen()
        yield sock


def unused_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


# ---- TCP -----------------------------------------------------------------------


async def test_connect_with_async_with(listener: socket.socket) -> None:
    host, port, *_ = listener.getsockname()
    async with azc.connect_tcp(host, port) as stream:
        peer, _ = listener.accept()
        with peer:
            await stream.send(b"there")
            assert peer.recv(10) == b"there"
            peer.send(b"back")
            assert await stream.receive() == b"back"
            await stream.aclose()
            assert peer.recv(10) == b""


async def test_connect_with_await(listener: socket.socket) -> None:
    host, port, *_ = listener.getsockname()
    stream = await azc.connect_tcp(host, port)
    peer, _ = listener.accept()
    with peer:
        await stream.aclose()
        assert peer.recv(10) == b""


async def test_the_connection_stays_open_in_both_directions(
    listener: socket.socket,
) -> None:
    host, port, *_ = listener.getsockname()
    async with azc.connect_tcp(host, port) as stream:
        await let_others_run()
        peer, _ = listener.accept()
        with peer:
            peer.setblocking(False)
            with pytest.raises(BlockingIOError):  # not b"", the end
                peer.recv(10)
            await stream.send(b"x")


@pytest.mark.parametrize("nodelay", [True, False])
async def test_nodelay(listener: socket.socket, nodelay: bool) -> None:
    host, port, *_ = listener.getsockname()
    async with azc.connect_tcp(host, port, nodelay=nodelay) as stream:
        option = stream._raw_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert bool(option) is nodelay


async def test_no_byte_is_lost_when_the_peer_sends_at_once() -> None:
    greeting = os.urandom(30_000)

    def greet(listener: socket.socket, clients: int) -> None:
        for _ in range(clients):
            peer, _ = listener.accept()
            with peer:
                peer.sendall(greeting)

    clients = 10
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=greet, args=(listener, clients))
        thread.start()
        for _ in range(clients):
            async with azc.connect_tcp("127.0.0.1", port) as stream:
                assert b"".join([data async for data in stream]) == greeting
        thread.join()


async def test_no_byte_is_lost_that_anyio_had_read(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port, *_ = listener.getsockname()
    real: Any = anyio.connect_tcp
    peers: list[socket.socket] = []

    async def connect_and_read_ahead(*args: object, **options: object) -> object:
        stream = await real(*args, **options)
        peers.append(listener.accept()[0])
        peers[0].send(b"first, ")
        if hasattr(stream, "_transport"):  # asyncio: let its transport read
            stream._transport.resume_reading()
            while not stream._protocol.read_queue:
                await anyio.lowlevel.checkpoint()
            stream._transport.pause_reading()
        return stream

    monkeypatch.setattr(anyio, "connect_tcp", connect_and_read_ahead)
    async with azc.connect_tcp(host, port) as stream:
        with peers[0] as peer:
            peer.send(b"second")
        assert b"".join([data async for data in stream]) == b"first, second"


async def test_nobody_listens() -> None:
    port = unused_port()
    with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{port}: ") as caught:
        await azc.connect_tcp("127.0.0.1", port)
    assert caught.value.errno == errno.ECONNREFUSED


async def test_unknown_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("anyio._core._sockets.getaddrinfo", fail)
    with pytest.raises(socket.gaierror, match="nowhere:80: Name or service"):
        await azc.connect_tcp("nowhere", 80)


@contextlib.contextmanager
def full_listener() -> Iterator[int]:
    """A port that answers nobody any more, for its backlog is full."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.listen(0)
        for _ in range(3):
            client = opened.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield int(listener.getsockname()[1])


@linux_only
async def test_timeout() -> None:
    with (
        full_listener() as port,
        pytest.raises(TimeoutError, match=str(port)) as caught,
    ):
        await azc.connect_tcp("127.0.0.1", port, timeout=0.01)
    assert caught.value.errno == errno.ETIMEDOUT


@linux_only
async def test_cancelled() -> None:
    with full_listener() as port, anyio.move_on_after(0.01) as scope:
        await azc.connect_tcp("127.0.0.1", port)
    assert scope.cancelled_caught


@linux_only
async def test_the_first_address_to_answer_wins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def both(*_: object, **__: object) -> list[object]:
        def entry(address: str) -> object:
            return socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)

        return [entry("127.0.0.1"), entry("127.0.0.2")]

    with full_listener() as port, socket.create_server(("127.0.0.2", port)):
        monkeypatch.setattr("anyio._core._sockets.getaddrinfo", both)
        async with azc.connect_tcp("two", port, happy_eyeballs_delay=0.01) as stream:
            assert stream._raw_socket.getpeername() == ("127.0.0.2", port)


@linux_only
async def test_local_host() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        async with azc.connect_tcp("127.0.0.1", port, local_host="127.0.0.9") as stream:
            assert stream._raw_socket.getsockname()[0] == "127.0.0.9"


async def test_no_fd_for_the_stream(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    host, port, *_ = listener.getsockname()
    monkeypatch.setattr("fcntl.fcntl", fail)
    with pytest.raises(OSError, match="Too many open files"):
        await azc.connect_tcp(host, port)


# ---- Unix ----------------------------------------------------------------------


async def test_connect_unix(unix_listener: socket.socket) -> None:
    async with azc.connect_unix(unix_listener.getsockname()) as stream:
        peer, _ = unix_listener.accept()
        with peer:
            peer.send(b"hello")
            assert await stream.receive() == b"hello"
            await stream.send_eof()
            assert peer.recv(10) == b""
        with pytest.raises(EndOfStream):
            await stream.receive()


@linux_only
@pytest.mark.parametrize("kind", [str, bytes])
async def test_connect_to_abstract_name(kind: type) -> None:
    name = f"\0aiozerocopy-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(name)
        listener.listen()
        stream = await azc.connect_unix(name if kind is str else name.encode())
        await stream.aclose()


async def test_nobody_listens_at_the_path(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with pytest.raises(FileNotFoundError, match=f"{path}"):
        await azc.connect_unix(path)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        with pytest.raises(ConnectionRefusedError, match=f"{path}"):
            await azc.connect_unix(path)


async def test_path_that_is_too_long() -> None:
    with pytest.raises(OSError, match="xxx': AF_UNIX path too long"):
        await azc.connect_unix("x" * 500)


@linux_only
async def test_unix_server_with_a_full_backlog(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as opened:
        listener.bind(path)
        listener.listen(0)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):

                async def connect() -> None:
                    async with azc.connect_unix(path):
                        pass

                tasks.start_soon(connect)
            await let_others_run()
            for _ in range(3):
                await anyio.wait_readable(listener)
                opened.enter_context(listener.accept()[0])


# ---- Opening -------------------------------------------------------------------


async def test_body_that_fails_closes_what_was_opened(
    listener: socket.socket,
) -> None:
    host, port, *_ = listener.getsockname()
    with pytest.raises(ZeroDivisionError):
        async with azc.connect_tcp(host, port) as stream:
            raise ZeroDivisionError
    assert stream.fileno() == -1


async def test_never_awaited_warns() -> None:
    with pytest.warns(RuntimeWarning, match="never awaited"):
        azc.connect_tcp("127.0.0.1", 1)


def test_located_without_errno() -> None:
    error = connecting.located(OSError("something"), "cannot connect to there")
    assert str(error) == f"[Errno {errno.EINVAL}] cannot connect to there: something"


async def test_a_receive_that_fails_at_once_says_so() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    stream = await azc.connect_tcp(*listener.getsockname())
    peer, _ = listener.accept()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()  # with a reset, which has arrived when this returns
    async with stream:
        for _ in range(2):
            with pytest.raises(azc.StreamBroken, match="reset"):
                await stream.receive()
    listener.close()
