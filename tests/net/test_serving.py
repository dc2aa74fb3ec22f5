"""TCP and Unix servers."""

import asyncio
import contextlib
import errno
import importlib.util
import logging
import os
import re
import socket
import ssl
import stat
import struct
import time
from collections.abc import AsyncIterator, Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any

import anyio
import pytest
from accepting import Failing
from anyio import EndOfStream
from links import linux_only, meanwhile, until
from transports import both_loops

import aiozerocopy as azc
from aiozerocopy._core.binding import PORTABLE
from aiozerocopy._net import admission, listening, serving
from aiozerocopy._net.foreign_streams import drop_stream
from aiozerocopy.client import TokenRefused, open_stream, present_token
from aiozerocopy.opening import Opening, stream_over

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", autouse=True)
def warm_resolver() -> None:
    """uvloop resolves names in threads that it keeps; they must not count as leaks."""
    if importlib.util.find_spec("uvloop"):
        options = {"use_uvloop": True}
        anyio.run(anyio.getaddrinfo, "127.0.0.1", None, backend_options=options)


async def echo(stream: azc.Stream) -> None:
    async for data in stream:
        await stream.send(data)


async def nothing(_stream: azc.Stream) -> None:
    pass


def connect(server: serving.Server) -> Opening[azc.Stream]:
    return azc.connect_tcp("127.0.0.1", server.port)


@contextlib.asynccontextmanager
async def served(
    handler: Any, **options: Any
) -> AsyncIterator[tuple[serving.Server, azc.Stream]]:
    """Run a server; yield it, and a client's stream."""
    async with azc.serve_tcp(handler, **options) as server, connect(server) as stream:
        yield server, stream


async def ask(stream: azc.Stream, question: bytes) -> bytes:
    await stream.send(question)
    return await stream.receive()


def logged(caplog: pytest.LogCaptureFixture, level: int) -> list[logging.LogRecord]:
    return [
        record
        for record in caplog.records
        if record.name == "aiozerocopy" and record.levelno == level
    ]


# ---- TCP -----------------------------------------------------------------------


@pytest.mark.every_loop
async def test_clients_are_served_side_by_side() -> None:
    async with azc.serve_tcp(echo) as server:
        assert server.addresses == [("127.0.0.1", server.port)]
        async with connect(server) as one, connect(server) as other:
            assert await ask(one, b"one") == b"one"
            assert await ask(other, b"other") == b"other"
            assert server.connections == 2
        await until(lambda: server.connections == 0)


@pytest.mark.parametrize("host", [None, ""])
async def test_all_addresses(host: str | None) -> None:
    async with azc.serve_tcp(echo, host) as server:
        families = {family for family, _ in server.addresses}
        assert {port for _, port in server.addresses} == {server.port}
        for listens, host in (("0.0.0.0", "127.0.0.1"), ("::", "::1")):
            if listens in families:
                async with azc.connect_tcp(host, server.port) as stream:
                    assert await ask(stream, b"hello") == b"hello"
        assert "0.0.0.0" in families


@pytest.mark.every_loop
async def test_the_stream_is_closed_after_the_handler() -> None:
    async def greet(stream: azc.Stream) -> None:
        await stream.put(b"hello")

    async with served(greet) as (_, stream):
        assert await stream.receive() == b"hello"
        with pytest.raises(EndOfStream):
            await stream.receive()


async def test_both_ends_have_nodelay() -> None:
    def look(stream: azc.Stream) -> int:
        return stream._raw_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    async def tell(stream: azc.Stream) -> None:
        await stream.send(bytes([look(stream)]))

    async with served(tell) as (_, stream):
        assert await stream.receive() == bytes([look(stream)]) == b"\1"


