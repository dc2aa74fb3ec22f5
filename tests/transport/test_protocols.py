"""aiozerocopy.transport: how a Protocol sees a connection, and sends on it."""

import asyncio
import contextvars
import errno
import fcntl
import gc
import mmap
import os
import select
import socket
import struct
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from accepting import Failing
from links import BIG, free_port, linux_only, others_wait, until
from oracle import message, payload, poison
from transports import HOST, Echo, End, Filler, Recorder, both_loops, kept, opened

from aiozerocopy import transport as azt

np = pytest.importorskip("numpy")
pytestmark = pytest.mark.anyio


# ---- the order of calls -------------------------------------------------------------


@both_loops
@pytest.mark.parametrize("backlog", [100, 0])
async def test_echo_and_the_order_of_calls(backlog: int) -> None:
    servers, factory = kept(Echo)
    async with await azt.create_server(factory, HOST, 0, backlog=backlog) as server:
        port = server.sockets[0].getsockname()[1]
        transport, client = await azt.create_connection(Recorder, HOST, port)
        transport.write(b"there")
        await until(lambda: client.data == b"there")
        transport.close()
        assert await client.lost is None
        assert await servers[0].lost is None
    assert client.events == ["made", "data", "lost"]
    assert servers[0].events == ["made", "data", "eof", "lost"]


@pytest.mark.parametrize("is_given", [False, True])
async def test_extra_info(is_given: bool) -> None:
    class Late(Recorder):
        def connection_lost(self, exc: BaseException | None) -> None:
            self.socket = self.transport.get_extra_info("socket")
            super().connection_lost(exc)

    async with await azt.create_server(Recorder, HOST, 0) as server:
        address = server.sockets[0].getsockname()
        if is_given:
            ours = socket.create_connection(address)
            transport, protocol = await azt.create_connection(Late, sock=ours)
        else:
            transport, protocol = await azt.create_connection(Late, *address)
        assert transport.get_extra_info("peername") == address
        sock = transport.get_extra_info("socket")
        assert sock is transport.get_extra_info("socket")
        assert sock.getsockname() == transport.get_extra_info("sockname")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert not is_given or sock.fileno() == ours.fileno()
        assert transport.get_extra_info("cipher", 5) == 5
        transport.close()
        await protocol.lost
        assert protocol.socket is sock
        await others_wait()
        assert sock.fileno() == -1
        assert transport.get_extra_info("peername") == address
        assert transport.get_protocol() is None


# ---- writing ------------------------------------------------------------------------


async def test_arrays_count_bytes(end: End) -> None:
    array = np.arange(BIG, dtype="f4").reshape(4, -1)
    end.transport.write(array)
    end.transport.write(memoryview(array))
    end.transport.writelines([array[0], b"and", array[1]])
    expected = array.tobytes() * 2 + array[0].tobytes() + b"and"
    expected += array[1].tobytes()
    assert await end.read(len(expected)) == expected


async def test_writes_stay_in_order(end: End) -> None:
    pieces = [bytes(payload(seed, 1 + seed * 997 % 60_000)) for seed in range(100)]
    end.transport.write(b"")
    for number, piece in enumerate(pieces):
        if number % 3:
            end.transport.write(piece)
        else:
            end.transport.writelines([piece[:7], b"", bytearray(piece[7:])])
    end.transport.write_eof()
    assert await end.read_all() == b"".join(pieces)


async def test_a_buffer_is_borrowed_until_drained(end: End) -> None:
    data = message(1, 0, BIG)
    sent = bytes(data)
    end.transport.write(data)
    with pytest.raises(BufferError):
        data.append(0)
    assert end.protocol.events == ["made", "pause"]
    reading = asyncio.ensure_future(end.read(len(sent)))
    await end.transport.drained()
    poison(data)
    data.append(0)
    assert await reading == sent
    await until(lambda: end.protocol.events == ["made", "pause", "resume"])


