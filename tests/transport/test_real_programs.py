"""Programs without any knowledge of this package, on its event loops.

``AZC_REQUESTS=10000`` makes more requests than a quick test has time for.
"""

import asyncio
import contextlib
import io
import os
import ssl
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from databases import postgres, redis
from links import until
from oracle import payload

import aiozerocopy as azc

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

REQUESTS = int(os.environ.get("AZC_REQUESTS", "200"))
PATIENCE = max(30, REQUESTS / 50)  # seconds
HOST = "127.0.0.1"
MOST = 64 << 20  # bytes of a body
SIZES = (0, 1, 1000, 65_536, 1 << 20, MOST)
MESSAGE = 16 << 20  # bytes of a WebSocket's message, of a value, or of a row

pytestmark.append(pytest.mark.timeout(PATIENCE))


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    if request.param:
        pytest.importorskip("uvloop")
    factory = partial(azc.new_event_loop, uvloop=request.param)
    return "asyncio", {"loop_factory": factory}


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def contexts(
    request: pytest.FixtureRequest, tls: tuple[ssl.SSLContext, ssl.SSLContext]
) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    return tls if request.param else (None, None)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and its certificate, for localhost, in one file."""
    trustme = pytest.importorskip("trustme")
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    made = trustme.CA().issue_cert(HOST)
    made.private_key_and_cert_chain_pem.write_to_path(str(path))
    return path


def body(size: int) -> bytes:
    """Make that many bytes."""
    step = 4 << 20
    return b"".join(payload(n, min(step, size - n)) for n in range(0, size, step))


def is_body(data: bytes, size: int) -> bool:
    return len(data) == size and data == body(size)


# ---- HTTP ---------------------------------------------------------------------------


async def ask(url: str, context: Any) -> None:
    """Request every size, and then many small ones at once."""
    aiohttp = pytest.importorskip("aiohttp")

    async def post(session: Any, size: int) -> None:
        async with session.post(
            url, data=io.BytesIO(body(size)), ssl=context or False
        ) as reply:
            assert reply.status == 200
            assert is_body(await reply.read(), size)

    async def post_many(session: Any, count: int) -> None:
        for number in range(count):
            await post(session, number % 3000)

    async with aiohttp.ClientSession() as session:
        for size in SIZES:
            await post(session, size)
        await asyncio.gather(*(post_many(session, REQUESTS // 10) for _ in range(10)))


@contextlib.asynccontextmanager
async def aiohttp_server(context: Any) -> AsyncIterator[int]:
    web = pytest.importorskip("aiohttp.web")

    async def echo(request: Any) -> Any:
        return web.Response(body=await request.read())

    app = web.Application(client_max_size=2 * MOST)
    app.router.add_post("/", echo)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, HOST, 0, ssl_context=context)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def test_aiohttp(contexts: Any) -> None:
    async with aiohttp_server(contexts[0]) as port:
        scheme = "https" if contexts[0] else "http"
        await ask(f"{scheme}://{HOST}:{port}/", contexts[1])


async def app(scope: Any, receive: Any, send: Any) -> None:
    """An ASGI application that sends back each request's body."""
    assert scope["type"] == "http"
    pieces = []
    while True:
        message = await receive()
        pieces.append(message.get("body", b""))
        if not message.get("more_body"):
            break
    headers = [(b"content-length", str(sum(map(len, pieces))).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for piece in pieces:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@contextlib.asynccontextmanager
async def uvicorn_server(context: Any) -> AsyncIterator[int]:
    uvicorn = pytest.importorskip("uvicorn")
    config = uvicorn.Config(app, port=0, host=HOST, lifespan="off", log_level="warning")
    config.load()
    config.ssl = context
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    serving = asyncio.ensure_future(server._serve())
    await until(lambda: server.started)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def test_uvicorn(contexts: Any) -> None:
    async with uvicorn_server(contexts[0]) as port:
        scheme = "https" if contexts[0] else "http"
        await ask(f"{scheme}://{HOST}:{port}/", contexts[1])


async def test_websockets(contexts: Any) -> None:
    websockets = pytest.importorskip("websockets")
    options = {"max_size": None, "compression": None}

    async def echo(socket: Any) -> None:
        async for message in socket:
            await socket.send(message)

    async with websockets.serve(echo, HOST, 0, ssl=contexts[0], **options) as server:
        port = server.sockets[0].getsockname()[1]
        scheme = "wss" if contexts[1] else "ws"
        async with websockets.connect(
            f"{scheme}://{HOST}:{port}", ssl=contexts[1], **options
        ) as client:
            for size in (1, 126, 65_536, 1 << 20, MESSAGE):
                await client.send(body(size))
                assert is_body(await client.recv(), size)
            for number in range(REQUESTS):
                await client.send(str(number))
                assert await client.recv() == str(number)


# ---- databases ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def postgres_port(certificate: Path) -> Iterator[int]:
    with postgres(certificate) as port:
        yield port


@pytest.fixture(scope="module")
def redis_ports(
    certificate: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, int]]:
    with redis(tmp_path_factory.mktemp("redis"), certificate) as ports:
        yield ports


@pytest.mark.parametrize("mode", ["disable", "require"])
async def test_asyncpg(postgres_port: int, mode: str) -> None:
    asyncpg = pytest.importorskip("asyncpg")
    connection = await asyncpg.connect(
        host=HOST, port=postgres_port, user="postgres", ssl=mode
    )
    is_secure = "select ssl from pg_stat_ssl where pid = pg_backend_pid()"
    assert await connection.fetchval(is_secure) == (mode == "require")
    for size in (0, 1, 65_536, MESSAGE):
        answer = await connection.fetchval("select $1::bytea", body(size))
        assert is_body(answer, size)
    numbers = await connection.fetch("select * from generate_series(1, $1::int)", 9999)
    assert [row[0] for row in numbers] == [*range(1, 10_000)]
    for number in range(REQUESTS):
        assert await connection.fetchval("select $1::int", number) == number
    await connection.close()


@pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "tls"])
async def test_redis(redis_ports: tuple[int, int], is_secure: bool) -> None:
    client_module = pytest.importorskip("redis.asyncio")
    options = {"ssl": True, "ssl_cert_reqs": "none"} if is_secure else {}
    client = client_module.Redis(host=HOST, port=redis_ports[is_secure], **options)
    for size in (0, 1, 65_536, MESSAGE):
        await client.set("key", body(size))
        assert is_body(await client.get("key"), size)
    async with client.pipeline() as pipeline:
        for number in range(REQUESTS):
            pipeline.set(f"key {number}", number)
        assert await pipeline.execute() == [True] * REQUESTS
    for number in range(REQUESTS):
        assert await client.get(f"key {number}") == str(number).encode()
    await client.aclose()