async def test_address_that_cannot_be_had() -> None:
    """An address that is in use, and one of another machine."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for host, code in (
            ("127.0.0.1", errno.EADDRINUSE),
            ("192.0.2.1", errno.EADDRNOTAVAIL),
        ):
            with pytest.raises(OSError, match=f"listen on {host}:{port}: ") as caught:
                await azc.serve_tcp(echo, host, port).serve_forever()
            assert caught.value.errno == code


async def test_another_free_port_if_one_address_has_it_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = listening._bound
    calls: list[int] = []

    def bind(
        family: Any, address: tuple[str, int], options: list[int]
    ) -> socket.socket:
        calls.append(address[1])
        if len(calls) == 2:
            raise OSError(errno.EADDRINUSE, "in use")
        return real(family, address, options)

    monkeypatch.setattr(listening, "_bound", bind)
    async with azc.serve_tcp(nothing, None) as server:
        assert len(calls) >= 3
        assert calls[2] == 0
        assert server.port


async def test_scope_of_an_address_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def refuse(_family: Any, address: Any, _options: Any) -> socket.socket:
        asked.append(address)
        raise OSError(errno.EADDRNOTAVAIL, "not here")

    monkeypatch.setattr(listening, "_bound", refuse)
    with pytest.raises(OSError, match=r"listen on \[fe80::1%1\]:80: not here"):
        await azc.serve_tcp(nothing, "fe80::1%1", 80).serve_forever()
    assert asked == [("fe80::1", 80, 0, 1)]


@linux_only
async def test_reuse_port() -> None:
    async with (
        azc.serve_tcp(echo, reuse_port=True) as one,
        azc.serve_tcp(echo, port=one.port, reuse_port=True) as other,
    ):
        assert one.port == other.port


# ---- the end -------------------------------------------------------------------


async def test_awaiting_says_what_to_write_instead() -> None:
    """Code that expects a server from `await` would wait for ever."""
    server: Any = azc.serve_tcp(echo)
    with pytest.raises(TypeError, match=r"async with.*serve_forever\(\)"):
        await server
    async with server as opened:  # still usable
        assert opened is server


async def test_logs_where_it_listens(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.INFO, "aiozerocopy")
    path = tmp_path / "socket"
    async with anyio.create_task_group() as tasks:

        async def serve(server: serving.Server) -> None:
            await server.serve_forever()

        tasks.start_soon(serve, azc.serve_tcp(echo))
        tasks.start_soon(serve, azc.serve_unix(echo, path))
        await until(lambda: len(logged(caplog, logging.INFO)) == 2)
        texts = [record.getMessage() for record in logged(caplog, logging.INFO)]
        (port,) = re.findall(r"listening on 127\.0\.0\.1:(\d+)", " ".join(texts))
        async with azc.connect_tcp("127.0.0.1", int(port)) as stream:
            assert await ask(stream, b"hello") == b"hello"
        assert f"listening on {str(path)!r}" in texts
        tasks.cancel_scope.cancel()
    assert not path.exists()


def test_address_of_a_listener() -> None:
    with socket.socket() as sock:
        assert str(listening.Listener(sock, ("0.0.0.0", 80))) == "0.0.0.0:80"
        assert str(listening.Listener(sock, ("::", 80))) == "[::]:80"
        assert str(listening.Listener(sock, b"\0name")) == r"b'\x00name'"


@pytest.mark.every_loop
async def test_handlers_may_finish_within_the_grace() -> None:
    going_on = anyio.Event()

    async def slow(stream: azc.Stream) -> None:
        await stream.send(b"hello")
        await going_on.wait()
        await stream.send(b"bye")

    async with served(slow) as (server, stream):
        await stream.receive()
        listeners = list(server._listeners)
        async with meanwhile(server.aclose):
            await until(lambda: all(each.sock.fileno() < 0 for each in listeners))
            # The server no longer accepts, and waits for its handler.
            with pytest.raises(ConnectionRefusedError):
                await connect(server)
            assert server.connections == 1
            going_on.set()
        assert server.connections == 0
        assert await stream.receive() == b"bye"


@pytest.mark.every_loop
@pytest.mark.parametrize("grace", [0, 0.01])
async def test_handlers_are_cancelled_after_the_grace(grace: float) -> None:
    async with served(echo) as (server, stream):
        await ask(stream, b"hello")
        await server.aclose(grace)
        with pytest.raises(ConnectionRefusedError):
            await connect(server)
        await server.aclose(grace)
        assert server.connections == 0
        with pytest.raises(EndOfStream):
            await stream.receive()


@pytest.mark.every_loop
async def test_handler_may_close_the_server() -> None:
    async def stop(_stream: azc.Stream) -> None:
        await server.aclose(0)

    async with served(stop) as (server, stream):
        with pytest.raises(EndOfStream):
            await stream.receive()


@pytest.mark.every_loop
async def test_block_that_fails_cancels_the_handlers() -> None:
    server = azc.serve_tcp(echo)
    with pytest.raises(ZeroDivisionError):
        async with server, connect(server) as stream:
            await ask(stream, b"hello")
            raise ZeroDivisionError
    assert server.connections == 0


@pytest.mark.every_loop
async def test_aclose_that_is_cancelled_cancels_the_handlers() -> None:
    async with served(echo) as (server, stream):
        await ask(stream, b"hello")
        with anyio.move_on_after(0.01):
            await server.aclose(None)
        await until(lambda: server.connections == 0)


@pytest.mark.every_loop
async def test_serve_forever_in_the_block() -> None:
    async with azc.serve_tcp(echo) as server:
        with anyio.move_on_after(0.01) as waited:
            await server.serve_forever()
        assert waited.cancelled_caught
        async with connect(server) as stream:
            assert await ask(stream, b"hello") == b"hello"
        async with meanwhile(server.serve_forever):
            await anyio.wait_all_tasks_blocked()
            await server.aclose()  # ends serving


class AsyncHandler:
    async def __call__(self, stream: azc.Stream) -> None:
        await echo(stream)


def without_signature(handler: Any) -> Any:
    handler.__signature__ = "unknown"  # (not even this is a reason to refuse it)
    return handler


def plain(stream: azc.Stream) -> None:
    pass


async def as_in_asyncio(reader: Any, writer: Any) -> None:
    pass


async def of_nothing() -> None:
    pass


@pytest.mark.parametrize(
    "handler",
    [plain, partial(plain), 5, None, as_in_asyncio, of_nothing, lambda: of_nothing()],
)
def test_handler_that_is_no_async_function(handler: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="async def handler"):
        azc.serve_tcp(handler)
    with pytest.raises(TypeError, match="async def handler"):
        azc.serve_unix(handler, tmp_path / "socket")


@pytest.mark.parametrize(
    "handler",
    [
        partial(echo),
        wraps(echo)(lambda stream: echo(stream)),
        wraps(as_in_asyncio)(lambda stream: echo(stream)),
        AsyncHandler(),
        without_signature(AsyncHandler()),
    ],
    ids=["partial", "wrapped", "given more", "object", "no signature"],
)
async def test_handler_by_other_means(handler: Any) -> None:
    async with served(handler) as (_, stream):
        assert await ask(stream, b"hello") == b"hello"


async def test_server_serves_once() -> None:
    server = azc.serve_tcp(echo)
    with pytest.raises(AttributeError, match="not open: use `async with"):
        _ = server.port
    await server.aclose()  # not open yet, so nothing happens
    async with server:
        pass
    with pytest.raises(RuntimeError, match="once"):
        await server.serve_forever()


# ---- failures ------------------------------------------------------------------


@pytest.mark.every_loop
async def test_handler_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    async def divide(stream: azc.Stream) -> None:
        data = await stream.receive()
        if data == b"0":
            raise ZeroDivisionError
        await stream.send(data)

    async with azc.serve_tcp(divide) as server:
        async with connect(server) as stream:
            await stream.send(b"0")
            with pytest.raises(EndOfStream):
                await stream.receive()
        async with connect(server) as stream:
            assert await ask(stream, b"1") == b"1"
    (record,) = logged(caplog, logging.ERROR)
    assert record.exc_info
    assert record.exc_info[0] is ZeroDivisionError


# Python 3.10 does not tell a task that it was cancelled itself.
KNOWS_ITS_CANCEL = hasattr(asyncio.Task, "cancelling")


@both_loops
@pytest.mark.parametrize("whose", ["what it awaits", "its own"])
async def test_cancel_in_a_handler_ends_only_that_client(
    caplog: pytest.LogCaptureFixture, whose: str
) -> None:
    """asyncio's cancels; on trio only scopes cancel."""

    async def serve(stream: azc.Stream) -> None:
        async for data in stream:
            if data == b"0":
                awaited = asyncio.get_running_loop().create_future()
                task = awaited if whose == "what it awaits" else asyncio.current_task()
                assert task is not None
                task.cancel()
                await awaited
            await stream.send(data)

    caplog.set_level(logging.DEBUG, "aiozerocopy")
    async with served(serve) as (server, good):
        assert await ask(good, b"1") == b"1"
        async with connect(server) as bad:
            await bad.send(b"0")
            with pytest.raises(EndOfStream):
                await bad.receive()
        assert await ask(good, b"2") == b"2"
        async with connect(server) as other:
            assert await ask(other, b"3") == b"3"
    (level,) = [it.levelno for it in caplog.records if "cancelled" in it.msg]
    is_error = whose == "what it awaits" or not KNOWS_ITS_CANCEL
    assert level == (logging.ERROR if is_error else logging.DEBUG)