@both_loops
async def test_reuse_after_drain_never_corrupts() -> None:
    """asyncio (from 3.12 on) and uvloop fail here: drain returns before all is sent."""
    ours, peer = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 5000)
    reader, writer = await azt.open_connection(sock=ours)
    received = bytearray()

    async def read() -> None:
        while piece := await asyncio.get_running_loop().sock_recv(peer, 3000):
            received.extend(piece)

    peer.setblocking(False)
    with peer:
        reading = asyncio.ensure_future(read())
        buffer, expected = bytearray(51_200), bytearray()
        for seed in range(20):
            buffer[:] = payload(seed, len(buffer))
            expected += buffer
            writer.write(memoryview(buffer))
            await writer.drain()
            poison(buffer)
        writer.close()
        await writer.wait_closed()
        await reading
    assert received == expected
    assert reader.at_eof()


async def test_small_buffers_are_yours_at_once(end: End) -> None:
    end.transport.write(bytes(BIG))  # so that the next one is queued
    small = bytearray(b"small")
    end.transport.write(small)
    small.clear()
    assert (await end.read(BIG + 5))[BIG:] == b"small"


async def test_bytes_that_cannot_change_are_under_the_marks(end: End) -> None:
    end.transport.set_write_buffer_limits(high=2 * BIG)
    data = bytes(BIG)
    end.transport.write(data)
    end.transport.write(memoryview(data)[:100])
    for nothing in (b"", bytearray(), memoryview(data)[:0], mmap.mmap(-1, 1)):
        end.transport.write(memoryview(nothing)[:0])
    assert end.protocol.events == ["made"]
    assert end.transport.get_write_buffer_size() > 100
    end.transport.writelines([data, data])
    assert end.protocol.events == ["made", "pause"]
    await end.read(3 * BIG + 100)
    await until(lambda: end.protocol.events == ["made", "pause", "resume"])
    assert end.transport.get_write_buffer_size() == 0


async def test_limits(end: End) -> None:
    transport = end.transport
    assert transport.get_write_buffer_limits() == (16 << 10, 64 << 10)
    transport.set_write_buffer_limits(low=100)
    assert transport.get_write_buffer_limits() == (100, 400)
    transport.set_write_buffer_limits(high=0)
    assert transport.get_write_buffer_limits() == (0, 0)
    with pytest.raises(ValueError, match="low=2 and high=1"):
        transport.set_write_buffer_limits(high=1, low=2)
    transport.set_write_buffer_limits(high=3 * BIG)
    transport.write(bytes(BIG))
    assert end.protocol.events == ["made"]
    transport.set_write_buffer_limits(high=10)
    assert end.protocol.events == ["made", "pause"]


@pytest.mark.parametrize("data", ["text", 5, None, [1, 2], memoryview(bytes(9))[::2]])
async def test_what_cannot_be_sent_is_refused(end: End, data: Any) -> None:
    with pytest.raises((TypeError, BufferError)):
        end.transport.write(data)
    with pytest.raises((TypeError, BufferError)):
        end.transport.writelines([b"a", data])
    end.transport.write(b"still well")
    assert await end.read(10) == b"still well"


@both_loops
async def test_write_eof_comes_after_all_else() -> None:
    async with opened(lambda: Recorder(keep_open=True)) as end:
        end.transport.write(bytes(BIG))
        end.transport.write_eof()
        end.transport.write_eof()
        with pytest.raises(RuntimeError, match="after write_eof"):
            end.transport.write(b"more")
        with pytest.raises(RuntimeError, match="after write_eof"):
            end.transport.writelines([b"more", b"and more"])
        assert len(await end.read_all()) == BIG
        end.peer.send(b"answer")
        await until(lambda: end.protocol.data == b"answer")


@both_loops
async def test_close_flushes(end: End) -> None:
    end.transport.write(bytearray(BIG))
    end.transport.close()
    assert end.transport.is_closing()
    end.transport.close()
    assert len(await end.read_all()) == BIG
    assert await end.protocol.lost is None
    await end.transport.drained()


# ---- reading ------------------------------------------------------------------------


class Paused(Recorder):
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.pause_reading()


