"""The exchange over our own connection: what is sent there goes out without a copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from aiozerocopy.web.exchange import CLOSE_SECONDS, as_it_is
from aiozerocopy.web.waiting import until_silent
from aiozerocopy.web.websocket import WebSocket

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Buffer

    from aiozerocopy.web.exchange import Viewer
    from aiozerocopy.web.http import HttpConnection
    from aiozerocopy.web.request import Request
    from aiozerocopy.web.secure import Connection

_LAST_CHUNK = b"0\r\n\r\n"


class DirectExchange:
    """One request of a connection of ours."""

    def __init__(self, http: HttpConnection) -> None:
        self._http = http

    async def respond(
        self, status: int, body: bytes, headers: Mapping[str, str]
    ) -> None:
        await self._http.respond(status, body, headers)

    async def start(self, headers: Mapping[str, str]) -> Viewer:
        is_chunked = await self._http.start(headers)
        return _Answer(self._http.stream, is_chunked=is_chunked)

    async def accept(self, request: Request) -> Viewer:
        return await WebSocket.accept(self._http, request)


class _Answer:
    """An answer that has no end, to somebody who watches it."""

    def __init__(self, stream: Connection, *, is_chunked: bool) -> None:
        self.stream = stream
        self.wrap = in_a_chunk if is_chunked else as_it_is

    async def wait_left(self) -> None:
        await until_silent(self.stream)

    async def close(self, code: int, reason: str) -> None:
        if self.wrap is in_a_chunk:
            with anyio.move_on_after(CLOSE_SECONDS):
                await self.stream.send(_LAST_CHUNK)


def in_a_chunk(buffers: Sequence[Buffer]) -> Sequence[Buffer]:
    """As a chunk of an HTTP/1.1 answer."""
    length = sum(memoryview(buffer).nbytes for buffer in buffers)
    return (b"%x\r\n" % length, *buffers, b"\r\n")