@both_loops
@pytest.mark.parametrize("ends", ["scope", "task", "all tasks"])
async def test_cancel_of_a_server_and_of_what_its_handler_awaits(
    caplog: pytest.LogCaptureFixture, ends: str
) -> None:
    """Both at once: the server ends, and no handler counts as failed."""
    awaited = asyncio.get_running_loop().create_future()
    handlers: list[asyncio.Task[Any] | None] = []

    async def wait(_stream: azc.Stream) -> None:
        handlers.append(asyncio.current_task())
        await awaited

    async def serve() -> None:
        with scope:
            await server.serve_forever()

    scope = anyio.CancelScope()
    server = azc.serve_tcp(wait)
    serving = asyncio.ensure_future(serve())
    await until(lambda: server.addresses != [])
    async with connect(server) as stream:
        await until(lambda: handlers != [])
        if ends == "scope":
            awaited.cancel()
            scope.cancel()
        elif ends == "task":
            serving.cancel()
        else:  # as asyncio.run does at its end
            for task in (*handlers, serving):
                assert task is not None
                task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        assert serving.cancelled() == (ends != "scope")
        assert server.connections == 0
        with pytest.raises(EndOfStream):
            await stream.receive()
    if ends != "all tasks" or KNOWS_ITS_CANCEL:
        assert logged(caplog, logging.ERROR) == []