@both_loops
@pytest.mark.parametrize("kind", [Recorder, Paused])
async def test_pause_and_resume_reading(kind: type[Recorder]) -> None:
    async with opened(kind) as end:
        assert end.transport.is_reading() == (kind is Recorder)
        end.transport.pause_reading()
        end.transport.pause_reading()
        assert not end.transport.is_reading()
        end.peer.send(b"one")
        await others_wait()
        assert end.protocol.data == b""
        end.transport.resume_reading()
        end.transport.resume_reading()
        await until(lambda: end.protocol.data == b"one")


async def test_an_empty_buffer_is_an_error() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, each: told.append(each))
    async with opened(lambda: Filler(0)) as end:
        end.peer.send(b"x")
        await until(end.transport.is_closing)
    assert "empty buffer" in str(told[0]["exception"])


@both_loops
async def test_abort_in_get_buffer_reads_nothing_more() -> None:
    """The fd's number may be another connection's by then."""

    class Aborting(Filler):
        def get_buffer(self, sizehint: int) -> bytearray:
            self.transport.abort()
            number = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, self.transport._fd)
            self.other = socket.socket(fileno=number)
            return super().get_buffer(sizehint)

    theirs, writer = socket.socketpair()
    with theirs, writer:
        writer.send(b"theirs")
        async with opened(Aborting) as end:
            end.peer.send(b"x")
            assert await end.protocol.lost is None
            with end.protocol.other as other:
                assert other.fileno() == end.transport._fd
                assert other.recv(9) == b"theirs"
        assert end.protocol.events == ["made", "lost"]


@both_loops
@pytest.mark.parametrize("call", ["close", "abort"])
async def test_the_last_protocol_gets_connection_lost(end: End, call: str) -> None:
    getattr(end.transport, call)()
    last = Recorder()
    end.transport.set_protocol(last)
    assert await last.lost is None
    await others_wait()
    assert end.protocol.events == ["made"]


async def test_the_protocol_may_change(end: End) -> None:
    assert isinstance(end.transport, asyncio.Transport)
    assert end.transport.can_write_eof()
    end.peer.send(b"one")
    await until(lambda: end.protocol.data == b"one")
    filler = Filler()
    end.transport.set_protocol(filler)
    assert end.transport.get_protocol() is filler
    end.peer.send(b"two")
    await until(lambda: filler.data == b"two")
    end.transport.set_protocol(end.protocol)
    end.peer.send(b"three")
    await until(lambda: end.protocol.data == b"onethree")


@both_loops
async def test_drain_of_a_new_protocol_means_yours_again(end: End) -> None:
    """Even if the old one was paused: the new one did not hear of that."""
    transport, loop = end.transport, asyncio.get_running_loop()
    transport.write(bytes(BIG))
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    for _ in range(2):  # the second time changes nothing
        transport.set_protocol(protocol)
    protocol.connection_made(transport)
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    data = message(1, 0, BIG)
    sent = bytes(data)
    writer.write(data)
    reading = asyncio.ensure_future(end.read(BIG + len(sent)))
    await writer.drain()
    poison(data)
    assert await reading == bytes(BIG) + sent
    assert end.protocol.events == ["made", "pause"]
    writer.close()
    await writer.wait_closed()


@both_loops
@pytest.mark.parametrize("keep_open", [True, False])
async def test_half_close(keep_open: bool) -> None:
    async with opened(lambda: Recorder(keep_open)) as end:
        end.peer.send(b"last")
        end.peer.shutdown(socket.SHUT_WR)
        await until(lambda: "eof" in end.protocol.events)
        assert end.transport.is_closing() is not keep_open
        if keep_open:
            end.transport.write(b"answer")
            assert await end.read(6) == b"answer"
            end.transport.close()
        assert await end.read_all() == b""
        assert await end.protocol.lost is None


# ---- its ends -----------------------------------------------------------------------


@both_loops
@pytest.mark.parametrize("last", [b"", b"last"])
async def test_reset(last: bytes) -> None:
    """It may come right after data: the loop reports both at once."""
    async with opened(tcp=True) as end:
        end.peer.send(last)
        end.reset()
        assert isinstance(await end.protocol.lost, ConnectionResetError)
        end.transport.write(b"lost")
        with pytest.raises(ConnectionResetError):
            await end.transport.drained()


