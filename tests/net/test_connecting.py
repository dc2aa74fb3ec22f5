"""TCP and Unix clients."""

import asyncio
import contextlib
import errno
import gc
import os
import re
import socket
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from inventory import open_files
from links import cut_short, free_port, linux_only, others_wait, until

import aiozerocopy as azc
from aiozerocopy._net import connecting
from aiozerocopy.opening import NEAR_BUFFER

pytestmark = pytest.mark.anyio


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        yield sock


# ---- TCP -----------------------------------------------------------------------


def buffer_of(sock: socket.socket) -> int:
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)


@linux_only  # Linux doubles the size
async def test_little_is_under_way_on_one_machine(listener: socket.socket) -> None:
    host, port, *_ = listener.getsockname()
    accepted: list[azc.Stream] = []
    over = anyio.Event()

    async def handle(stream: azc.Stream) -> None:
        accepted.append(stream)
        await over.wait()

    async with (
        azc.serve_tcp(handle, host, 0) as server,
        azc.connect_tcp(host, server.port),
        azc.connect_tcp(host, port) as stream,
    ):
        await until(lambda: accepted)
        for one in (stream, *accepted):
            assert buffer_of(one._raw_socket) == 2 * NEAR_BUFFER
        over.set()


@pytest.mark.parametrize("peer", ["far", "gone"])
async def test_buffer_is_the_kernels_choice_over_a_network(
    peer: str, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def peername(_: socket.socket) -> tuple[str, int]:
        if peer == "gone":
            raise OSError(errno.ENOTCONN, "gone")
        return "192.0.2.1", 1

    host, port, *_ = listener.getsockname()
    with socket.create_connection((host, port)) as plain:
        usual = buffer_of(plain)
    monkeypatch.setattr(socket.socket, "getpeername", peername)
    async with azc.connect_tcp(host, port) as stream:
        assert buffer_of(stream._raw_socket) == usual


@pytest.mark.every_loop
@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_connect_with_async_with(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip("no IPv6 on this machine")
    port = listener.getsockname()[1]
    async with azc.connect_tcp(host, port) as stream:
        peer, _ = listener.accept()
        with peer, listener:
            await stream.send(b"there")
            assert peer.recv(10) == b"there"
            peer.send(b"back")
            assert await stream.receive() == b"back"
            await stream.aclose()
            assert peer.recv(10) == b""


async def test_nobody_listens() -> None:
    port = free_port()
    with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{port}: ") as caught:
        await azc.connect_tcp("127.0.0.1", port)
    assert caught.value.errno == errno.ECONNREFUSED
    assert "All connection attempts failed (" in str(caught.value)  # anyio's text
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)


async def test_address_in_the_text_can_be_copied() -> None:
    with pytest.raises(OSError, match=r"cannot connect to \[::1\]:1: "):
        await azc.connect_tcp("::1", 1)


@pytest.mark.parametrize("port", [-1, 70000])
def test_number_that_no_port_has(port: int) -> None:
    for call in (
        lambda: azc.connect_tcp("localhost", port),
        lambda: azc.serve_tcp(_unused, port=port),
    ):
        with pytest.raises(ValueError, match=f"from 0 to 65535, not {port}$"):
            call()


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("host", b"127.0.0.1", "host must be a string, not b'127.0.0.1'"),
        ("host", 3, "host must be a string, not 3"),
        ("port", None, "port must be a whole number, not None"),
        ("port", "http", "port must be a whole number, not 'http'"),
        ("port", 3.5, "port must be a whole number, not 3.5"),
    ],
)
def test_host_and_port_of_another_type(name: str, value: Any, says: str) -> None:
    where: Any = {"host": "127.0.0.1", "port": 1, name: value}
    for call in (azc.connect_tcp, partial(azc.serve_tcp, _unused)):
        with pytest.raises(TypeError, match=f"^{says}$"):
            call(**where)


async def _unused(stream: azc.Stream) -> None:
    pass


async def test_unknown_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(anyio, "getaddrinfo", fail)
    with pytest.raises(socket.gaierror, match="nowhere:80: Name or service"):
        await azc.connect_tcp("nowhere", 80)