@pytest.mark.every_loop
@pytest.mark.parametrize("grouped", [False, True])
async def test_client_that_leaves(
    caplog: pytest.LogCaptureFixture, grouped: bool
) -> None:
    async def fill(stream: azc.Stream) -> None:
        if grouped:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.receive_exactly, bytearray(10))
        else:
            await stream.receive_exactly(bytearray(10))

    caplog.set_level(logging.DEBUG, "aiozerocopy")
    async with served(fill) as (_, stream):
        await stream.send(b"half")
    assert len(logged(caplog, logging.DEBUG)) == 1
    assert logged(caplog, logging.ERROR) == []


NO_STREAM: Any = None
WRONG = ((0, ValueError), (-1, ValueError), ("3", TypeError), (True, TypeError))
LIMITS: dict[str, Callable[[Any], object]] = {
    "max_connections": lambda it: azc.serve_tcp(echo, max_connections=it),
    "max_per_address": lambda it: azc.serve_tcp(echo, max_per_address=it),
    "max_connections ": lambda it: azc.serve_unix(echo, "at", max_connections=it),
    "idle_timeout": lambda it: azc.serve_tcp(echo, idle_timeout=it),
    "dead_after": lambda it: azc.serve_tcp(echo, dead_after=it),
    "dead_after ": lambda it: azc.connect_tcp("127.0.0.1", 1, dead_after=it),
    "frame_timeout": lambda it: azc.FrameReceiver(NO_STREAM, frame_timeout=it),
    "timeout": lambda it: azc.connect_frames("127.0.0.1:1", timeout=it),
    "idle_timeout ": lambda it: azc.connect_frames("127.0.0.1:1", idle_timeout=it),
    "connect_within": lambda it: azc.connect_frames("127.0.0.1:1", connect_within=it),
    "ssl_context": lambda it: azc.serve_tcp(echo, ssl_context=it),
    "ssl_context ": lambda it: azc.connect_frames("127.0.0.1:1", ssl_context=it),
    "on_event": lambda it: azc.connect_frames("127.0.0.1:1", on_event=it),
    "timeout ": lambda it: azc.shm.listen_ring("at", 1, timeout=it),
    "timeout  ": lambda it: azc.shm.connect_ring("at", timeout=it),
}