@both_loops
@pytest.mark.parametrize("tcp", [True, False])
async def test_the_peer_goes_while_much_is_queued(tcp: bool) -> None:
    data = bytearray(8 * BIG)
    async with opened(tcp=tcp) as end:
        end.transport.write(data)
        draining = asyncio.ensure_future(end.transport.drained())
        await others_wait()
        end.reset()
        lost = await end.protocol.lost
        assert isinstance(lost, (ConnectionResetError, BrokenPipeError))
        with pytest.raises(type(lost)):
            await draining
        data.append(0)
    assert end.protocol.events[-1] == "lost"
    assert end.protocol.events.count("lost") == 1


@both_loops
async def test_what_the_peer_said_last_comes_before_the_end_of_a_write() -> None:
    async with opened(tcp=True) as end:
        end.transport.write(bytes(8 * BIG))
        end.peer.send(b"last")
        end.reset()
        assert end.transport._port.wait(end.transport._pending[0], 10)
        assert isinstance(await end.protocol.lost, OSError)
        assert end.protocol.data == b"last"
        assert "eof" not in end.protocol.events


@both_loops
async def test_a_reset_that_a_write_has_met_is_no_end_of_what_comes() -> None:
    async with opened(tcp=True) as end:
        end.transport.write(bytes(8 * BIG))
        end.reset()
        assert select.select([end.transport._port], [], [], 10)[0]
        end.transport._readable()  # as the loop does, when it notices first
        assert isinstance(await end.protocol.lost, OSError)
        assert end.protocol.events == ["made", "pause", "lost"]


@both_loops
async def test_abort_while_writing(end: End) -> None:
    data = message(1, 0, BIG)
    sent = bytes(data)
    end.transport.write(data)
    draining = asyncio.ensure_future(end.transport.drained())
    await others_wait()
    end.transport.abort()
    end.transport.abort()
    with pytest.raises(ConnectionAbortedError, match="before all was out"):
        await draining
    poison(data)
    assert await end.protocol.lost is None
    assert sent.startswith(await end.read_all())


async def test_written_after_the_end(end: End) -> None:
    end.transport.close()
    await end.transport.drained()
    end.transport.write(b"late")
    end.transport.writelines([b"la", b"te"])
    with pytest.raises(ConnectionAbortedError, match="after it was closed"):
        await end.transport.drained()
    assert await end.read_all() == b""


@pytest.mark.parametrize("call", ["data_received", "eof_received", "pause_writing"])
async def test_a_protocol_that_raises_is_reported(call: str) -> None:
    class Faulty(Recorder):
        pass

    def fail(*_: object) -> None:
        raise OSError(errno.ENOENT, "of the protocol")

    setattr(Faulty, call, fail)
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, each: told.append(each))
    async with opened(Faulty) as end:
        if call == "pause_writing":
            end.transport.write(bytes(BIG))
            await until(lambda: told)
            assert not end.transport.is_closing()
        else:
            end.peer.send(b"data")
            end.peer.shutdown(socket.SHUT_WR)
            assert isinstance(await end.protocol.lost, FileNotFoundError)
    assert isinstance(told[0]["exception"], FileNotFoundError)
    assert told[0]["transport"] is end.transport


@both_loops
async def test_connection_made_that_raises() -> None:
    class Faulty(Recorder):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            raise LookupError("in connection_made")

    made, factory = kept(Faulty)
    ours, peer = socket.socketpair()
    with peer:
        with pytest.raises(LookupError):
            await azt.create_connection(factory, sock=ours)
        assert isinstance(await made[0].lost, LookupError)
        assert peer.recv(1) == b""


def is_unwatched(transport: weakref.ref[Any]) -> bool:
    it = transport()
    return it is not None and not it._is_watched


async def test_one_that_is_dropped_warns_and_closes() -> None:
    ours, peer = socket.socketpair()
    with peer:
        transport, _ = await azt.create_connection(Recorder, sock=ours)
        transport.pause_reading()
        peer.send(b"x")  # data during a pause ends the watch
        await until(partial(is_unwatched, weakref.ref(transport)))
        with pytest.warns(ResourceWarning, match=r"unclosed <transport fd=\d+>"):
            del transport, _
            gc.collect()
        ours.close()
        with pytest.raises(ConnectionResetError):  # since data was left unread
            peer.recv(1)


