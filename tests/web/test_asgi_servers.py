"""The viewer in Starlette, under real servers, and real clients that look at it."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import urllib.error
import urllib.request
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import numpy as np
import pytest

pytest.importorskip("h11")
pytest.importorskip("wsproto")
pytest.importorskip("starlette")
pytest.importorskip("websockets")

from links import is_trio, until
from mounted import ON_LOOPS, PREFIX, serving
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from aiozerocopy import web
from aiozerocopy.broadcast import Broadcast

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

on_loops = pytest.mark.parametrize(("anyio_backend", "server"), ON_LOOPS)

HEADER = struct.Struct("<BBBBIIIQq")
BIG = np.zeros((1024, 1024, 4), np.uint8)
WAIT = 10.0  # seconds for what is on its way


class Client:
    """A program that asks such a server; it is used in threads."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, path: str) -> tuple[int, bytes]:
        """Status and body of an answer."""
        address = f"http://127.0.0.1:{self.port}{PREFIX}{path}"
        try:
            with urllib.request.urlopen(address, timeout=WAIT) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read()

    def watch(self, path: str = "/raw") -> AbstractContextManager[ClientConnection]:
        address = f"ws://127.0.0.1:{self.port}{PREFIX}{path}"
        return connect(address, max_size=None, compression=None, open_timeout=WAIT)


async def in_thread(call: Any, *args: Any) -> Any:
    return await anyio.to_thread.run_sync(partial(call, *args))


@asynccontextmanager
async def watching(to: Client, path: str = "/raw") -> AsyncIterator[ClientConnection]:
    connecting = await in_thread(to.watch, path)
    viewer = await in_thread(connecting.__enter__)
    try:
        yield viewer
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(connecting.__exit__, None, None, None)


async def number_from(viewer: ClientConnection) -> int:
    """Of the next frame, which is a whole one of `picture`."""
    message = await in_thread(viewer.recv, WAIT)
    number: int = HEADER.unpack(message[:32])[7]
    assert message[32:] == picture(number).tobytes()
    return number


def picture(number: int) -> NDArray[np.uint8]:
    return np.full((720, 1280, 3), number, np.uint8)


@on_loops
async def test_pages_and_pictures(server: str) -> None:
    async with Broadcast() as hub:
        app = web.app(hub, title="Tea", max_viewers=2)
        async with serving(server, app) as port:
            to = Client(port)
            status, page = await in_thread(to.ask, "")  # it is sent to "/"
            assert (status, b"<title>Tea</title>" in page) == (200, True)
            assert (await in_thread(to.ask, "/viewer.js"))[0] == 200
            assert (await in_thread(to.ask, "/nothing"))[0] == 404
            assert (await in_thread(to.ask, "/raw"))[0] == 426
            async with watching(to) as one, watching(to) as two:
                for number in range(3):
                    await hub.publish(picture(number))
                    assert await number_from(one) == number
                    assert await number_from(two) == number
                status, body = await in_thread(to.ask, "/status")
                told = json.loads(body)
                assert (told["viewers"], told["full"]) == (2, True)
                with pytest.raises(Exception, match="HTTP 503"):
                    async with watching(to):
                        pass
            await until(lambda: app.viewers == 0)
            async with watching(to) as viewer:
                await in_thread(viewer.send, "x" * 5000)
                with pytest.raises(ConnectionClosed) as closed:
                    while True:
                        await in_thread(viewer.recv, WAIT)
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 1009
            await until(lambda: app.viewers == 0)


@on_loops
async def test_the_end_is_told(server: str) -> None:
    async with Broadcast() as hub:
        app = web.app(hub)
        async with serving(server, app) as port, watching(Client(port)) as viewer:
            await hub.publish(picture(0))
            await number_from(viewer)
            app.close()
            with pytest.raises(ConnectionClosed) as closed:
                await in_thread(viewer.recv, WAIT)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001


@on_loops
async def test_a_stuck_viewer_is_let_go_and_harms_nobody(server: str) -> None:
    upgrade = "\r\n".join(
        [
            f"GET {PREFIX}/raw HTTP/1.1",
            "Host: localhost",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
            *("", ""),
        ]
    )
    async with Broadcast() as hub:
        app = web.app(hub, patience=0.3)
        async with serving(server, app) as port, watching(Client(port)) as good:
            with socket.create_connection(("127.0.0.1", port)) as stuck:
                stuck.sendall(upgrade.encode())
                await until(lambda: app.viewers == 2)
                number = 0
                while len(hub.clients) == 2:
                    # (the patience is not for the good one)
                    await until(
                        lambda: any(not client.stats.queued for client in hub.clients)
                    )
                    await hub.publish(BIG)
                    message = await in_thread(good.recv, WAIT)
                    assert HEADER.unpack(message[:32])[7] == number
                    number += 1
                if not is_trio():  # (there hypercorn's sends cannot be cancelled)
                    await until(lambda: app.viewers == 1)
            await until(lambda: app.viewers == 1)


@on_loops
async def test_jpegs_until_the_viewer_leaves(server: str) -> None:
    async with Broadcast() as hub:
        app = web.app(hub)
        if "mjpeg" not in app.modes:
            pytest.skip("needs simplejpeg or Pillow")
        async with serving(server, app) as port:
            address = f"http://127.0.0.1:{port}{PREFIX}/stream.mjpg"
            stream = await in_thread(partial(urllib.request.urlopen, address))
            with contextlib.closing(stream):
                for number in range(2):
                    await hub.publish(picture(number))
                    part = await in_thread(partial(stream.read1, 100))
                    assert f"X-Sequence: {number}".encode() in part
                    while not part.endswith(b"\xff\xd9\r\n"):
                        part += await in_thread(partial(stream.read1, 1 << 20))
            await until(lambda: app.viewers == 0)
