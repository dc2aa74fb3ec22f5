"""The viewer as an application of aiohttp: what only aiohttp does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from links import until
from web_client import ask, picture, watching
from web_servers import Place, in_aiohttp, serving

pytest.importorskip("aiohttp")

from aiozerocopy import web

if TYPE_CHECKING:
    from aiozerocopy.broadcast import Broadcast

pytestmark = pytest.mark.anyio


async def test_it_runs_alone(hub: Broadcast) -> None:
    async with in_aiohttp(web.aiohttp_app(hub)) as (port, end):
        answer = await ask(Place("aiohttp", port, "", end), "/")
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/html")


async def test_its_place_is_relative(hub: Broadcast) -> None:
    """Whatever is around it may have another name for where it is."""
    async with serving("aiohttp", hub, token="a b") as to:
        answer = await ask(to, "?token=a%20b")
        assert answer.headers["location"] == "./viewer/?token=a%20b"


async def test_its_own_client_sees_the_frames(hub: Broadcast) -> None:
    """Who checks more of the answers than ours does."""
    import aiohttp

    async with serving("aiohttp", hub) as to, watching(to) as other:
        address = f"http://127.0.0.1:{to.port}{to.prefix}"
        async with aiohttp.ClientSession() as session:
            page = await session.get(f"{address}?")
            assert (page.status, page.content_type) == (200, "text/html")
            page.close()
            viewer = await session.ws_connect(f"{address}/raw", origin=address)
            await until(lambda: len(hub.clients) == 2)
            await hub.publish(picture())
            message = await viewer.receive_bytes(timeout=10)
            assert message[32:] == picture().tobytes()
            assert await other.number() == 0
            await viewer.close()
            assert viewer.close_code == 1000
