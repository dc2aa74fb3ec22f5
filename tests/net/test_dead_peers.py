"""Peers that have become unreachable: both sides notice it, and report why."""

import contextlib
import errno
import math
import socket
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from cut_links import CLIENT, SERVER, Hosts, two_hosts
from links import until

import aiozerocopy as azc
from aiozerocopy import web
from aiozerocopy._net import connecting
from aiozerocopy.framing import FrameSender

pytestmark = pytest.mark.anyio
pytest.importorskip("numpy")  # (this starts a thread, which must not count as a leak)


@pytest.fixture
async def hosts() -> AsyncIterator[Hosts]:
    await anyio.getaddrinfo("127.0.0.1", 1)  # asyncio keeps the resolver's thread
    with two_hosts() as hosts:
        yield hosts


@pytest.mark.timeout(60)
async def test_a_client_notices_that_its_link_is_cut(hosts: Hosts) -> None:
    """Keepalive notices it: no data is under way that the peer must acknowledge."""
    events: list[tuple[str, Any]] = []

    async def show_one(stream: azc.Stream) -> None:
        await FrameSender(stream).send(b"frame")
        await anyio.sleep_forever()

    async with azc.serve_tcp(show_one, SERVER) as server:
        hosts.go_to(CLIENT)
        async with azc.connect_frames(
            *(SERVER, server.port),
            dead_after=3,
            on_event=lambda *event: events.append(event),
            reconnect=False,
        ) as client:
            await client.receive()
            hosts.cut()
            with anyio.fail_after(15), pytest.raises(azc.StreamBroken) as caught:
                await client.receive()
        await server.aclose(0)
    assert caught.value.errno == errno.ETIMEDOUT
    assert events[0] == ("connected", 0)


def _option(sock: socket.socket, name: int) -> int:
    return sock.getsockopt(socket.IPPROTO_TCP, name)


@pytest.mark.parametrize("of", ["connect_tcp", "serve_tcp", "web.serve"])
@pytest.mark.parametrize("dead_after", [15.0, None, math.inf])
async def test_dead_peers_are_noticed_unless_it_is_said_otherwise(
    of: str, dead_after: float | None
) -> None:
    found: list[list[int]] = []

    def look(stream: Any) -> None:
        sock = stream._raw_socket
        is_asked = sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        times = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
        found.append([is_asked, *(_option(sock, name) for name in times)])
        # (a peer that just does not read is not dead)
        assert _option(sock, socket.TCP_USER_TIMEOUT) == 0
        with contextlib.suppress(OSError):  # kernels before 6.15
            longest = _option(sock, connecting._TCP_RTO_MAX_MS)
            assert longest == (1000 if is_asked else 120_000)

    async def accepted(stream: azc.Stream) -> None:
        look(stream)
        await stream.send(b"looked")

    if of == "web.serve":
        async with azc.Broadcast() as hub, web.serve(hub) as page:
            async with azc.connect_tcp("127.0.0.1", page.port):
                await until(lambda: page._server._connections)
                (connection,) = page._server._connections.values()
                look(connection.stream)
        dead_after = 15.0  # web.serve has no such option
    else:
        limits = {"connect_tcp": 1.0, "serve_tcp": 1.0, of: dead_after}
        async with (
            azc.serve_tcp(accepted, dead_after=limits["serve_tcp"]) as server,
            azc.connect_tcp(
                "127.0.0.1", server.port, dead_after=limits["connect_tcp"]
            ) as stream,
        ):
            assert await stream.receive() == b"looked"
            if of == "connect_tcp":
                look(stream)
    if dead_after in (None, math.inf):
        assert found[-1][0] == 0  # the rest is up to the kernel
    else:
        assert found[-1] == [1, 6, 3, 3]
