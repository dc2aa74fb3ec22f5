"""`new_event_loop` and `install`: asyncio programs on this package's transports."""

import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import scripts
from links import until
from oracle import assert_same, payload
from transports import Contexts, Recorder

import aiozerocopy as azc
from aiozerocopy.transport import SocketTransport, TLSTransport

pytestmark = pytest.mark.anyio

BIG = 3 << 20
HOST = "127.0.0.1"


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    if request.param:
        pytest.importorskip("uvloop")
    factory = partial(azc.new_event_loop, uvloop=request.param)
    return "asyncio", {"loop_factory": factory, "debug": True}


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


async def ask(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], kind: type
) -> None:
    """Send a lot and get it back, with one buffer that is reused."""
    reader, writer = streams
    assert type(writer.transport) is kind
    buffer, wanted, got = bytearray(1 << 18), bytearray(), bytearray()

    async def send() -> None:
        for number in range(BIG // len(buffer)):
            buffer[:] = payload(number, len(buffer))
            wanted.extend(buffer)
            writer.write(buffer)
            await writer.drain()

    sending = asyncio.ensure_future(send())
    while len(got) < BIG:
        got += await reader.read(1 << 16)
    await sending
    assert_same(got, wanted)
    writer.close()
    await writer.wait_closed()


class Kind(NamedTuple):
    """The transport of a connection, and the arguments for it."""

    transport: type
    of_server: dict[str, Any]
    of_client: dict[str, Any]


@pytest.fixture(params=["plain", "tls"])
def kind(request: pytest.FixtureRequest, tls: Contexts) -> Kind:
    if request.param == "plain":
        return Kind(SocketTransport, {}, {})
    of_client = {"ssl": tls[1], "server_hostname": "localhost"}
    return Kind(TLSTransport, {"ssl": tls[0]}, of_client)


@pytest.mark.parametrize("module", [asyncio, azc.transport])
@pytest.mark.parametrize("over", ["tcp", "unix"])
async def test_streams(kind: Kind, over: str, module: Any, tmp_path: Path) -> None:
    """The streams are made by asyncio's functions, which use the loop, or by ours."""
    if over == "tcp":
        server = await module.start_server(echo, HOST, 0, **kind.of_server)
        address = server.sockets[0].getsockname()
        streams = await module.open_connection(*address, limit=5, **kind.of_client)
    else:
        path = tmp_path / "socket"
        server = await module.start_unix_server(echo, path, **kind.of_server)
        streams = await module.open_unix_connection(path, limit=5, **kind.of_client)
    assert streams[0]._limit == 5
    await ask(streams, kind.transport)
    server.close()
    await server.wait_closed()


async def test_methods_of_the_loop_are_ours() -> None:
    loop = asyncio.get_running_loop()
    names = {name for name in vars(azc.transport) if hasattr(loop, name)}
    assert names >= {"connect_accepted_socket", "create_connection", "start_tls"}
    for name in names:
        if name[0] != "_" and name != "sendfile":
            assert getattr(loop, name).__wrapped__ is getattr(azc.transport, name)


async def test_sendfile(kind: Kind, tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    path = tmp_path / "file"
    path.write_bytes(payload(1, BIG))
    notes = Recorder()
    server = await loop.create_server(lambda: notes, HOST, 0, **kind.of_server)
    transport, _ = await loop.create_connection(
        asyncio.Protocol, *server.sockets[0].getsockname(), **kind.of_client
    )
    with path.open("rb") as file:
        assert await loop.sendfile(transport, file, 1000, BIG // 2) == BIG // 2
        assert file.tell() == 1000 + BIG // 2
    transport.close()
    await until(notes.is_lost)
    assert_same(notes.data, payload(1, BIG)[1000 : 1000 + BIG // 2])
    server.close()
    await server.wait_closed()


SCRIPT = """
import asyncio, aiozerocopy, sys
async def main():
    loop = asyncio.get_running_loop()
    serve = lambda reader, writer: writer.close()
    server = await asyncio.start_server(serve, "localhost", 0)
    reader, writer = await asyncio.open_connection(
        *server.sockets[0].getsockname()[:2]
    )
    assert await reader.read() == b""
    writer.close()
    server.close()
    print([base.__module__ for base in type(loop).__mro__][:3])
    print(type(writer.transport).__name__)
"""
INSTALL = "aiozerocopy.install(uvloop={0}); asyncio.run(main())"
FACTORY = (
    "asyncio.run(main(), loop_factory=lambda: aiozerocopy.new_event_loop(uvloop={0}))"
)
HAS_POLICIES = sys.version_info < (3, 14)


@pytest.mark.skipif(HAS_POLICIES, reason="Python 3.14 gave up policies")
def test_install_without_policies_says_what_to_write() -> None:
    with pytest.raises(RuntimeError) as caught:
        azc.install()
    assert FACTORY.partition("lambda")[0] in str(caught.value)


@pytest.mark.parametrize("uvloop", [False, True])
@pytest.mark.parametrize(
    "last",
    [
        pytest.param(
            INSTALL,
            marks=pytest.mark.skipif(
                not HAS_POLICIES, reason="Python 3.14 gave up policies"
            ),
        ),
        pytest.param(
            FACTORY,
            marks=pytest.mark.skipif(
                sys.version_info < (3, 12),
                reason="asyncio.run has loop_factory from 3.12 on",
            ),
        ),
    ],
    ids=["install", "loop_factory"],
)
def test_one_line_is_all_that_changes(last: str, uvloop: bool, tmp_path: Path) -> None:
    if uvloop:
        pytest.importorskip("uvloop")
    program = ["-W", "error", "-c", SCRIPT + last.format(uvloop)]
    done = scripts.ran([sys.executable, *program], cwd=tmp_path)
    assert done.stderr == ""
    assert ("uvloop" in done.stdout) == uvloop
    assert done.stdout.rstrip().endswith("SocketTransport")
