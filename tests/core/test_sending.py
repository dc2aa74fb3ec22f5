"""All senders of a stream, in any task or thread, wait in one line or are refused."""

import itertools
import random
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from links import (
    BIG,
    SENDS,
    Link,
    attempt,
    attempting,
    begun,
    checked,
    collected,
    cut_short,
    open_link,
    reading,
    stuck,
    submitted,
    until,
    wait_for,
)
from live import Live
from oracle import message

import aiozerocopy as azc
from aiozerocopy import StreamBroken, StreamClosed

pytestmark = pytest.mark.anyio

SMALL = 1000


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    with open_link("unix", tmp_path) as opened:
        yield opened


# ---- threads -------------------------------------------------------------------------


async def test_two_hundred_threads_are_bounded(link: Link) -> None:
    received = most = 0

    def count(piece: memoryview) -> None:
        nonlocal received
        received += len(piece)

    data = bytes(BIG)
    async with reading(link, count, start=False) as reader:
        async with link.sender(queue_limit=1) as stream:
            await stream.put(data)
            send = stream.send_from_thread
            senders = [threading.Thread(target=send, args=(data,)) for _ in range(200)]
            for sender in senders:
                sender.start()
            await submitted(stream, 201)
            reader.start()
            while any(sender.is_alive() for sender in senders):
                most = max(most, stream.stats.bytes_queued)
                await anyio.lowlevel.checkpoint()
    assert most <= BIG
    assert received == 201 * BIG


# ---- other ways to send -------------------------------------------------------------


BEFORE, AFTER = b"put before" * 100, b"published after" * 100


async def test_broadcast_does_not_overtake_a_put(link: Link) -> None:
    async with collected(link, queue_limit=1) as (stream, reader, received):
        hub = Live()
        client = hub.attach(stream)
        async with stuck(stream, bytes(BIG)) as tasks:
            tasks.start_soon(stream.put, BEFORE)
            await submitted(stream, 2)
            await hub.publish(AFTER)
            await submitted(stream, 3)
            reader.start()
            await until(lambda: client.stats.sent)
        client.detach()
        await hub.aclose(0)
    assert 0 <= received.find(BEFORE) < received.find(AFTER)


# ---- concurrent="raise" --------------------------------------------------------------


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
    async with checked(link, {1: 6}, concurrent="raise") as (stream, reader):
        async with attempting(stream.send, message(1, 0, BIG)) as first:
            await begun(stream)
            for call in calls_of(stream):
                with pytest.raises(anyio.BusyResourceError) as caught:
                    await call()
                assert "already writing to" in str(caught.value)
            reader.start()
        assert first.error is None
        await stream.send(message(1, 1, 10))  # successive sends do not conflict
        await stream.put(message(1, 2, BIG))
        await stream.send_many([message(1, 3, 10), message(1, 4, BIG)])
        await wait_for(await stream.put(message(1, 5, 10)))


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
        async with cut_short(sink.send, message(1, 0, BIG)):
            await begun(sink)
            with pytest.raises(anyio.BusyResourceError):
                await azc.relay(source, sink)
        await sink.aclose(linger=0)


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


# ---- while another thread aborts -----------------------------------------------------


async def flush(stream: azc.SendStream, _: object) -> None:
    await stream.flush()


CALLS = {**SENDS, "flush": flush}


@pytest.fixture
def restless() -> Iterator[None]:
    """Let threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.every_loop
@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("call", CALLS)
async def test_abort_in_another_thread(call: str) -> None:
    """Whenever the abort comes, the sender learns that the stream is closed."""
    dice = random.Random(3)
    for _ in range(60):
        reader, stream = azc.pipe()
        go = threading.Event()

        def abort(stream: azc.SendStream = stream, go: threading.Event = go) -> None:
            go.wait()
            stream.abort()

        thread = threading.Thread(target=abort, daemon=True)
        thread.start()
        begin = dice.randrange(30)
        try:
            with pytest.raises((StreamClosed, StreamBroken)):
                for count in itertools.count():
                    if count == begin:
                        go.set()
                    await CALLS[call](stream, bytes(SMALL))
        finally:
            reader.abort()
        thread.join()
