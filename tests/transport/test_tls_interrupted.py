"""A signal's exception at each line of a TLS connection, and collection in a cycle."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import weakref
from typing import Any

import pytest
from interruption import Interruption, Lines, Place, shown
from links import until
from oracle import assert_prefix, payload
from tls_ends import Contexts, Ends, quiet, sockets
from wires import pair

pytestmark = pytest.mark.anyio

SIZE = 600_000  # three pieces
TIMES = 2  # that a line is reached, of which each is hit


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def write_and_be_hit(tls: Contexts, connect: Any, at: Place | None) -> Lines:
    """Write something, be hit there, and look at what comes out at the other end."""
    ends = await Ends(tls, connect=connect).shake()
    await quiet()
    sent = b""
    lines = Lines(at, rooms=("transport",))
    with lines, contextlib.suppress(Interruption):
        for number in range(2):
            sent += payload(number, SIZE)
            ends.client.transport.write(payload(number, SIZE))
            await quiet()
        ends.client.transport.close()
        await quiet()
    if at is None:
        await until(lambda: ends.client.is_lost() and ends.server.is_lost())
        assert len(ends.server.data) == len(sent)
    else:
        ends.client.transport.close()  # whatever came before, it ends
        await quiet()
        ends.client.transport.abort()
        ends.upper.abort()
    await quiet()  # (what tells of the end may itself be hit)
    try:
        assert_prefix(ends.server.data, sent)
    except AssertionError as error:
        raise AssertionError(f"hit at {at and shown(at)}") from error
    return lines


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("connect", [pair, sockets])
async def test_exception_at_each_line_mixes_no_bytes(
    tls: Contexts, connect: Any
) -> None:
    if sys.gettrace() is not None:
        pytest.skip("another tracer is at work")
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: None)  # callbacks are hit, too
    lines = await write_and_be_hit(tls, connect, None)
    places = [place for place in lines.seen if place[2] <= TIMES]
    assert len(places) > 100
    for place in places:
        await write_and_be_hit(tls, connect, place)


async def test_connection_that_nobody_keeps_is_collected(tls: Contexts) -> None:
    ends = await Ends(tls).shake()
    buffer = bytearray(SIZE)
    ends.server.transport.pause_reading()
    ends.client.transport.write(buffer)
    for upper in (ends.upper, ends.lower):
        upper.abort()
    await until(lambda: ends.client.is_lost() and ends.server.is_lost())
    kept = [weakref.ref(one) for one in (ends.upper._session, ends.lower._session)]
    ends, upper = None, None  # type: ignore[assignment]
    gc.collect()
    assert [one() for one in kept] == [None, None]
    buffer.clear()
