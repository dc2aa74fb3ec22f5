"""An ASGI server for tests: it sends nothing, and notes what the application says."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from links import cut_short, until

from aiozerocopy.web import WebApp

WEBSOCKET: dict[str, Any] = {"type": "websocket", "http_version": "1.1"}
HTTP: dict[str, Any] = {"type": "http", "http_version": "1.1", "method": "GET"}


class Call:
    """One call of an application, with what it receives and what it sends."""

    def __init__(
        self,
        kind: dict[str, Any],
        path: str,
        *fields: tuple[str, str],
        connects: bool = True,
        **more: Any,
    ) -> None:
        path, _, query = path.partition("?")
        fields = fields if "host" in dict(fields) else (("host", "localhost"), *fields)
        self.scope = {
            **kind,
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.encode(), text.encode()) for name, text in fields],
            **more,
        }
        self.said: list[dict[str, Any]] = []  # by the application
        self._gate = anyio.Event()  # closed while nothing can be sent
        self._gate.set()
        self.failure: Exception | None = None  # raised by every send from now on
        self.done = False
        self._tell, self._told = anyio.create_memory_object_stream[Any](math.inf)
        first = {"websocket": "websocket.connect", "http": "http.request"}
        if connects and kind["type"] in first:
            self.tell(first[kind["type"]])

    def stop_reading(self) -> None:
        """Block every send from now on."""
        self._gate = anyio.Event()

    def read_on(self) -> None:
        self._gate.set()

    def tell(self, kind: str, **fields: Any) -> None:
        self._tell.send_nowait({"type": kind, **fields})

    async def receive(self) -> Any:
        return await self._told.receive()

    async def send(self, message: Any) -> None:
        await self._gate.wait()
        if self.failure is not None:
            raise self.failure
        self.said.append(message)

    async def run(self, application: WebApp) -> Call:
        with self._tell, self._told:
            try:
                await application(self.scope, self.receive, self.send)
            finally:
                self.done = True
        return self

    @property
    def kinds(self) -> list[str]:
        return [message["type"] for message in self.said]

    @property
    def status(self) -> int:
        status: int = self.said[0]["status"]
        return status

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): text.decode() for name, text in self.said[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.said)

    @property
    def pictures(self) -> list[bytes]:
        """Return a WebSocket's messages, or the pieces of an endless HTTP answer."""
        sent = [message.get("bytes") or message.get("body") for message in self.said]
        return [message for message in sent if message]

    async def shows(self, count: int) -> None:
        """Return when the viewer has this many pictures."""
        await until(lambda: len(self.pictures) >= count)


@asynccontextmanager
async def calling(
    application: WebApp, kind: dict[str, Any], path: str, **more: Any
) -> AsyncIterator[Call]:
    """Let a viewer watch; cancel its call at the end of the block, as servers do."""
    call = Call(kind, path, **more)
    before = application.viewers
    async with cut_short(call.run, application):
        await until(lambda: application.viewers > before or call.done)
        yield call