if PORTABLE:  # the portable build has no rings
    del LIMITS["timeout "], LIMITS["timeout  "]


@pytest.mark.parametrize("name", LIMITS)
async def test_limits_are_looked_at_where_they_are_given(name: str) -> None:
    for value, error in WRONG:
        is_limit = name.strip() not in ("ssl_context", "on_event")
        with pytest.raises(error if is_limit else TypeError, match=name.strip()):
            LIMITS[name](value)


@pytest.mark.parametrize(
    "make",
    [
        partial(azc.serve_tcp, echo),
        partial(azc.serve_unix, echo, "at"),
        partial(azc.connect_tcp, "127.0.0.1", 1),
        partial(azc.connect_unix, "at"),
    ],
)
def test_unknown_concurrent_is_refused_at_once(make: Any) -> None:
    with pytest.raises(ValueError, match=r"concurrent must be .* not 'wait'"):
        make(concurrent="wait")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"AZCF\1", "127.0.0.1 left in mid-frame: the stream ended after 5 of"),
        (bytes(200), "refused 127.0.0.1: its frames cannot be taken: not a frame"),
    ],
)
async def test_client_that_sends_no_frames(
    caplog: pytest.LogCaptureFixture, data: bytes, says: str
) -> None:
    async def take(stream: azc.Stream) -> None:
        await azc.FrameReceiver(stream).receive()

    caplog.set_level(logging.INFO, "aiozerocopy")
    async with served(take) as (_, stream):
        await stream.send(data)
    found = [each for each in caplog.records if each.getMessage().startswith(says)]
    assert [each.exc_info for each in found] == [None]  # one line, no traceback
    assert logged(caplog, logging.ERROR) == []


@pytest.mark.every_loop
@pytest.mark.parametrize(
    ("code", "is_logged"),
    [(errno.EMFILE, 1), (errno.ENOBUFS, 1), (errno.ECONNABORTED, 0), (errno.EPROTO, 0)],
)
async def test_accept_that_fails(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    code: int,
    is_logged: int,
) -> None:
    monkeypatch.setattr(serving, "PAUSE", 0.001)
    server = azc.serve_tcp(echo)
    listen = server._listen

    async def faulty() -> list[listening.Listener]:
        (listener,) = await listen()
        failing: Any = Failing(listener.sock, code, code, code)
        return [listening.Listener(failing, listener.address)]

    server._listen = faulty
    async with server, connect(server) as stream:
        assert await ask(stream, b"hello") == b"hello"
    assert len(logged(caplog, logging.ERROR)) == is_logged


@pytest.mark.every_loop
async def test_client_for_whose_stream_there_is_no_fd(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As if it got the number 0, which needs a duplicate, and no other were free."""
    monkeypatch.setattr(serving, "PAUSE", 0.001)
    codes = [errno.EMFILE, errno.EMFILE]

    def faulty(*args: Any) -> azc.Stream:
        if codes:
            raise OSError(codes[0], os.strerror(codes.pop()))
        return stream_over(*args)

    monkeypatch.setattr(serving, "stream_over", faulty)
    async with azc.serve_tcp(echo, max_connections=1) as server:
        for _ in range(2):
            async with connect(server) as stream:
                with pytest.raises(EndOfStream):
                    await stream.receive()
        async with connect(server) as stream:
            assert await ask(stream, b"hello") == b"hello"
    assert len(logged(caplog, logging.ERROR)) == 1


# ---- admission ------------------------------------------------------------------


async def refused(server: serving.Server, data: bytes) -> bytes:
    """Return a server's answer to a client that sends this instead of the token."""
    async with await anyio.connect_tcp("127.0.0.1", server.port) as stream:
        await stream.send(data)
        answer = b""
        with contextlib.suppress(EndOfStream, anyio.BrokenResourceError, OSError):
            await stream.send_eof()
            while True:
                answer += await stream.receive()
        return answer


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (struct.pack("<4sH", b"AZCT", 6) + b"secreT", b"\x15"),
        (struct.pack("<4sH", b"AZCT", 5) + b"secre", b"\x15"),
        (struct.pack("<4sH", b"AZCT", 0), b"\x15"),
        (struct.pack("<4sH", b"AZCT", 65535), b"\x15"),
        (b"GET / HTTP/1.1\r\n\r\n", b"\x15"),
        (b"AZ", b""),
        (b"", b""),
    ],
)
async def test_wrong_token(data: bytes, answer: bytes) -> None:
    async with azc.serve_tcp(echo, token="secret") as server:
        # Unread data may make the end a reset, which discards the answer.
        assert await refused(server, data) in (answer, b"")
        await until(lambda: server.refused == 1)
        await until(lambda: server.connections == 0)


