"""The viewer as an application of aiohttp, and aiohttp's own client to look at it."""

from __future__ import annotations

import contextlib
import socket
import struct
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest

pytest.importorskip("h11")
pytest.importorskip("wsproto")
pytest.importorskip("aiohttp")

import aiohttp
import aiohttp.web
from links import until

from aiozerocopy import web
from aiozerocopy.broadcast import Broadcast
from aiozerocopy.web import jpeg, on_aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from numpy.typing import NDArray

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("anyio_backend", [("asyncio", {"debug": True})]),
]

HEADER = struct.Struct("<BBBBIIIQq")
BIG = np.zeros((1024, 1024, 4), np.uint8)
WAIT = 10.0  # seconds for what is on its way


@pytest.fixture
async def hub() -> AsyncIterator[Broadcast]:
    async with Broadcast() as hub:
        yield hub


def picture(number: int = 0) -> NDArray[np.uint8]:
    return np.full((48, 64, 3), number, np.uint8)


class Place:
    """An application with the viewer below /deep/viewer, a client, and its port."""

    def __init__(self, runner: Any, session: Any, port: int) -> None:
        self.session = session
        self.port = port
        self._runner = runner

    async def ask(self, path: str, method: str = "GET", **more: Any) -> tuple[Any, Any]:
        """An answer and its body."""
        address = f"/deep/viewer{path}"
        async with self.session.request(method, address, **more) as answer:
            return answer, await answer.read()

    def watch(self, path: str = "/raw", **more: Any) -> Any:
        return self.session.ws_connect(f"/deep/viewer{path}", **more)

    async def viewers(self) -> int:
        answer, _ = await self.ask("/status")
        viewers: int = (await answer.json())["viewers"]
        return viewers

    async def until_viewers(self, count: int) -> None:
        while await self.viewers() != count:
            pass

    async def shut_down(self) -> None:
        await self._runner.cleanup()


@asynccontextmanager
async def serving(hub: Broadcast, **options: Any) -> AsyncIterator[Place]:
    site = aiohttp.web.Application()
    site.add_subapp("/deep/viewer", web.aiohttp_app(hub, **options))
    runner = aiohttp.web.AppRunner(site, shutdown_timeout=2, access_log=None)
    await runner.setup()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await aiohttp.web.SockSite(runner, listener).start()
        port = listener.getsockname()[1]
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            try:
                yield Place(runner, session, port)
            finally:
                await runner.cleanup()


async def number_from(viewer: Any) -> int:
    """Of the next frame, which is a whole one of `picture`."""
    message = await viewer.receive_bytes(timeout=WAIT)
    number: int = HEADER.unpack(message[:32])[7]
    assert message[32:] == picture(number).tobytes()
    return number


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html"),
        ("/viewer.js", "text/javascript"),
        ("/healthz", "text/plain"),
        ("/metrics", "text/plain"),
    ],
)
async def test_pages(hub: Broadcast, path: str, kind: str) -> None:
    async with serving(hub) as to:
        answer, body = await to.ask(path)
        assert (answer.status, answer.content_type) == (200, kind)
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.content_length == len(body) > 0
        answer, body = await to.ask(path, "HEAD")
        assert (answer.status, body) == (200, b"")


async def test_it_runs_alone(hub: Broadcast) -> None:
    runner = aiohttp.web.AppRunner(web.aiohttp_app(hub), access_log=None)
    await runner.setup()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await aiohttp.web.SockSite(runner, listener).start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        try:
            async with aiohttp.ClientSession() as session:
                answer = await session.get(address, allow_redirects=False)
                assert (answer.status, answer.content_type) == (200, "text/html")
                answer.close()
        finally:
            await runner.cleanup()


async def test_its_place_without_the_slash(hub: Broadcast) -> None:
    async with serving(hub, token="a b") as to:
        answer, _ = await to.ask("?token=a%20b", allow_redirects=False)
        assert answer.status == 307
        assert answer.headers["Location"] == "./viewer/?token=a%20b"
        answer, _ = await to.ask("?token=a%20b")
        assert (answer.status, answer.content_type) == (200, "text/html")


