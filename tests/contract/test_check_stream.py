"""check_stream passes streams that keep the contract, and names broken clauses."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import ByteReceiveStream, ByteSendStream, ByteStream
from anyio.streams.tls import TLSStream
from links import tls_over

import aiozerocopy as azc
from aiozerocopy._core.binding import PORTABLE
from aiozerocopy.testing import check_stream, memory_pair

if TYPE_CHECKING:
    Contexts = tuple[ssl.SSLContext, ssl.SSLContext]

pytestmark = [pytest.mark.anyio, pytest.mark.every_loop, pytest.mark.timeout(60)]


# ---- streams that keep the contract --------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        *(azc.pipe, azc.socketpair),
        *(partial(memory_pair, 1 << 14), partial(memory_pair, 1 << 20)),
    ],
    ids=["pipe", "sockets", "little memory", "memory"],
)
async def test_pair(make: Callable[[], Any]) -> None:
    await check_stream(make)


async def test_tcp() -> None:
    @asynccontextmanager
    async def make() -> AsyncIterator[tuple[ByteStream, ByteStream]]:
        async with served() as (server, accepted):
            async with azc.connect_tcp("127.0.0.1", server.port) as ours:
                yield ours, await accepted()

    await check_stream(make)


async def test_tls_of_anyio(tls: Contexts) -> None:
    """No close_notify is sent: after one, anyio's streams raise ssl's own errors."""

    @asynccontextmanager
    async def make() -> AsyncIterator[tuple[Any, Any]]:
        async with azc.socketpair() as (one, other), anyio.create_task_group() as tasks:
            ready: dict[int, TLSStream] = {}

            async def wrap(stream: azc.Stream, at: int, name: str | None) -> None:
                options: dict[str, Any] = {"hostname": name, "ssl_context": tls[at]}
                options |= {"server_side": at == 0, "standard_compatible": False}
                ready[at] = await TLSStream.wrap(stream, **options)

            tasks.start_soon(wrap, one, 0, None)
            await wrap(other, 1, "localhost")
            while len(ready) < 2:
                await anyio.lowlevel.checkpoint()
            client, server = ready[1], ready[0]
            await server.send(b"x")  # unread TLS tickets would cause a reset
            await client.receive()
            yield client, server

    await check_stream(make)


async def test_tls_of_ours(tls: Contexts) -> None:
    @asynccontextmanager
    async def make() -> AsyncIterator[tuple[ByteStream, ByteStream]]:
        async with azc.socketpair() as ends, tls_over(ends, tls) as pair:
            yield pair

    await check_stream(make)


@pytest.mark.skipif(PORTABLE, reason="the portable build has no rings")
async def test_ring(tmp_path: Path) -> None:
    from rings import ring_pair

    @asynccontextmanager
    async def make() -> AsyncIterator[tuple[ByteSendStream, ByteReceiveStream]]:
        async with ring_pair(tmp_path) as (producer, consumer):
            yield producer.send_stream(), consumer.receive_stream()

    await check_stream(make)


async def test_a_stream_of_anyio() -> None:
    """anyio connects to us, since its servers' streams lack backpressure on asyncio."""

    @asynccontextmanager
    async def make() -> AsyncIterator[tuple[ByteStream, ByteStream]]:
        async with served() as (server, accepted):
            async with await anyio.connect_tcp("127.0.0.1", server.port) as theirs:
                yield theirs, await accepted()

    await check_stream(make, only_bytes=True)


async def test_a_stream_with_an_error_of_its_own_for_a_close() -> None:
    class Receiver(ByteReceiveStream):
        def __init__(self, stream: ByteReceiveStream) -> None:
            self._stream = stream

        async def aclose(self) -> None:
            await self._stream.aclose()

        async def receive(self, max_bytes: int = 65_536) -> bytes:
            try:
                return await self._stream.receive(max_bytes)
            except anyio.ClosedResourceError:
                raise anyio.BrokenResourceError from None

    @asynccontextmanager
    async def make() -> AsyncIterator[tuple[Receiver, ByteSendStream]]:
        async with azc.pipe() as (reader, writer):
            yield Receiver(reader), writer

    await check_stream(make, exact=False)


@asynccontextmanager
async def served(**options: Any) -> AsyncIterator[Any]:
    """A server, and a function that waits for its next client's stream."""
    send, receive = anyio.create_memory_object_stream[Any](1)
    over = anyio.Event()

    async def handle(stream: Any) -> None:
        await send.send(stream)
        await over.wait()

    async with send, receive, azc.serve_tcp(handle, **options) as server:
        try:
            yield server, receive.receive
        finally:
            over.set()
