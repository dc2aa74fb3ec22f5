"""The viewer under every server: ours, and others that mount it below a prefix."""

import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import anyio
import pytest
from links import is_trio, meanwhile

from aiozerocopy import web
from aiozerocopy.broadcast import Broadcast

PREFIX = "/deep/viewer"


class Place(NamedTuple):
    """Where a viewer is served."""

    name: str
    port: int
    prefix: str
    close: Callable[[], Coroutine[Any, Any, None]]  # ends the viewer's connections

    @property
    def is_ours(self) -> bool:
        return self.name == "ours"


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
    async with meanwhile(partial(server.serve, sockets=[listener])):
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


ASGI: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "uvicorn": partial(with_uvicorn, ws="wsproto"),
    "uvicorn-websockets": partial(with_uvicorn, ws="websockets-sansio"),
    "hypercorn": with_hypercorn,
}


@asynccontextmanager
async def in_starlette(name: str, app: Any) -> AsyncIterator[int]:
    """Serve an ASGI application in Starlette, below `PREFIX`; yield the port."""
    pytest.importorskip("starlette")
    pytest.importorskip(name.partition("-")[0])
    from starlette.applications import Starlette
    from starlette.routing import Mount

    over = anyio.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        site = Starlette(routes=[Mount(PREFIX, app)])
        async with meanwhile(ASGI[name], site, listener, over):
            yield port
            over.set()


@asynccontextmanager
async def in_aiohttp(application: Any) -> AsyncIterator[tuple[int, Any]]:
    """Serve an application of aiohttp; yield the port, and a function that ends it."""
    from aiohttp.web import AppRunner, SockSite

    runner = AppRunner(application, shutdown_timeout=2, access_log=None)
    await runner.setup()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await SockSite(runner, listener).start()
        try:
            yield listener.getsockname()[1], runner.cleanup
        finally:
            await runner.cleanup()


@asynccontextmanager
async def serving(name: str, hub: Broadcast, **options: Any) -> AsyncIterator[Place]:
    """Serve the frames of ``hub`` with the server of this name."""
    if name == "ours":
        async with web.serve(hub, **options) as to:
            yield Place(name, to.port, "", to.aclose)
    elif name == "aiohttp":
        aiohttp = pytest.importorskip("aiohttp.web")
        site = aiohttp.Application()
        site.add_subapp(PREFIX, web.aiohttp_app(hub, **options))
        async with in_aiohttp(site) as (port, end):
            yield Place(name, port, PREFIX, end)
    else:
        app = web.app(hub, **options)

        async def close() -> None:
            app.close()

        async with in_starlette(name, app) as port:
            yield Place(name, port, PREFIX, close)


def _on(loop: str, *servers: str) -> list[Any]:
    options = {"asyncio": {"debug": True}, "uvloop": {"use_uvloop": True}, "trio": {}}
    backend = ("trio" if loop == "trio" else "asyncio", options[loop])
    return [pytest.param(backend, name, id=f"{loop}-{name}") for name in servers]


# The three ways into the package, and each server on the loops where it differs.
EACH_WAY = _on("asyncio", "ours", "uvicorn", "aiohttp")
EVERYWHERE = [
    *EACH_WAY,
    *_on("asyncio", "hypercorn"),
    *_on("uvloop", "ours", "uvicorn-websockets"),
    *_on("trio", "ours", "hypercorn"),
]
each_way = pytest.mark.parametrize(("anyio_backend", "server"), EACH_WAY)
everywhere = pytest.mark.parametrize(("anyio_backend", "server"), EVERYWHERE)
foreign = pytest.mark.parametrize(
    ("anyio_backend", "server"), [it for it in EVERYWHERE if it.values[1] != "ours"]
)
