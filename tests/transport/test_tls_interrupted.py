"""A signal's exception at each line of a TLS connection, and collection in a cycle."""

import asyncio
import contextlib
import gc
import socket
import sys
import weakref
from functools import partial
from typing import Any

import pytest
from interruption import Interruption, Lines, Place, hit_each_line
from links import until
from oracle import assert_prefix, payload
from tls_ends import Contexts, Ends, quiet
from transports import Recorder

from aiozerocopy import transport as azt

pytestmark = pytest.mark.anyio

BIG = 8 << 20  # more than a connection takes
SIZE = 600_000  # three pieces
TIMES = 2  # that a line is reached, of which each is hit


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def write_and_be_hit(tls: Contexts, lines: Lines) -> list[str]:
    """Write something, be hit, and look at what comes out at the other end."""
    ends = await Ends(tls).shake()
    await quiet()
    sent = b""
    with lines, contextlib.suppress(Interruption):
        for number in range(2):
            sent += payload(number, SIZE)
            ends.client.transport.write(payload(number, SIZE))
            await quiet()
        ends.client.transport.close()
        await quiet()
    if lines.at is None:
        await until(lambda: ends.client.is_lost() and ends.server.is_lost())
        assert len(ends.server.data) == len(sent)
    else:
        ends.client.transport.close()  # whatever came before, it ends
        await quiet()
        ends.abort()
    await quiet()  # (what tells of the end may itself be hit)
    try:
        assert_prefix(ends.server.data, sent)
    except AssertionError as error:
        return [str(error)]
    return []


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_exception_at_each_line_mixes_no_bytes(tls: Contexts) -> None:
    if sys.gettrace() is not None:
        pytest.skip("another tracer is at work")
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: None)  # callbacks are hit, too

    def some(places: list[Place]) -> list[Place]:
        return [place for place in places if place[2] <= TIMES]

    play = partial(write_and_be_hit, tls)
    await hit_each_line(play, ("transport", "_net.tls"), some)


async def test_end_after_an_interrupted_delivery_is_an_error(ends: Ends) -> None:
    """What the protocol may not have got must not look like all there was."""
    await quiet()
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)

    def data_received(_: bytes) -> None:
        raise KeyboardInterrupt

    ends.server.data_received = data_received
    peer = ends.lower._session
    peer.encrypt(b"lost")
    peer.say_goodbye()
    sealed = peer.take()
    ends.upper.get_buffer(-1)[: len(sealed)] = sealed
    with pytest.raises(KeyboardInterrupt):
        ends.upper.buffer_updated(len(sealed))
    assert not ends.upper.eof_received()
    await until(ends.server.is_lost)
    assert isinstance(ends.server.error, ConnectionAbortedError)
    assert ends.server.events == ["made", "lost"]
    ends.lower.abort()
    await until(ends.client.is_lost)


@pytest.mark.parametrize("over", ["plain", "tls"])
@pytest.mark.parametrize("end", ["close", "abort", "reset"])
async def test_lost_connection_is_in_no_cycle(
    tls: Contexts, over: str, end: str
) -> None:
    """With what its protocol knows of it, at both ends."""
    ends: list[Recorder] = []

    def make() -> Recorder:
        ends.append(Recorder())
        return ends[-1]

    of_server: Any = {"ssl": tls[0]} if over == "tls" else {}
    of_client: Any = {"ssl": tls[1], "server_hostname": "localhost"}
    async with await azt.create_server(make, "127.0.0.1", 0, **of_server) as server:
        address = server.sockets[0].getsockname()
        options = of_client if over == "tls" else {}
        await azt.create_connection(make, *address, **options)
        await until(lambda: len(ends) == 2 and all(each.transport for each in ends))
        client, served = (each.transport for each in ends)
        gc.collect()
        gc.disable()
        try:
            served.pause_reading()
            client.write(bytes(BIG))
            if end == "close":
                served.resume_reading()
                client.close()
            elif end == "reset":
                client.pause_reading()
                sock = served.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1" + bytes(7))
                served.abort()
                client.resume_reading()
            else:
                client.abort()
                served.abort()
            await until(lambda: all(each.is_lost() for each in ends))
            with contextlib.suppress(OSError):
                await client.drained()
            left = [weakref.ref(client), weakref.ref(served)]
            ends.clear()
            del client, served
            await quiet()
            assert [one() for one in left] == [None, None]
        finally:
            gc.enable()
