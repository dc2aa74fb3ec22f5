"""concurrent="raise": a second task that sends gets BusyResourceError."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from links import BIG, Link, attempt, begun, open_link, reading, until, wait_for
from oracle import Checker, message

import aiozerocopy as azc

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    with open_link("unix", tmp_path) as opened:
        yield opened


def calls_of(stream: azc.SendStream) -> list[Any]:
    calls = [
        partial(stream.send, b"x"),
        partial(stream.send, b"x", b"y"),
        partial(stream.put, b"x"),
        partial(stream.send_many, [b"x", b"y"]),
        stream.flush,
    ]
    if isinstance(stream, azc.Stream):
        calls.append(stream.send_eof)
    return calls


async def test_a_second_sender_is_refused(link: Link) -> None:
    checker = Checker()
    async with reading(link, checker.feed, start=False) as reader:
        async with link.sender(concurrent="raise") as stream:
            async with anyio.create_task_group() as tasks:
                first = attempt(tasks, stream.send, message(1, 0, BIG))
                await begun(stream)
                for call in calls_of(stream):
                    with pytest.raises(anyio.BusyResourceError) as caught:
                        await call()
                    assert "already writing to" in str(caught.value)
                reader.start()
            assert first.error is None
            await stream.send(message(1, 1, 10))  # one after the other is no conflict
            await stream.put(message(1, 2, BIG))
            await stream.send_many([message(1, 3, 10), message(1, 4, BIG)])
            await wait_for(await stream.put(message(1, 5, 10)))
    checker.finish()
    assert checker.counts == {1: 6}


async def test_one_that_waits_for_room_is_in_progress(link: Link) -> None:
    async with link.sender(concurrent="raise", queue_limit=1) as stream:
        await stream.put(message(1, 0, BIG))
        await begun(stream)
        async with anyio.create_task_group() as tasks:
            waiting = attempt(tasks, stream.put, b"waits")
            while not stream._out.stats().waiting:
                await anyio.lowlevel.checkpoint()
            with pytest.raises(anyio.BusyResourceError):
                await stream.send(b"x")
            assert not waiting.done
            tasks.cancel_scope.cancel()
        await stream.aclose(linger=0)


@pytest.mark.every_loop
async def test_one_that_was_cancelled_is_over(link: Link) -> None:
    checker = Checker()
    async with reading(link, checker.feed, start=False) as reader:
        async with link.sender(concurrent="raise") as stream:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.send, message(1, 0, BIG))
                await begun(stream)
                tasks.cancel_scope.cancel()
            with anyio.CancelScope() as scope:
                scope.cancel()
                await stream.send(b"never" * BIG)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.send, message(1, 1, 10))
                reader.start()
    checker.finish()
    assert checker.counts == {1: 2}


async def test_a_relay_is_a_sender(link: Link) -> None:
    source, feed = azc.pipe()
    async with source, feed, link.sender(concurrent="raise") as sink:
        async with anyio.create_task_group() as tasks:
            relay = azc.relay(source, sink)

            async def run() -> None:
                await relay

            tasks.start_soon(run)
            await feed.send(b"begins")
            while not relay.moved:
                await anyio.lowlevel.checkpoint()
            with pytest.raises(anyio.BusyResourceError):
                await sink.send(b"x")
            tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sink.send, message(1, 0, BIG))
            await begun(sink)
            with pytest.raises(anyio.BusyResourceError):
                await azc.relay(source, sink)
            tasks.cancel_scope.cancel()
        await sink.aclose(linger=0)


@pytest.mark.every_loop
async def test_closing_waits_for_who_is_sending(link: Link) -> None:
    checker = Checker()
    async with reading(link, checker.feed, start=False) as reader:
        stream = link.sender(concurrent="raise")
        async with anyio.create_task_group() as tasks:
            sending = attempt(tasks, stream.send, message(1, 0, BIG))
            await begun(stream)
            tasks.start_soon(stream.aclose)
            reader.start()
        assert sending.error is None
    checker.finish()
    assert checker.counts == {1: 1}


async def test_every_opener_takes_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'queue' or 'raise', not 'wait'"):
        azc.open_writer(1, concurrent="wait")  # type: ignore[arg-type]

    served: list[azc.Stream] = []

    async def serve(stream: azc.Stream) -> None:
        served.append(stream)
        await stream.receive()

    path = tmp_path / "socket"
    async with (
        azc.serve_tcp(serve, concurrent="raise") as server,
        azc.serve_unix(serve, path, concurrent="raise"),
        azc.connect_tcp("127.0.0.1", server.port, concurrent="raise") as one,
        azc.connect_unix(path, concurrent="raise") as other,
    ):
        for stream in (one, other):
            await stream.send(b"x")
        await until(lambda: len(served) == 2)
        assert all(stream._is_exclusive for stream in (one, other, *served))