@pytest.mark.parametrize("token", ["", "x" * 1025, [], ["good", ""]])
async def test_bad_token(token: str | list[str]) -> None:
    with pytest.raises(ValueError, match="token="):
        azc.serve_tcp(echo, token=token)


@pytest.mark.every_loop
async def test_client_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "ADMISSION_SECONDS", 0.01)
    async with azc.serve_tcp(echo, token="secret") as server:
        async with connect(server) as stream:
            with pytest.raises((EndOfStream, azc.StreamBroken)):
                await stream.receive()
        assert server.refused == 1


@pytest.mark.every_loop
async def test_more_clients_than_allowed() -> None:
    async with azc.serve_tcp(echo, max_connections=2) as server:
        streams = [await connect(server) for _ in range(2)]
        for stream in streams:
            assert await ask(stream, b"hello") == b"hello"
        async with connect(server) as third:
            with pytest.raises((EndOfStream, azc.StreamBroken)):
                await third.receive()
        assert (server.connections, server.refused) == (2, 1)
        await streams.pop().aclose()
        await until(lambda: server.connections == 1)
        async with connect(server) as third:
            assert await ask(third, b"hello") == b"hello"
        await streams.pop().aclose()


@pytest.mark.every_loop
async def test_who_shows_no_token_makes_room(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "ADMISSION_SECONDS", 60)
    async with (
        azc.serve_tcp(echo, token=["old", "new"], max_connections=2) as server,
        connect(server) as first,
        connect(server) as second,
    ):
        await until(lambda: server.connections == 2)
        async with contextlib.AsyncExitStack() as admitted:
            for token, silent in (("old", first), ("new", second)):
                stream = await admitted.enter_async_context(connect(server))
                await present_token(stream, token)
                assert await ask(stream, b"hello") == b"hello"
                with pytest.raises((EndOfStream, azc.StreamBroken)):
                    await silent.receive()
                assert server.connections == 2
    assert server.refused == 2
    assert caplog.messages[0] == "refused 127.0.0.1: it waited, and others need room"