# ---- servers ------------------------------------------------------------------------


async def client_of(server: azt.Server) -> Recorder:
    address: Any = server.sockets[0].getsockname()
    if isinstance(address, str):
        return (await azt.create_unix_connection(Recorder, address))[1]
    return (await azt.create_connection(Recorder, *address))[1]


async def leave(protocol: Recorder) -> None:
    protocol.transport.close()
    await protocol.lost


@both_loops
@pytest.mark.parametrize("end", ["close_clients", "abort_clients"])
async def test_a_server_and_its_clients(end: str) -> None:
    served, factory = kept(Recorder)
    server = await azt.create_server(factory, HOST, 0, start_serving=False)
    assert not server.is_serving()
    assert server.get_loop() is asyncio.get_running_loop()
    address = server.sockets[0].getsockname()
    await server.start_serving()
    await server.start_serving()
    assert server.is_serving()
    clients = [await client_of(server) for _ in range(3)]
    await until(lambda: len(served) == 3)
    server.close()
    server.close()
    assert (server.sockets, server.is_serving()) == ((), False)
    with pytest.raises(OSError, match=r"cannot connect to 127\.0\.0\.1:"):
        await azt.create_connection(Recorder, *address)
    waiting = asyncio.ensure_future(server.wait_closed())
    await others_wait()
    assert not waiting.done()
    getattr(server, end)()
    await waiting
    for client in clients:
        assert await client.lost is None
    await server.wait_closed()


@linux_only  # (others tell accept of the reset)
@both_loops
async def test_client_that_has_reset_the_connection_has_an_address() -> None:
    servers, factory = kept(Recorder)
    server = await azt.create_server(factory, HOST, 0, start_serving=False)
    async with server:
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            address = client.getsockname()
            linger = struct.pack("ii", 1, 0)  # close resets the connection
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await server.start_serving()
        await until(lambda: servers)
        assert servers[0].transport.get_extra_info("peername") == address
        assert isinstance(await servers[0].lost, ConnectionResetError)


@both_loops
async def test_serve_forever() -> None:
    server = await azt.create_server(Recorder, HOST, 0, start_serving=False)
    task = asyncio.ensure_future(server.serve_forever())
    await until(server.is_serving)
    with pytest.raises(RuntimeError, match="already being awaited"):
        await server.serve_forever()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.sockets == ()
    with pytest.raises(RuntimeError, match="is closed"):
        await server.serve_forever()


async def test_a_factory_that_raises_costs_one_client() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, each: told.append(each))
    answers: list[Any] = [LookupError("no protocol"), None]

    def factory() -> Recorder:
        if answer := answers.pop(0):
            raise answer
        return Recorder()

    async with await azt.create_server(factory, HOST, 0) as server:
        await (await client_of(server)).lost
        client = await client_of(server)
        await until(lambda: not answers)
        await leave(client)
    assert isinstance(told[0]["exception"], LookupError)


@both_loops
async def test_no_fds_for_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, each: told.append(each))
    monkeypatch.setattr("aiozerocopy.transport.server.PAUSE", 0.01)
    async with await azt.create_server(Recorder, HOST, 0) as server:
        (listener,) = server._listeners
        connecting = asyncio.ensure_future(client_of(server))
        no_fds: Any = Failing(listener.sock, errno.EMFILE)
        listener.sock = no_fds
        await until(lambda: server._clients)
        await leave(await connecting)
    assert [each["message"] for each in told] == ["no clients are accepted for now"]


async def test_several_hosts_have_one_port() -> None:
    """Two hosts may be names of one address."""
    hosts = ["127.0.0.1", "127.0.0.2", "127.1"]
    async with await azt.create_server(Recorder, hosts, 0) as server:
        names = [sock.getsockname() for sock in server.sockets]
        assert [host for host, _ in names] == hosts[:2]
        assert len({port for _, port in names}) == 1
        taken = f"127.0.0.1:{names[0][1]}, 127.0.0.2:{names[0][1]}"
        with pytest.raises(OSError, match=f"cannot listen on {taken}"):
            await azt.create_server(Recorder, hosts[:2], names[0][1])


