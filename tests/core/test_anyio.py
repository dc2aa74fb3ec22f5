"""Our streams with anyio's wrappers, in eager tasks, and as checkpoints of trio."""

import asyncio
import socket
import struct
import sys
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest
from anyio.abc import ByteSendStream, SocketAttribute
from anyio.streams.file import FileStreamAttribute
from links import Link, checked, error_in_thread, open_link
from oracle import message

import aiozerocopy as azc
from aiozerocopy._net.foreign_streams import whole_sender
from aiozerocopy.streams import _plain_address


@pytest.fixture
def tcp(tmp_path: Path) -> Iterator[Link]:
    with open_link("tcp4", tmp_path) as opened:
        yield opened


class _Foreign(ByteSendStream):
    """A stream of another package."""

    def __init__(self, inner: ByteSendStream) -> None:
        self._inner = inner

    async def send(self, item: bytes) -> None:
        await self._inner.send(item)

    async def aclose(self) -> None:
        await self._inner.aclose()


@pytest.mark.anyio
class TestWrappers:
    """anyio's wrappers for streams work over ours."""

    async def test_what_is_sent_may_be_named_as_anyio_does(self) -> None:
        async with azc.socketpair() as (ours, theirs):
            await ours.send(item=b"named")
            assert await theirs.receive(max_bytes=100) == b"named"
            await whole_sender(_Foreign(ours)).send(item=b"this too")
            assert await theirs.receive(max_bytes=100) == b"this too"

    async def test_typed_attributes_of_a_pipe(self, pipe: Link) -> None:
        async with pipe.sender() as stream:
            assert stream.extra(FileStreamAttribute.fileno) == stream.fileno()
            with pytest.raises(anyio.TypedAttributeLookupError):
                stream.extra(SocketAttribute.raw_socket)

    async def test_typed_attributes_of_a_socket(self, tcp: Link) -> None:
        fd = tcp.take_write_fd()
        async with azc.wrap_socket(fd) as stream:
            raw = stream.extra(SocketAttribute.raw_socket)
            assert raw.fileno() == stream.fileno()
            assert raw.gettimeout() is None  # the timeout is that of the adopted socket
            assert stream.extra(SocketAttribute.family) == socket.AF_INET
            assert stream.extra(SocketAttribute.local_address) == raw.getsockname()
            assert stream.extra(SocketAttribute.local_port) == raw.getsockname()[1]
            assert stream.extra(SocketAttribute.remote_address) == raw.getpeername()
            assert stream.extra(SocketAttribute.remote_port) == raw.getpeername()[1]
        assert raw.fileno() == -1

    async def test_typed_attributes_once_the_peer_has_gone(self, tcp: Link) -> None:
        async with azc.wrap_socket(tcp.take_write_fd()) as stream:
            with socket.socket(fileno=tcp.take_read_fd()) as peer:
                linger = struct.pack("ii", 1, 0)  # closing it resets the connection
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            with pytest.raises(anyio.BrokenResourceError):
                await stream.receive()
            assert stream.extra(SocketAttribute.family) == socket.AF_INET
            assert stream.extra(SocketAttribute.local_port) > 0
            for attribute in (
                SocketAttribute.remote_address,
                SocketAttribute.remote_port,
            ):
                with pytest.raises(anyio.TypedAttributeLookupError):
                    stream.extra(attribute)
            for _ in range(2):  # (what has failed was not called)
                with pytest.raises(azc.StreamBroken, match="the peer has left"):
                    await stream.send_eof()

    async def test_send_eof_is_half_a_close(self) -> None:
        ours, theirs = azc.socketpair()
        async with ours, theirs:
            await ours.send(b"last words")
            await ours.send_eof()
            await ours.send_eof()
            with pytest.raises(azc.StreamClosed):
                await ours.send(b"more")
            refused = error_in_thread(ours.send_from_thread, b"more")
            assert isinstance(refused, azc.StreamClosed)
            assert ours.extra(SocketAttribute.raw_socket).gettimeout() == 0
            assert await theirs.receive() == b"last words"
            with pytest.raises(anyio.EndOfStream):
                await theirs.receive()
            await theirs.send(b"answer")
            assert await ours.receive() == b"answer"


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        (("127.0.0.1", 80), ("127.0.0.1", 80)),
        (("::1", 80, 0, 0), ("::1", 80)),
        (("fe80::1", 80, 0, 3), ("fe80::1%3", 80)),
        (("fe80::1%eth0", 80, 0, 3), ("fe80::1%3", 80)),
        (b"\0name", "\0name"),
        ("/path", "/path"),
    ],
)
def test_an_address_as_anyio_gives_it(raw: object, plain: object) -> None:
    assert _plain_address(raw) == plain


@pytest.mark.asyncio
@pytest.mark.skipif(sys.version_info < (3, 12), reason="new in 3.12")
async def test_eager_tasks(pipe: Link) -> None:
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    async with checked(pipe, {1: 10}, start=True) as (stream, _):
        tasks = [
            asyncio.create_task(stream.send(message(1, n, 100_000))) for n in range(10)
        ]
        await asyncio.gather(*tasks)


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
async def test_every_call_is_a_checkpoint_of_trio() -> None:
    trio = pytest.importorskip("trio")
    pytest.importorskip("trio.testing")
    ours, theirs = azc.socketpair()
    closes = [each.aclose for each in (ours, theirs, *azc.pipe()) for _ in range(2)]
    calls: list[Callable[[], Awaitable[object]]] = [
        partial(ours.send, b"x"),
        partial(ours.put, b"x"),
        ours.flush,
        partial(ours.send_many, [b"x"]),
        theirs.receive,
        *(ours.send_eof, ours.send_eof),
        *closes,
    ]
    for call in calls:
        with trio.testing.assert_checkpoints():
            await call()
    async with azc.socketpair() as (ours, theirs):
        with trio.CancelScope() as scope:
            scope.cancel()
            await ours.send(b"never")
        assert scope.cancelled_caught
        await ours.send(b"y")
        assert await theirs.receive() == b"y"
