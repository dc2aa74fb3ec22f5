"""Sends by a signal's handler or a finalizer in the middle of another send.

They may come between any two lines, on the same stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import groupby
from typing import Any

import pytest
from interruption import Lines, Place, run_on, shown

import aiozerocopy as azc
from aiozerocopy import transport

SMALL, BIG = 1000, 1_000_000  # a socket takes a small one at once, but not a big one
ROOMS = ("_core.sending", "_core.channel", "_core.borrows", "_core.pins", "transport")


class Meanwhile(Lines):
    """Makes a call once, at one line."""

    def __init__(self, at: Place | None, call: Callable[[], object]) -> None:
        super().__init__(at, ROOMS)
        self._call = call

    def hit(self) -> None:
        self.armed = False
        self._call()


def done(coroutine: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine, which does not wait, to its end."""
    try:
        while True:
            assert coroutine.send(None) is None  # (a checkpoint, at most)
    except StopIteration:
        pass


async def by_stream(name: str, near: azc.Stream, at: Place | None, n: int) -> Meanwhile:
    await near.send(b"A")  # this binds it to its loop
    send: Any = getattr(near, name)
    with Meanwhile(at, lambda: done(near.put(b"B" * n))) as lines:
        await send([b"A" * (n - 1)] if name == "send_many" else b"A" * (n - 1))
    elsewhere = [b"C" * n for _ in range(4)]  # fills memory that was freed
    await near.flush()
    del elsewhere
    return lines


async def by_transport(near: azc.Stream, at: Place | None, n: int) -> Meanwhile:
    raw = near._raw_socket.dup()
    it, _ = await transport.create_unix_connection(asyncio.Protocol, sock=raw)
    it.write(b"A")
    with Meanwhile(at, lambda: it.write(b"B" * n)) as lines:
        it.write(b"A" * (n - 1))
    elsewhere = [b"C" * n for _ in range(4)]
    await it.drained()
    del elsewhere
    it.close()
    return lines


async def play(name: str, at: Place | None, n: int) -> tuple[Meanwhile, str]:
    """Return the lines, and the letters received with the length of each run."""
    near, far = azc.socketpair()
    received = bytearray()

    async def receive() -> None:
        async for piece in far:
            received.extend(piece)

    async with near, far:
        receiving = asyncio.create_task(receive())
        if name == "write":
            lines = await by_transport(near, at, n)
        else:
            lines = await by_stream(name, near, at, n)
        await near.aclose()
        await receiving
    groups = [(chr(letter), len([*same])) for letter, same in groupby(received)]
    return lines, " ".join(f"{letter}{length}" for letter, length in groups)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("n", [SMALL, BIG])
@pytest.mark.parametrize("name", ["send", "put", "send_many", "write"])
def test_a_send_between_two_lines_of_another(name: str, n: int, loop: str) -> None:
    async def main() -> None:
        whole = {f"A{n} B{n}", f"B{n} A{n}", f"A1 B{n} A{n - 1}"}
        lines, received = await play(name, None, n)
        assert lines.seen
        assert received == f"A{n}"
        for place in lines.seen:
            lines, received = await play(name, place, n)
            if not lines.armed:  # the line was reached again
                assert received in whole, f"{shown(place)}: {received}"

    run_on(loop, main)