@both_loops
async def test_protocol_has_a_context_of_its_own() -> None:
    """The protocol sees the opener's context; the opener does not see its changes."""
    var: contextvars.ContextVar[str] = contextvars.ContextVar("var")
    seen: list[tuple[str, str]] = []

    class Setting(Recorder):
        pass

    def noting(name: str) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            seen.append((name, var.get()))
            var.set(name)
            getattr(Recorder, name)(*arguments)

        return call

    for name in "connection_made", "data_received", "resume_writing", "connection_lost":
        setattr(Setting, name, noting(name))

    var.set("a stranger's")
    async with opened():  # so the loop reports the ends of all writes in this context
        var.set("mine")
        async with opened(Setting) as end:
            assert var.get() == "mine"
            var.set("another")
            end.transport.write(bytes(BIG))
            await end.read(BIG)
            await until(lambda: seen[1:])
            end.transport.pause_reading()
            end.transport.resume_reading()
            end.peer.send(b"x")
            await until(lambda: end.protocol.data)
    assert var.get() == "another"
    assert seen == [
        ("connection_made", "mine"),
        ("resume_writing", "connection_made"),
        ("data_received", "connection_made"),
        ("connection_lost", "connection_made"),
    ]


@both_loops
async def test_unix(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    server = await azt.create_unix_server(Recorder, path, cleanup_socket=True)
    async with server:
        client = await client_of(server)
        await until(lambda: server._clients)
        assert client.transport.get_extra_info("peername") == str(path)
        await leave(client)
    assert not path.exists()
    with pytest.raises(FileNotFoundError, match="cannot connect to"):
        await azt.create_unix_connection(Recorder, path)


async def test_unix_over_given_sockets(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "socket"))
    async with await azt.create_unix_server(Recorder, sock=listener):
        ours = socket.socket(socket.AF_UNIX)
        ours.connect(str(tmp_path / "socket"))
        _, client = await azt.create_unix_connection(Recorder, sock=ours)
        await leave(client)


