"""A message that has not begun leaves no trace; one that has begun completes."""

from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from links import (
    BIG,
    Link,
    attempt,
    begun,
    cancelled_at,
    checked,
    open_link,
    others_wait,
    put_and_wait,
    reading,
    stuck,
    wait_for,
)
from oracle import Checker, assert_prefix, assert_same, message, poison

import aiozerocopy as azc
from aiozerocopy import SendStream, StreamBroken

pytestmark = [pytest.mark.anyio, pytest.mark.every_loop]


async def test_not_begun_leaves_no_trace(clogged: Link) -> None:
    dropped = [message(9, n, 5_000) for n in range(3)]
    async with checked(clogged, {1: 2}) as (stream, reader):
        async with stuck(stream, message(1, 0, BIG)):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.send, dropped[0])
                tasks.start_soon(stream.send_many, dropped[1:])
                await begun(stream, 3)
                tasks.cancel_scope.cancel()
            for each in dropped:
                poison(each)
                each.clear()
            assert stream.stats.messages_queued == 1
            assert stream.stats.bytes_rescued == 0
            reader.start()
        await stream.send(message(1, 1, 100))


async def test_above_the_rescue_limit_breaks_the_stream(clogged: Link) -> None:
    received = bytearray()
    data, later = message(1, 0, BIG), message(1, 1, 100)
    sent = bytes(data)
    async with reading(clogged, received.extend, start=False) as reader:
        stream = clogged.sender(rescue_limit=1000)
        async with anyio.create_task_group() as others:
            async with stuck(stream, data) as tasks:
                waiting = attempt(others, stream.send, later)
                await begun(stream, 2)
                tasks.cancel_scope.cancel()
            poison(data)
            data.clear()
        assert isinstance(waiting.error, StreamBroken)
        later.clear()
        with pytest.raises(StreamBroken, match="rescue_limit"):
            await stream.send(b"more")
        with pytest.raises(StreamBroken, match="rescue_limit"):
            await stream.flush()
        reader.start()
        await stream.aclose()
    assert_prefix(received, sent)
    assert 0 < len(received) < len(sent)


@pytest.mark.parametrize("call", ["send", "pieces", "put", "send_many", "flush"])
async def test_at_every_await(link: Link, call: str) -> None:
    checker = Checker()
    async with reading(link, checker.feed), link.sender() as stream:
        cancelled, n = True, 0
        while cancelled:
            n += 1
            data = [message(10 * n + i, 0, 90_000) for i in range(4)]
            calls: dict[str, Callable[[], Any]] = {
                "send": partial(stream.send, data[0]),
                "pieces": partial(stream.send, data[0][:9], data[0][9:]),
                "put": partial(put_and_wait, stream, data[0]),
                "send_many": partial(stream.send_many, data),
                "flush": partial(_put_and_flush, stream, data[0]),
            }
            cancelled, _ = await cancelled_at(calls[call](), n)
            if call in ("put", "flush"):  # a message that was put is still sent
                await stream.flush()
            for each in data:
                poison(each)
                each.clear()
            await stream.send(message(10 * n + 9, 0, 100))
            # (last first: more messages may arrive meanwhile)
            arrived = [checker.counts[10 * n + i] for i in reversed(range(4))]
            assert sorted(arrived) == arrived
    checker.finish()
    assert set(checker.counts.values()) <= {0, 1}
    assert all(checker.counts[10 * i + 9] == 1 for i in range(1, n + 1))
    if call != "flush":
        assert checker.counts[10 * n] == 1


async def test_aclose_at_every_await(some: Link, tmp_path: Path) -> None:
    cancelled, n = True, 0
    while cancelled:
        n += 1
        folder = tmp_path / str(n)
        folder.mkdir()
        with open_link(some.kind, folder) as link:
            received = bytearray()
            data = message(1, 0, BIG)
            sent = bytes(data)
            async with reading(link, received.extend):
                stream = link.sender()
                await stream.put(data)
                cancelled, _ = await cancelled_at(stream.aclose(), n)
                assert stream.fileno() == -1
                poison(data)
                data.clear()
            assert_prefix(received, sent)
    assert_same(received, sent)


@pytest.mark.parametrize("kind", ["unix", "tcp4"])
async def test_send_eof_at_every_await(kind: str, tmp_path: Path) -> None:
    cancelled, n = True, 0
    while cancelled:
        n += 1
        checker = Checker()
        with open_link(kind, tmp_path) as link:
            async with reading(link, checker.feed):
                async with azc.wrap_socket(link.take_write_fd()) as stream:
                    await stream.put(message(1, 0, BIG))
                    cancelled, _ = await cancelled_at(stream.send_eof(), n)
                    if cancelled:  # no end was sent: the stream stays usable
                        await stream.send(message(1, 1, 10))
                    await stream.send_eof()
        checker.finish()
        assert checker.counts == {1: 1 + cancelled}


async def test_ticket_leaves_the_message_alone(some: Link) -> None:
    async with checked(some, {1: 1}) as (stream, reader):
        data = message(1, 0, BIG)
        ticket = await stream.put(data)
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                waiting = attempt(tasks, wait_for, ticket)
                await others_wait()
                scope.cancel()
        assert waiting.done
        assert not ticket.done()
        with pytest.raises(BufferError):
            data.clear()
        assert stream.stats.bytes_rescued == 0
        reader.start()
        await ticket
        data.clear()


async def test_coroutine_thrown_away(some: Link) -> None:
    data = [message(1, n, BIG) for n in range(2)]
    dropped = message(9, 0, 10)
    async with checked(some, {1: 2}) as (stream, reader):
        for each in (data[0], dropped):
            coroutine = stream.send(each)
            await _run_until_it_waits(coroutine, stream)
            coroutine.close()
            poison(each)
            each.clear()
        assert stream.stats.messages_queued == 1  # the rest of the first message
        reader.start()
        await stream.send(data[1])


async def _put_and_flush(stream: SendStream, data: bytearray) -> None:
    await stream.put(data)
    await stream.flush()


async def _run_until_it_waits(
    coroutine: Coroutine[Any, Any, None], stream: SendStream
) -> None:
    """Drive a send by hand, as no program should, until it waits for the reader."""
    queued = stream.stats.messages_queued
    while stream.stats.messages_queued == queued:
        coroutine.send(None)
    await begun(stream)
