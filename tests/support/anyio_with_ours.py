"""A pytest plugin for anyio's own tests: calls that return a socket stream return ours.

`tests/slow/test_anyio_suite.py` runs it.  Our streams get two options, to behave as
anyio's do: refuse a second sender, and do not flush at a close.
"""

import os
from typing import Any

import anyio
import anyio._backends._asyncio as on_asyncio
import anyio._core._sockets as sockets
from anyio.streams.tls import TLSStream

import aiozerocopy as azc

try:
    import anyio._backends._trio as on_trio
except ImportError:
    on_trio = None  # type: ignore[assignment]

import socket
from collections.abc import Callable


def ours(sock: socket.socket | int) -> azc.Stream:
    return azc.wrap_socket(sock, concurrent="raise")


async def connect_tcp(
    remote_host: object,
    remote_port: int,
    *,
    tls: bool = False,
    ssl_context: Any = None,
    tls_standard_compatible: bool = True,
    tls_hostname: str | None = None,
    **_options: Any,
) -> azc.Stream | TLSStream:
    stream = await azc.connect_tcp(str(remote_host), remote_port, concurrent="raise")
    if not (tls or tls_hostname or ssl_context):
        return stream
    try:
        return await TLSStream.wrap(
            stream,
            server_side=False,
            hostname=tls_hostname or str(remote_host),
            ssl_context=ssl_context,
            standard_compatible=tls_standard_compatible,
        )
    except BaseException:
        await anyio.aclose_forcefully(stream)
        raise


async def connect_unix(path: Any, *_: object) -> azc.Stream:
    return await azc.connect_unix(os.fspath(path), concurrent="raise")


async def wrap(_: object, sock: socket.socket) -> azc.Stream:
    return ours(sock)


class LoopOfListener:
    """Turn an accepted socket into one of our streams, instead of a transport."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    async def connect_accepted_socket(
        self, _: object, sock: socket.socket
    ) -> tuple[azc.Stream, None]:
        return ours(sock), None


def listener_init(init: Callable[..., None]) -> Callable[..., None]:
    def with_our_loop(self: Any, sock: socket.socket) -> None:
        init(self, sock)
        self._loop = LoopOfListener(self._loop)

    return with_our_loop


def put_ours_in() -> None:
    for module in (anyio, sockets):
        vars(module).update(connect_tcp=connect_tcp, connect_unix=connect_unix)
    listener: Any = on_asyncio.TCPSocketListener
    listener.__init__ = listener_init(listener.__init__)
    vars(on_asyncio).update(SocketStream=lambda stream, _: stream)
    vars(on_asyncio).update(UNIXSocketStream=ours)
    backends: list[Any] = [on_asyncio.AsyncIOBackend]
    if on_trio is not None:
        backends.append(on_trio.TrioBackend)
        for name in ("SocketStream", "UNIXSocketStream"):
            setattr(on_trio, name, lambda sock: ours(sock.detach()))
    for backend in backends:
        backend.wrap_stream_socket = classmethod(wrap)
        backend.wrap_unix_stream_socket = classmethod(wrap)
    close = azc.Stream.aclose

    async def aclose(self: Any) -> None:
        await close(self, linger=0)

    vars_of_stream: Any = azc.Stream
    vars_of_stream.aclose = aclose


put_ours_in()
