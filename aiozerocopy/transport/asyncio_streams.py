"""open_connection, start_server and their like: asyncio's streams over transports of
ours."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiozerocopy.transport.connections import create_connection, create_unix_connection
from aiozerocopy.transport.server import create_server, create_unix_server

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Sequence

    from aiozerocopy.transport.server import Server

    Connected = Callable[
        [asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None
    ]
    Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

LIMIT = 64 << 10  # asyncio's own


async def open_connection(
    host: str | None = None,
    port: int | str | None = None,
    *,
    limit: int = LIMIT,
    **options: Any,
) -> Streams:
    """Connect to a TCP server; the arguments are those of `asyncio.open_connection`.

    ``await writer.drain()`` returns when every buffer that can be changed is yours
    again, whatever the water marks.

    Raises: as `create_connection`.
    """
    reader, protocol = _reader_and_protocol(limit)
    transport, _ = await create_connection(lambda: protocol, host, port, **options)
    return reader, _writer(transport, protocol, reader)


async def open_unix_connection(
    path: str | bytes | os.PathLike[str] | None = None,
    *,
    limit: int = LIMIT,
    **options: Any,
) -> Streams:
    """The same for a Unix server: see `asyncio.open_unix_connection`.

    Raises: as `create_unix_connection`.
    """
    reader, protocol = _reader_and_protocol(limit)
    transport, _ = await create_unix_connection(lambda: protocol, path, **options)
    return reader, _writer(transport, protocol, reader)


async def start_server(
    client_connected_cb: Connected,
    host: str | Sequence[str] | None = None,
    port: int | None = None,
    *,
    limit: int = LIMIT,
    **options: Any,
) -> Server:
    """Serve TCP clients: see `asyncio.start_server`.

    Raises: as `create_server`.
    """
    factory = _factory(client_connected_cb, limit)
    return await create_server(factory, host, port, **options)


async def start_unix_server(
    client_connected_cb: Connected,
    path: str | bytes | os.PathLike[str] | None = None,
    *,
    limit: int = LIMIT,
    **options: Any,
) -> Server:
    """Serve clients of a Unix socket: see `asyncio.start_unix_server`.

    Raises: as `create_unix_server`.
    """
    factory = _factory(client_connected_cb, limit)
    return await create_unix_server(factory, path, **options)


def _reader_and_protocol(
    limit: int, connected: Connected | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamReaderProtocol]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    return reader, asyncio.StreamReaderProtocol(reader, connected, loop=loop)


def _writer(
    transport: asyncio.WriteTransport,
    protocol: asyncio.StreamReaderProtocol,
    reader: asyncio.StreamReader,
) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    return asyncio.StreamWriter(transport, protocol, reader, loop)


def _factory(
    connected: Connected, limit: int
) -> Callable[[], asyncio.StreamReaderProtocol]:
    return lambda: _reader_and_protocol(limit, connected)[1]