@pytest.mark.every_loop
@pytest.mark.parametrize(("share", "count"), [(None, 2), (1, 1), (3, 3)])
async def test_an_address_has_its_share(share: int | None, count: int) -> None:
    """127.0.0.1 has no such limit, as a proxy may connect from there."""

    def connect(host: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", server.port), 5, (host, 0))

    async with azc.serve_tcp(echo, max_connections=4, max_per_address=share) as server:
        with contextlib.ExitStack() as crowd:
            for _ in range(count + 2):
                crowd.enter_context(connect("127.0.0.7"))
            await until(lambda: server.refused == 2)
            assert server.connections == count
            for _ in range(4 - count):
                crowd.enter_context(connect("127.0.0.1"))
            await until(lambda: server.connections == 4)
        await until(lambda: server.connections == 0)


async def test_a_full_server_sees_an_address_only_so_often(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is refused at once; for another address, and 127.0.0.1, room is made."""
    monkeypatch.setattr(admission, "AT_ONCE", 3)
    monkeypatch.setattr(admission, "A_SECOND", 1e-6)

    def connect(host: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", server.port), 5, (host, 0))

    def is_refused(count: int) -> bool:
        return server.refused == count

    async with azc.serve_tcp(echo, max_connections=2, token="a") as server:
        with contextlib.ExitStack() as crowd:
            hosts = ["127.0.0.7"] * 8 + ["127.0.0.8"] + ["127.0.0.1"] * 9
            for number, host in enumerate(hosts, 1):
                crowd.enter_context(connect(host))
                await until(partial(is_refused, max(0, number - 2)))
            said = [text for text in caplog.messages if text.startswith("refused")]
            other, too_often = said[:2]
            assert other == "refused 127.0.0.7: it waited, and others need room"
            assert too_often == f"refused 127.0.0.7: {serving._TOO_OFTEN}"
            crowd.close()
        await until(lambda: server.connections == 0)
        assert len(server._crowd._paces) == 2


def test_paces_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses that were quiet are forgotten, or all of them if none was."""
    monkeypatch.setattr(admission, "MOST_PACES", 3)
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    crowd = admission.Crowd(1, None, 0)
    for address in ("10.0.0.1", "10.0.0.2"):
        assert not crowd.comes_too_often(address)
    now += 60
    assert not crowd.comes_too_often("10.0.0.3")
    assert not crowd.comes_too_often("10.0.0.4")
    assert list(crowd._paces) == ["10.0.0.3", "10.0.0.4"]
    assert not crowd.comes_too_often("10.0.0.5")
    assert not crowd.comes_too_often("10.0.0.6")
    assert list(crowd._paces) == ["10.0.0.6"]


@pytest.mark.parametrize(
    ("serve", "setting", "says"),
    [
        (azc.serve_tcp, {"port": "80"}, "port must be a whole number, not '80'"),
        (azc.serve_tcp, {"token": 5}, "token= must be a string or a list of str"),
        (azc.serve_tcp, {"token": 1.5}, "token= must be a string .* not float"),
        (azc.serve_tcp, {"token": ["a", None]}, "token= .* not list of str, NoneType"),
        (azc.serve_unix, {"path": "s", "mode": "600"}, "mode must be a whole number"),
    ],
)
def test_settings_of_another_type(serve: Any, setting: Any, says: str) -> None:
    with pytest.raises(TypeError, match=f"^{says}"):
        serve(echo, **setting)


async def test_the_address_with_the_most_makes_room() -> None:
    crowd = admission.Crowd(2, None, 6)
    addresses = ("10.0.0.1", "2001:db8::1", "2001:db8::2", "2001:db8::3", "10.0.0.2")
    guests = [crowd.enter(address) for address in addresses]
    assert crowd.seat(guests[0])
    assert not crowd.is_full
    other = crowd.enter("10.0.0.1")
    assert not crowd.seat(other)  # its share is one connection
    assert crowd.is_full
    assert [crowd.make_room() for _ in range(2)] == guests[1:3]
    assert guests[1].scope.cancel_called
    crowd.stand(guests[0])
    assert crowd.make_room() is guests[0]


@pytest.mark.parametrize(
    ("address", "share"),
    [
        ("::ffff:10.0.0.1", "10.0.0.1"),  # IPv4 on a socket for both versions
        ("::ffff:127.0.0.1", ""),
        ("fe80::1%eth0", "fe80:0000:0000:0000"),
        ("", ""),
    ],
)
def test_whose_share_an_address_takes(address: str, share: str) -> None:
    assert admission.share_of(address) == share


def test_refusals_are_logged_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = admission.Refusals()
    for number in range(3):
        refusals.note("10.0.0.1", "one", f": {number}")
        refusals.note("", "other")
    monkeypatch.setattr(refusals, "_told", {"one": (0.0, 2)})
    refusals.note("10.0.0.2", "one")
    assert refusals.count == 7
    assert caplog.messages == [
        "refused 10.0.0.1: one: 0",
        "refused a client: other",
        "refused 10.0.0.2: one (and 2 more since the last such line)",
    ]


@pytest.mark.every_loop
async def test_idle_client_is_cancelled() -> None:
    cancelled: list[bytes] = []

    async def wait(stream: azc.Stream) -> None:
        name = await stream.receive()
        try:
            async for _ in stream:
                pass
        except anyio.get_cancelled_exc_class():
            cancelled.append(name)
            raise

    async with (
        azc.serve_tcp(wait, idle_timeout=2) as server,
        connect(server) as idle,
        connect(server) as busy,
    ):
        await idle.send(b"idle")
        await busy.send(b"busy")
        while not cancelled:
            await busy.send(b"I am here")
            await anyio.lowlevel.checkpoint()
        assert cancelled == [b"idle"]
        with pytest.raises((EndOfStream, azc.StreamBroken)):
            await idle.receive()
        assert server.connections == 1


@pytest.mark.every_loop
@pytest.mark.parametrize("is_tls", [False, True])
async def test_client_that_does_not_read_the_end_is_cancelled(
    is_tls: bool, tls: tuple[ssl.SSLContext, ssl.SSLContext]
) -> None:
    of_server, of_client = tls if is_tls else (None, None)
    begun = anyio.Event()

    async def leave_halfway(stream: azc.Stream) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream.send, bytes(32 << 20))  # more than a socket holds
            await until(lambda: connection().stream.stats.bytes_sent > 10_000)
            tasks.cancel_scope.cancel()
        begun.set()

    def connection() -> serving._Connection:
        (only,) = server._connections.values()
        return only

    options: Any = {"ssl_context": of_server, "idle_timeout": 0.2}
    async with azc.serve_tcp(leave_halfway, **options) as server:
        where = "127.0.0.1", server.port
        stream = await open_stream(*where, None, of_client, "localhost")
        await begun.wait()
        assert server.connections == 1
        await until(lambda: server.connections == 0)
        await drop_stream(stream)


# ---- TLS ------------------------------------------------------------------------


@pytest.mark.every_loop
async def test_tls_and_token(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    server_context, client_context = tls
    async with azc.serve_tcp(
        echo, ssl_context=server_context, token="secret"
    ) as server:
        for token in ("secret", "wrong"):
            with contextlib.suppress(TokenRefused):
                stream = await open_stream(
                    "127.0.0.1", server.port, token, client_context, "localhost"
                )
                await stream.send(bytes(10))
                assert await stream.receive() == bytes(10)
                await stream.aclose()
        await until(lambda: server.refused == 1)


def test_tls_context_of_the_other_side(
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    """A server would refuse every client, and blame it."""
    of_server, of_client = tls
    with pytest.raises(ValueError, match=r"is for clients: .*Purpose\.CLIENT_AUTH"):
        azc.serve_tcp(echo, ssl_context=of_client)
    with pytest.raises(ValueError, match="is for servers: write ssl"):
        azc.connect_frames("127.0.0.1:1", ssl_context=of_server)


# ---- Unix ----------------------------------------------------------------------


@pytest.mark.every_loop
async def test_serve_unix(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    token = b"\0\xff"
    async with azc.serve_unix(echo, path, mode=0o600, token=token) as server:
        assert server.addresses == [str(path)]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(AttributeError, match="port"):
            _ = server.port
        async with azc.connect_unix(path) as stream:
            await present_token(stream, token)
            assert await ask(stream, b"hello") == b"hello"
        assert server.refused == 0
    assert not path.exists()


@linux_only
async def test_serve_abstract_name() -> None:
    name = f"\0aiozerocopy-serve-{os.getpid()}"
    async with azc.serve_unix(echo, name):
        for kind in (name, name.encode()):
            async with azc.connect_unix(kind) as stream:
                assert await ask(stream, b"hello") == b"hello"


@pytest.mark.parametrize("path", ["", b""])
async def test_a_path_that_is_empty(path: str | bytes) -> None:
    """Linux would choose a name that nobody knows."""
    with pytest.raises(OSError, match=f"cannot listen on {path!r}: Invalid argument"):
        async with azc.serve_unix(echo, path):
            pass


async def test_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with azc.serve_unix(echo, path), azc.connect_unix(path) as stream:
        assert await ask(stream, b"hello") == b"hello"


async def test_live_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with azc.serve_unix(echo, path):
        with pytest.raises(OSError, match=f"{path}") as caught:
            await azc.serve_unix(echo, path).serve_forever()
        assert caught.value.errno == errno.EADDRINUSE
        async with azc.connect_unix(path) as stream:
            assert await ask(stream, b"hello") == b"hello"


async def test_file_of_another_server_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    async with azc.serve_unix(echo, path) as old:
        path.unlink()
        async with azc.serve_unix(echo, path):
            await old.aclose()
            async with azc.connect_unix(path) as stream:
                assert await ask(stream, b"hello") == b"hello"
