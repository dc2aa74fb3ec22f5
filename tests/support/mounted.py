"""An ASGI application in Starlette, below a prefix, under servers that people use."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from links import is_trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

PREFIX = "/deep/viewer"


async def with_uvicorn(
    app: Any, listener: socket.socket, over: anyio.Event, *, ws: str
) -> None:
    import uvicorn

    config = uvicorn.Config(
        app,
        ws=ws,
        log_level="error",
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(server.serve, sockets=[listener]))
        await over.wait()
        server.should_exit = True


async def with_hypercorn(app: Any, listener: socket.socket, over: anyio.Event) -> None:
    import hypercorn.asyncio
    import hypercorn.trio

    config = hypercorn.Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.graceful_timeout = 1.0
    serve = hypercorn.trio.serve if is_trio() else hypercorn.asyncio.serve
    await serve(app, config, shutdown_trigger=over.wait)


SERVERS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "uvicorn": partial(with_uvicorn, ws="wsproto"),
    "uvicorn-websockets": partial(with_uvicorn, ws="websockets-sansio"),
    "hypercorn": with_hypercorn,
}
# Each on the loops that it makes a difference for.
ON_LOOPS = [
    pytest.param("asyncio", "uvicorn", id="uvicorn"),
    pytest.param(
        ("asyncio", {"use_uvloop": True}), "uvicorn-websockets", id="uvicorn-websockets"
    ),
    pytest.param("asyncio", "hypercorn", id="hypercorn"),
    pytest.param("trio", "hypercorn", id="hypercorn-trio"),
]


@asynccontextmanager
async def serving(name: str, app: Any) -> AsyncIterator[int]:
    """Serve it in Starlette, below `PREFIX`, on this port."""
    pytest.importorskip("starlette")
    pytest.importorskip(name.partition("-")[0])
    from starlette.applications import Starlette
    from starlette.routing import Mount

    over = anyio.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        site = Starlette(routes=[Mount(PREFIX, app)])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(SERVERS[name], site, listener, over)
            yield port
            over.set()
