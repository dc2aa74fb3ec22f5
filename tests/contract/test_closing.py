"""aclose sends accepted messages; abort does not; nothing is sent afterwards."""

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from links import (
    BIG,
    SOCKETS,
    Link,
    attempt,
    attempting,
    begun,
    begun_or_sent,
    error_in_thread,
    open_link,
    others_wait,
    reading,
    submitted,
    wait_for,
)
from oracle import Checker, assert_prefix, message, poison

from aiozerocopy import Stream, StreamBroken, StreamClosed
from aiozerocopy._core import sending

pytestmark = pytest.mark.anyio


@pytest.mark.every_loop
async def test_aclose_sends_what_was_accepted(some: Link) -> None:
    checker = Checker()
    data = [message(1, n, BIG // 2) for n in range(4)]
    async with reading(some, checker.feed, start=False) as reader:
        stream = some.sender()
        async with anyio.create_task_group() as tasks:
            for each in data[:3]:
                await stream.put(each)
            sending = attempt(tasks, stream.send, data[3])
            await begun_or_sent(stream, 4)
            tasks.start_soon(stream.aclose)
            await submitted(stream, 5)  # the flush of aclose
            reader.start()
        assert sending.error is None
        assert stream.fileno() == -1
        for each in data:
            each.clear()
    checker.finish()
    assert checker.counts == {1: 4}


@pytest.mark.every_loop
@pytest.mark.parametrize("end", ["aclose", "send_eof", "a block", "an exception"])
async def test_no_message_is_accepted_once_the_end_has_begun(
    end: str, some: Link
) -> None:
    """It could be cut off, and the reader would see a part of it before a clean end."""
    if end == "send_eof" and some.kind not in SOCKETS:
        pytest.skip("only a socket has two directions")
    checker = Checker()
    async with reading(some, checker.feed, start=False) as reader:
        stream: Any = some.sender()
        async with anyio.create_task_group() as tasks:
            await stream.put(message(1, 0, BIG))
            await begun(stream)
            error = ValueError() if end == "an exception" else None
            leave = partial(stream.__aexit__, None, error, None)
            tasks.start_soon(getattr(stream, end, leave))
            await submitted(stream, 2)  # its flush
            for call in (
                partial(stream.send, b"late"),
                partial(stream.send, b"la", b"te"),
                partial(stream.put, b"late"),
                partial(stream.send_many, [b"late"]),
                partial(stream.send_file, __file__),
            ):
                with pytest.raises(StreamClosed, match=r"being closed|send_eof"):
                    await call()
            refusal = error_in_thread(stream.send_from_thread, b"late")
            assert isinstance(refusal, StreamClosed)
            reader.start()
        await stream.aclose()
    checker.finish()
    assert checker.counts == {1: 1}


async def test_a_cancelled_send_eof_refuses_nothing(tmp_path: Path) -> None:
    checker = Checker()
    with open_link("unix", tmp_path) as link:
        async with reading(link, checker.feed, start=False) as reader:
            async with link.sender() as stream:
                assert isinstance(stream, Stream)
                await stream.put(message(1, 0, BIG))
                with anyio.CancelScope() as scope:
                    scope.cancel()
                    await stream.send_eof()
                assert scope.cancelled_caught
                await stream.put(message(1, 1, 10))
                assert stream._is_bound_here()  # `send` takes its fast path again
                reader.start()
    checker.finish()
    assert checker.counts == {1: 2}


@pytest.mark.every_loop
@pytest.mark.parametrize("end", ["aclose", "send_eof"])
async def test_a_cancelled_send_eof_does_not_undo_another_end(
    end: str, tmp_path: Path
) -> None:
    checker = Checker()
    with open_link("unix", tmp_path) as link:
        async with reading(link, checker.feed, start=False) as reader:
            stream: Any = link.sender()
            await stream.put(message(1, 0, BIG))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(getattr(stream, end))
                await submitted(stream, 2)  # its flush
                with anyio.CancelScope() as scope, contextlib.suppress(StreamClosed):
                    scope.cancel()
                    await stream.send_eof()
                with pytest.raises(StreamClosed, match=r"being closed|send_eof"):
                    await stream.put(b"late")
                reader.start()
            await stream.aclose()
    checker.finish()
    assert checker.counts == {1: 1}


@pytest.mark.every_loop
async def test_abort_ends_every_sender(some: Link) -> None:
    received = bytearray()
    data = [message(1, n, BIG) for n in range(5)]
    sent = b"".join(data)
    async with reading(some, received.extend, start=False):
        stream = some.sender(queue_limit=BIG)
        async with anyio.create_task_group() as tasks:
            ticket = await stream.put(data[0])
            await begun(stream)
            attempts = [
                attempt(tasks, stream.send, data[1]),
                attempt(tasks, stream.send_many, [data[2]]),
                attempt(tasks, stream.put, data[3]),
                attempt(tasks, stream.send, data[4]),
                attempt(tasks, stream.flush),
                attempt(tasks, wait_for, ticket),
            ]
            await others_wait()
            stream.abort()
        for each in attempts:
            assert isinstance(each.error, StreamClosed)
        assert ticket.done()
        for message_ in data:
            poison(message_)
            message_.clear()
    assert_prefix(received, sent)
    assert 0 < len(received) < len(sent)


@pytest.mark.every_loop
async def test_buffers_are_free_when_aclose_or_abort_returns(
    some: Link, tmp_path: Path
) -> None:
    with open_link("pipe", tmp_path) as other_link:
        async with other_link.sender() as other:  # keeps the loop's port alive
            await other.send(b"x")
            stream = some.sender()
            data = message(1, 0, BIG)
            ticket = await stream.put(data)
            await begun(stream)
            with anyio.CancelScope() as scope:
                scope.cancel()
                await stream.aclose()
            assert ticket.done()
            data.clear()


async def test_use_after_close(some: Link) -> None:
    stream = some.sender()
    await stream.send(b"x")
    await stream.aclose()
    await stream.aclose()
    stream.abort()
    for call in (
        partial(stream.send, b"x"),
        partial(stream.send, b""),
        partial(stream.send),
        partial(stream.put, b"x"),
        partial(stream.send_many, [b"x"]),
        partial(stream.send_many, []),
        stream.flush,
    ):
        with pytest.raises(StreamClosed) as caught:
            await call()
        assert isinstance(caught.value, anyio.ClosedResourceError)
    assert isinstance(error_in_thread(stream.send_from_thread, b"x"), StreamClosed)
    assert stream.fileno() == -1
    assert "closed" in repr(stream)
    assert stream.stats.bytes_sent == 1


@pytest.mark.every_loop
async def test_linger_bounds_the_wait(some: Link) -> None:
    data = message(1, 0, BIG)
    stream = some.sender()
    ticket = await stream.put(data)
    await begun(stream)
    late = r"[\d,]+ bytes were not sent within 0.05 s"
    with pytest.raises(StreamBroken, match=late) as caught:
        await stream.aclose(linger=0.05)
    assert 0 == caught.value.bytes_sent < caught.value.total <= BIG + 32
    assert isinstance(caught.value.__cause__, TimeoutError)
    assert stream.fileno() == -1
    assert ticket.done()
    data.clear()


@pytest.mark.every_loop
async def test_without_linger_nothing_is_waited_for(some: Link) -> None:
    stream = some.sender()
    data = [message(1, n, BIG) for n in range(2)]
    ticket = await stream.put(data[0])
    await begun(stream)
    async with attempting(stream.send, data[1]) as sending:
        await begun_or_sent(stream, 2)
        await stream.aclose(linger=0)
    assert isinstance(sending.error, StreamClosed)
    with pytest.raises(StreamClosed):
        await ticket
    for each in data:
        each.clear()


async def test_linger_is_a_number_of_seconds(some: Link) -> None:
    async with some.sender() as stream:
        for wrong in (-1, float("nan")):
            with pytest.raises(ValueError, match="linger must be at least 0"):
                await stream.aclose(linger=wrong)
        await stream.send(b"x")


@pytest.mark.every_loop
async def test_leaving_by_exception_ends_within_the_linger(
    some: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "LINGER", 0.05)
    data = message(1, 0, BIG)
    before = anyio.current_time()
    with pytest.raises(ZeroDivisionError):
        async with some.sender() as stream:
            ticket = await stream.put(data)
            raise ZeroDivisionError
    assert 0.04 < anyio.current_time() - before < 10
    assert stream.fileno() == -1
    assert ticket.done()
    data.clear()


@pytest.mark.every_loop
@pytest.mark.parametrize("cancelled", [False, True])
async def test_leaving_by_exception_sends_what_a_reader_takes(
    some: Link, cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "LINGER", 15.0)  # a busy machine may be slow
    checker = Checker()
    async with reading(some, checker.feed):
        with contextlib.suppress(ZeroDivisionError), anyio.CancelScope() as scope:
            async with some.sender() as stream:
                await stream.put(message(1, 0, BIG))
                if not cancelled:
                    raise ZeroDivisionError
                scope.cancel()
                await anyio.sleep_forever()
    checker.finish()
    assert checker.counts == {1: 1}


@pytest.mark.every_loop
async def test_leaving_by_exception_hides_no_exception(some: Link) -> None:
    with pytest.raises(ZeroDivisionError):
        async with some.sender() as stream:
            await stream.put(message(1, 0, BIG))
            some.kill_reader()
            raise ZeroDivisionError


@pytest.mark.every_loop
async def test_aclose_tells_that_the_reader_left(some: Link) -> None:
    stream = some.sender()
    await stream.put(message(1, 0, BIG))
    await begun(stream)
    async with attempting(stream.aclose) as closing:
        await submitted(stream, 2)  # the flush of aclose
        some.kill_reader()
    assert isinstance(closing.error, StreamBroken)
    assert stream.fileno() == -1
