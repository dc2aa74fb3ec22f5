"""open_connection, start_server and similar functions: asyncio's streams over our
transports."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from aiozerocopy.transport.connections import create_connection, create_unix_connection
from aiozerocopy.transport.server import Server, create_server, create_unix_server

if TYPE_CHECKING:
    import os
    from collections.abc import Awaitable, Callable, Sequence

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
    return await _connected(limit, create_connection, host, port, **options)


async def open_unix_connection(
    path: str | bytes | os.PathLike[str] | None = None,
    *,
    limit: int = LIMIT,
    **options: Any,
) -> Streams:
    """Connect to a Unix server; raise what `create_unix_connection` raises."""
    return await _connected(limit, create_unix_connection, path, **options)


async def start_server(
    client_connected_cb: Connected,
    host: str | Sequence[str] | None = None,
    port: int | str | None = None,
    *,
    limit: int = LIMIT,
    **options: Any,
) -> Server:
    """Do what `asyncio.start_server` does; raise what `create_server` raises."""
    factory = partial(_protocol, limit, client_connected_cb)
    return await create_server(factory, host, port, **options)


async def start_unix_server(
    client_connected_cb: Connected,
    path: str | bytes | os.PathLike[str] | None = None,
    *,
    limit: int = LIMIT,
    **options: Any,
) -> Server:
    """Do what `asyncio.start_unix_server` does.

    Raises: as `create_unix_server`.
    """
    factory = partial(_protocol, limit, client_connected_cb)
    return await create_unix_server(factory, path, **options)


async def _connected(
    limit: int, connect: Callable[..., Any], *address: Any, **options: Any
) -> Streams:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await connect(lambda: protocol, *address, **options)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _protocol(limit: int, connected: Connected) -> asyncio.StreamReaderProtocol:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=limit, loop=loop)
    return asyncio.StreamReaderProtocol(reader, connected, loop=loop)