@pytest.mark.parametrize(
    ("method", "path", "more", "status"),
    [
        ("GET", "/nothing", {}, 404),
        ("POST", "/", {}, 405),
        ("GET", "/", {"data": b"x"}, 413),
        ("GET", "/raw", {}, 426),
        ("GET", "/?" + "a=1&" * 99, {}, 400),
        ("GET", "/", {"headers": {"Host": "evil.example"}}, 403),
        ("GET", "/", {"headers": {"Host": "tv.example"}}, 200),
    ],
)
async def test_refusals(
    hub: Broadcast, method: str, path: str, more: dict[str, Any], status: int
) -> None:
    async with serving(hub, hosts=["tv.example"]) as to:
        answer, body = await to.ask(path, method, **more)
        assert (answer.status, body != b"") == (status, True)


async def test_tokens_and_origins(hub: Broadcast) -> None:
    async with serving(hub, token="sesame") as to:
        for path, status in (("/", 401), ("/?token=sesame", 200), ("/healthz", 200)):
            assert (await to.ask(path))[0].status == status
        for path, more, status in (
            ("/raw", {}, 401),
            ("/raw?token=sesame", {"origin": "http://evil.example"}, 403),
        ):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await to.watch(path, **more)
            assert refused.value.status == status
        async with to.watch(
            "/raw?token=sesame", origin=f"http://127.0.0.1:{to.port}"
        ) as viewer:
            await hub.publish(picture())
            assert await number_from(viewer) == 0


async def test_frames_arrive_as_they_were(hub: Broadcast) -> None:
    async with serving(hub, max_viewers=2) as to:
        async with to.watch() as one, to.watch() as two:
            for number in range(3):
                await hub.publish(picture(number))
                assert await number_from(one) == await number_from(two) == number
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await to.watch()
            assert refused.value.status == 503
        await to.until_viewers(0)
    assert hub.clients == ()


async def test_h264(hub: Broadcast) -> None:
    async with serving(hub) as to:
        status = await (await to.ask("/status"))[0].json()
        if "h264" not in status["modes"]:
            pytest.skip("needs FFmpeg")
        async with to.watch("/h264") as viewer:
            await hub.publish(picture())
            messages = [await viewer.receive_bytes(timeout=WAIT) for _ in range(2)]
            assert [message[1] for message in messages] == [2, 1]


async def test_jpegs_until_the_viewer_leaves(
    hub: Broadcast, monkeypatch: pytest.MonkeyPatch
) -> None:
    if jpeg.find_compressor() is None:
        pytest.skip("needs simplejpeg or Pillow")
    monkeypatch.setattr(on_aiohttp, "LOOK_SECONDS", 0.01)
    async with serving(hub) as to:
        async with to.session.get("/deep/viewer/stream.mjpg") as answer:
            assert answer.headers["Content-Type"] == jpeg.CONTENT_TYPE
            for number in range(2):
                await hub.publish(picture(number))
                part = await answer.content.readuntil(b"\xff\xd9\r\n")
                assert f"X-Sequence: {number}".encode() in part
            assert await to.viewers() == 1
            answer.close()
        await to.until_viewers(0)


async def test_a_viewer_who_never_reads_is_let_go_and_harms_nobody(
    hub: Broadcast,
) -> None:
    upgrade = (
        b"GET /deep/viewer/raw HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
        b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    async with serving(hub, patience=0.3) as to, to.watch(max_msg_size=0) as good:
        with socket.create_connection(("127.0.0.1", to.port)) as stuck:
            stuck.sendall(upgrade)
            await until(lambda: len(hub.clients) == 2)
            number = 0
            while len(hub.clients) == 2:
                await hub.publish(BIG)
                message = await good.receive_bytes(timeout=WAIT)
                assert HEADER.unpack(message[:32])[7] == number
                number += 1
            # Its connection is gone, whatever it does now.
            stuck.settimeout(WAIT)
            with contextlib.suppress(ConnectionResetError):
                while stuck.recv(1 << 20):
                    pass


@pytest.mark.parametrize(("said", "times", "code"), [(5000, 1, 1009), (5, 200, 1008)])
async def test_rude_viewers(hub: Broadcast, said: int, times: int, code: int) -> None:
    async with serving(hub) as to, to.watch() as viewer:
        for _ in range(times):
            await viewer.send_str("x" * said)
        await viewer.receive(timeout=WAIT)
        assert viewer.close_code == code


async def test_the_end_is_told(hub: Broadcast) -> None:
    async with serving(hub) as to, to.watch() as viewer:
        await hub.publish(picture())
        await number_from(viewer)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(to.shut_down)
            await viewer.receive(timeout=WAIT)
        assert viewer.close_code == 1001