@linux_only
async def test_unix_server_over_a_socket_whose_file_is_not_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has an abstract name, or was bound in another folder, or has no file left."""
    abstract = f"\0aiozerocopy-given-{os.getpid()}"
    bound = tmp_path / "socket"
    for name, place in ((abstract, abstract), ("socket", str(bound)), ("socket", None)):
        monkeypatch.chdir(tmp_path)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(name)
        monkeypatch.chdir("/")
        if place is None:
            bound.unlink()
        options: dict[str, Any] = {"sock": listener, "cleanup_socket": True}
        async with await azt.create_unix_server(Recorder, **options) as server:
            assert server.is_serving()
            if place is not None:
                _, client = await azt.create_unix_connection(Recorder, place)
                await leave(client)
        assert listener.fileno() == -1
        assert bound.exists() == (place == str(bound))
        bound.unlink(missing_ok=True)


# ---- connecting ---------------------------------------------------------------------


async def test_arguments_that_contradict_each_other() -> None:
    one, other = socket.socketpair()
    with one, other, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        wrong: dict[Callable[..., Any], list[dict[str, Any]]] = {
            azt.create_connection: [
                {},
                {"host": HOST, "sock": one},
                {"sock": datagrams},
                {"host": HOST, "port": 1, "server_hostname": "x"},
                {"host": HOST, "port": 1, "ssl_handshake_timeout": 1},
            ],
            azt.create_server: [{}, {"port": 0, "sock": one}, {"sock": datagrams}],
            azt.connect_accepted_socket: [{"sock": datagrams}],
        }
        for create in (azt.create_unix_connection, azt.create_unix_server):
            wrong[create] = [{}, {"path": "x", "sock": one}, {"sock": datagrams}]
        refused = "specified|was expected|only meaningful"
        for create, every in wrong.items():
            for options in every:
                with pytest.raises(ValueError, match=refused):
                    await create(Recorder, **options)


async def test_names_and_local_addresses() -> None:
    if not isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):
        pytest.skip("uvloop keeps the threads that look names up")
    async with await azt.create_server(Recorder, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        for options in (
            {"host": "localhost", "happy_eyeballs_delay": 0.1},
            {"host": "localhost", "family": socket.AF_INET},
            {"host": HOST, "local_addr": ("127.0.0.1", 0)},
            {"host": HOST, "local_addr": ("127.0.0.1", "0")},
            {"host": HOST, "local_addr": ("127.0.0.1", None)},
            {"host": HOST, "local_addr": (None, 0)},
            {"host": HOST, "local_addr": ("", 0)},
            {"host": "localhost", "local_addr": ("localhost", "0")},
            {"host": HOST, "flags": socket.AI_NUMERICHOST},
        ):
            _, client = await azt.create_connection(Recorder, port=port, **options)
            await leave(client)


@linux_only
async def test_local_name_is_looked_up_by_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`bind` would hold the loop up.  An address must have the family, and be free."""
    v4, v6, kind = socket.AF_INET, socket.AF_INET6, socket.SOCK_STREAM
    found = [(v6, "::1"), (v4, "192.0.2.1"), (v4, "127.0.0.2")]

    async def find(name: str, port: int, **_: object) -> list[object]:
        assert name == "mine"
        return [(family, kind, 6, "", (host, port)) for family, host in found]

    monkeypatch.setattr(anyio, "getaddrinfo", find)
    async with await azt.create_server(Recorder, HOST, 0) as server:
        connect = partial(
            azt.create_connection,
            *(Recorder, *server.sockets[0].getsockname()),
            local_addr=("mine", 0),
        )
        _, client = await connect()
        assert client.transport.get_extra_info("sockname")[0] == "127.0.0.2"
        await leave(client)
        for says in (os.strerror(errno.EADDRNOTAVAIL), "no local address of this"):
            found.pop()
            with pytest.raises(OSError, match=rf"from \('mine', 0\): .*\({says}"):
                await connect()


async def test_address_of_an_ipv6_socket_is_a_local_address() -> None:
    """It has four parts."""
    try:
        server = await azt.create_server(Recorder, "::1", 0)
    except OSError:
        pytest.skip("no IPv6 on this machine")
    async with server:
        host, port, *scope = server.sockets[0].getsockname()
        local: Any = (host, 0, *scope)
        _, client = await azt.create_connection(Recorder, host, port, local_addr=local)
        await leave(client)


async def test_port_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number, or the name of a service."""
    number = free_port()

    async def find(host: str, port: str, **_: object) -> list[object]:
        assert (host, port) == (HOST, "render-farm")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (HOST, number))]

    monkeypatch.setattr(anyio, "getaddrinfo", find)
    for port in ("render-farm", str(number)):
        async with await azt.create_server(Recorder, HOST, port) as server:
            assert server.sockets[0].getsockname() == (HOST, number)
            _, client = await azt.create_connection(Recorder, HOST, port)
            await leave(client)
    async with await azt.create_server(Recorder, HOST, "0") as server:
        assert server.sockets[0].getsockname()[1] > 0


@pytest.mark.parametrize("host", [HOST, "localhost"])
@pytest.mark.parametrize("port", [70000, "70000"])
async def test_port_that_does_not_exist(host: str, port: Any) -> None:
    """glibc would take 70000 for 4464."""
    for call in (azt.create_server, azt.create_connection):
        with pytest.raises(ValueError, match=r"from 0 to 65535, not 70000$"):
            await call(Recorder, host, port)


async def test_all_errors() -> None:
    with socket.socket() as unused:
        unused.bind((HOST, 0))
        port = unused.getsockname()[1]
        with pytest.raises(Exception, match="cannot connect") as caught:
            await azt.create_connection(Recorder, HOST, port, all_errors=True)
        errors = getattr(caught.value, "exceptions", [caught.value])
        assert [type(error) for error in errors] == [ConnectionRefusedError]