@contextlib.contextmanager
def full_listener(host: str = "127.0.0.1") -> Iterator[int]:
    """A port whose listener accepts no more connections, as its backlog is full."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server((host, 0)))
        listener.listen(0)
        for _ in range(3):
            client = opened.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield int(listener.getsockname()[1])


@pytest.mark.every_loop
@linux_only
async def test_timeout() -> None:
    with (
        full_listener() as port,
        pytest.raises(TimeoutError, match=str(port)) as caught,
    ):
        await azc.connect_tcp("127.0.0.1", port, timeout=0.01)
    assert caught.value.errno == errno.ETIMEDOUT


# ---- a name with many addresses --------------------------------------------------

NEVER = 3600.0  # seconds before a second address is tried, if none fails


def sockets() -> list[str]:
    """Return all sockets that this process has open."""
    return sorted(each for each in open_files().values() if each.startswith("socket:"))


def has_addresses(
    monkeypatch: pytest.MonkeyPatch, *hosts: str, delay: float = NEVER
) -> None:
    """Let every name stand for these addresses, in this order."""

    async def find(_: object, port: int, **__: object) -> list[object]:
        def entry(host: str) -> object:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return family, socket.SOCK_STREAM, 6, "", (host, port)

        return [entry(host) for host in hosts]

    monkeypatch.setattr(anyio, "getaddrinfo", find)
    monkeypatch.setattr(connecting, "DELAY", delay)


@pytest.mark.every_loop
@linux_only
async def test_a_silent_one_is_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    has_addresses(monkeypatch, "127.0.0.1", "127.0.0.2", delay=0.01)
    with full_listener() as port, socket.create_server(("127.0.0.2", port)):
        before = sockets()
        async with azc.connect_tcp("two", port) as stream:
            assert stream._raw_socket.getpeername() == ("127.0.0.2", port)
            assert len(sockets()) == len(before) + 1  # the loser is closed
        assert sockets() == before


@pytest.mark.every_loop
@linux_only
async def test_after_a_failure_the_next_is_tried_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_addresses(monkeypatch, "127.0.0.1", "127.0.0.2")
    with socket.create_server(("127.0.0.2", 0)) as listener:
        port = listener.getsockname()[1]
        async with azc.connect_tcp("two", port) as stream:
            assert stream._raw_socket.getpeername() == ("127.0.0.2", port)


@pytest.mark.every_loop
@linux_only
async def test_one_of_two_that_answer_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    has_addresses(monkeypatch, "127.0.0.1", "127.0.0.2", delay=0)
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        before = sockets()
        async with azc.connect_tcp("two", port):
            assert len(sockets()) == len(before) + 1


@pytest.mark.every_loop
@linux_only
async def test_nobody_of_many_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    has_addresses(monkeypatch, "127.0.0.1", "127.0.0.2")
    port = free_port()
    before = sockets()
    with pytest.raises(ConnectionRefusedError) as caught:
        await azc.connect_tcp("two", port)
    refused = os.strerror(errno.ECONNREFUSED)
    assert caught.value.errno == errno.ECONNREFUSED
    assert caught.value.strerror == (
        f"cannot connect to two:{port}: All connection attempts failed "
        f"(127.0.0.1: {refused}; 127.0.0.2: {refused})"
    )
    causes = getattr(caught.value.__cause__, "exceptions", ())  # anyio's group
    assert [type(cause) for cause in causes] == [ConnectionRefusedError] * 2
    assert sockets() == before


@pytest.mark.every_loop
@pytest.mark.parametrize("hosts", [["127.0.0.1"], ["127.0.0.1", "127.0.0.2"]])
async def test_an_error_is_in_no_cycle(
    monkeypatch: pytest.MonkeyPatch, hosts: list[str]
) -> None:
    """A cycle would keep the objects in its frames until the next collection."""
    kept: list[weakref.ref[Any]] = []

    class Refused(ConnectionRefusedError):
        def __init__(self, *args: object) -> None:
            super().__init__(*args)
            kept.append(weakref.ref(self))

    async def refuse(*_: object) -> None:
        raise Refused(errno.ECONNREFUSED, "refused")

    has_addresses(monkeypatch, *hosts)
    monkeypatch.setattr(connecting, "_connect", refuse)
    gc.disable()
    try:
        with contextlib.suppress(OSError):
            await azc.connect_tcp("many", 1)
        assert [each() for each in kept] == [None] * len(hosts)
    finally:
        gc.enable()


@pytest.mark.every_loop
@linux_only
@pytest.mark.parametrize("hosts", [["127.0.0.1"], ["127.0.0.1", "127.0.0.2"]])
async def test_cancelled_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, hosts: list[str]
) -> None:
    has_addresses(monkeypatch, *hosts, delay=0)
    with full_listener("") as port:
        before = sockets()
        async with cut_short(azc.connect_tcp, "many", port):
            await until(lambda: len(sockets()) == len(before) + len(hosts))
        assert sockets() == before


@pytest.mark.every_loop
async def test_cancelled_when_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    has_addresses(monkeypatch, "127.0.0.1", "127.0.0.2")
    real = connecting._connect

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with anyio.CancelScope() as scope:

            async def connect_and_cancel(*args: Any) -> socket.socket:
                sock = await real(*args)
                scope.cancel()
                return sock

            monkeypatch.setattr(connecting, "_connect", connect_and_cancel)
            await azc.connect_tcp("two", port)
        assert scope.cancelled_caught


async def test_families_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    has_addresses(monkeypatch, "::1", "::2", "::3", "127.0.0.1", "127.0.0.2", "::1")
    for first, hosts in (
        ([0], ["::1", "::2", "::3", "127.0.0.1", "127.0.0.2"]),
        ([], ["::1", "127.0.0.1", "::2", "127.0.0.2", "::3"]),
        ([2], ["::1", "::2", "127.0.0.1", "::3", "127.0.0.2"]),
    ):
        places = await connecting.look_up("many", 80, *first)
        assert [address[0] for _, address in places] == hosts


async def test_an_address_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(anyio, "getaddrinfo")
    v4, v6 = socket.AF_INET, socket.AF_INET6
    assert await connecting.look_up("127.0.0.1", 80) == [(v4, ("127.0.0.1", 80))]
    assert await connecting.look_up("::1", 80) == [(v6, ("::1", 80))]


async def test_scope_of_an_address_is_kept() -> None:
    """Without it, the kernel does not know which link a link-local address is on."""
    [place] = await connecting.look_up("fe80::1%1", 80)
    assert place == (socket.AF_INET6, ("fe80::1", 80, 0, 1))


# ---- Unix ----------------------------------------------------------------------


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


@pytest.mark.every_loop
@linux_only
async def test_unix_server_with_a_full_backlog(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as opened:
        listener.bind(path)
        listener.listen(0)

        async def connect() -> None:
            await (await azc.connect_unix(path)).aclose()

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(connect)
            await others_wait()
            for _ in range(3):
                await anyio.wait_readable(listener)
                opened.enter_context(listener.accept()[0])


# ---- Opening -------------------------------------------------------------------


@pytest.mark.every_loop
async def test_never_awaited_warns() -> None:
    with pytest.warns(RuntimeWarning, match="never awaited"):
        azc.connect_tcp("127.0.0.1", 1)


async def test_opening_that_is_used_as_what_it_opens(tmp_path: Path) -> None:
    stream: Any = azc.connect_unix(tmp_path / "socket")
    hint = r"not open yet: use the result of `await connect_unix\(\.\.\.\)`"
    for _ in range(2):
        with pytest.raises(TypeError, match=hint):
            await stream.send(b"hello")
        with pytest.raises(AttributeError, match=f"no 'receive': {hint}"):
            await stream.receive()
        stream.close()
    assert re.search(hint, repr(stream))


@pytest.mark.every_loop
async def test_opening_in_a_task_group(listener: socket.socket) -> None:
    host, port = listener.getsockname()
    with pytest.warns(ResourceWarning, match="unclosed"):  # the stream is dropped
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(azc.connect_tcp, host, port)
        gc.collect()
    peer, _ = listener.accept()
    with peer:
        assert peer.recv(1) == b""


async def test_opening_as_a_task(listener: socket.socket) -> None:
    task = asyncio.create_task(azc.connect_tcp(*listener.getsockname()))
    async with await task as stream:
        await stream.send(b"there")
        peer, _ = listener.accept()
        with peer:
            assert peer.recv(10) == b"there"
    cancelled = asyncio.create_task(azc.connect_tcp("192.0.2.1", 1))
    await asyncio.sleep(0)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
