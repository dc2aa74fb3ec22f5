"""Requests to the page behind other servers, for tests to disturb."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

from asgi_server import HTTP, WEBSOCKET, Call
from web_client import asking, upgrade

from aiozerocopy import web
from aiozerocopy.broadcast import Broadcast

Invite = Callable[[str], "AsgiGuest | AiohttpGuest"]

STREAM = "/stream.mjpg"
WEBSOCKETS = ("/raw", "/h264")
WATCHED = (*WEBSOCKETS, STREAM)  # the other paths just give an answer
WIDTH, HEIGHT = 64, 48

_GOODBYE = b"\x88\x80\0\0\0\0"  # a WebSocket's close, masked
_BEGINS = {  # the bytes with which a picture begins
    STREAM: b"--aiozerocopy-frame",
    **dict.fromkeys(WEBSOCKETS, struct.pack("<II", WIDTH, HEIGHT)),
}


class AsgiGuest:
    """One request to `web.app`, as from an ASGI server."""

    def __init__(self, app: Any, path: str) -> None:
        is_socket = path in WEBSOCKETS
        self._kind = "websocket" if is_socket else "http"
        self._call = Call(WEBSOCKET if is_socket else HTTP, path)
        self._shown = 0  # pictures that were counted and removed
        self._task = asyncio.ensure_future(self._call.run(app))

    @property
    def pictures(self) -> int:
        """Return how many pictures came."""
        self._shown += len(self._call.pictures)
        if self._call.pictures:
            self._call.said.clear()
        return self._shown

    @property
    def answer(self) -> bytes:
        return self._call.body

    @property
    def is_over(self) -> bool:
        return self._task.done()

    def cancel(self) -> None:
        """Cancel the request, as a server does at its end."""
        self._task.cancel()

    def leave(self) -> None:
        """Leave, as a viewer does who has seen enough."""
        if not self._call.done:
            self._call.tell(f"{self._kind}.disconnect")

    def vanish(self) -> None:
        """Disappear: from now on nothing that is sent can arrive."""
        self._call.failure = OSError("the client is gone")
        self.leave()

    def forget(self) -> None:
        """Close this end's own streams."""
        self._call._tell.close()
        self._call._told.close()


class AiohttpGuest:
    """One request through a socket pair, with aiohttp's server at the other end."""

    def __init__(self, server: Any, path: str) -> None:
        self._begins = _BEGINS.get(path, b"HTTP/1.1 200")
        self._got = bytearray()
        self._is_told = False  # whether the end has come
        self._end, theirs = socket.socketpair()
        self._end.setblocking(False)
        fields = () if path in WATCHED else ("Connection: close",)
        self._end.send((upgrade if path in WEBSOCKETS else asking)(path, *fields))
        self._protocol: Any = server()
        loop = asyncio.get_running_loop()
        accept = loop.connect_accepted_socket(lambda: self._protocol, theirs)
        self._accepting = asyncio.ensure_future(accept)

    def _read(self) -> None:
        if self._end.fileno() >= 0 and not self._is_told:
            with contextlib.suppress(BlockingIOError, ConnectionResetError):
                while data := self._end.recv(1 << 20):
                    self._got += data
                self._is_told = True

    @property
    def pictures(self) -> int:
        self._read()
        return self._got.count(self._begins)

    @property
    def answer(self) -> bytes:
        self._read()
        return bytes(self._got.partition(b"\r\n\r\n")[2])

    @property
    def is_over(self) -> bool:
        self._read()
        return self._is_told or self._end.fileno() < 0

    def cancel(self) -> None:
        if self._protocol.transport is None:
            self._end.close()  # the server has not accepted it yet
            return
        if self._protocol._task_handler is not None:
            self._protocol._task_handler.cancel()
        self._protocol.force_close()

    def leave(self) -> None:
        with contextlib.suppress(OSError):
            self._end.send(_GOODBYE)
            self._end.shutdown(socket.SHUT_WR)

    def vanish(self) -> None:
        self._end.close()

    forget = vanish


Guest = AsgiGuest | AiohttpGuest


@asynccontextmanager
async def asgi(hub: Broadcast, **options: Any) -> AsyncIterator[Invite]:
    """`web.app`, without a server."""
    yield partial(AsgiGuest, web.app(hub, **options))


@asynccontextmanager
async def aiohttp(hub: Broadcast, **options: Any) -> AsyncIterator[Invite]:
    """`web.aiohttp_app` in aiohttp's server, without a port."""
    from aiohttp.web import AppRunner

    runner = AppRunner(web.aiohttp_app(hub, **options), access_log=None)
    await runner.setup()
    try:
        yield partial(AiohttpGuest, runner.server)
    finally:
        await runner.cleanup()


FACES: dict[str, Callable[..., AbstractAsyncContextManager[Invite]]] = {
    "asgi": asgi,
    "aiohttp": aiohttp,
}
