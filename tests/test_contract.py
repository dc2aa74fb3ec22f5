"""The promise, clause by clause, on every kind of link and every event loop."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from aiozerocopy import (
    SendStream,
    StreamBroken,
    StreamClosed,
    Ticket,
    _native,
    _sending,
)
from links import (
    BIG,
    KINDS,
    STALLING,
    Link,
    attempt,
    begun,
    is_trio,
    let_others_run,
    open_link,
    reading,
    stuck,
    until,
)
from oracle import CANARY, Checker, assert_prefix, assert_same, message, payload, poison

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.anyio

both_readers = pytest.mark.parametrize("ours", [True, False], ids=["ours", "plain"])


@pytest.fixture(params=KINDS)
def link(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Link]:
    """One link of each kind."""
    with open_link(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture(params=STALLING)
def clogged(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Link]:
    """One link of each kind on which a send of `BIG` bytes waits for the reader."""
    with open_link(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Link]:
    """A pipe, for what does not depend on the kind of link."""
    with open_link("pipe", tmp_path) as opened:
        yield opened


class TestDoneMeansYours:
    """P0: when send returns, every byte is out and the buffers are the caller's."""

    @both_readers
    async def test_buffer_is_overwritten_the_instant_send_returns(
        self, link: Link, ours: bool
    ) -> None:
        checker = Checker()
        sizes = (0, 1, 4064, 65_536, 300_001)
        async with reading(link, checker.feed, ours=ours), link.sender() as stream:
            for sequence, size in enumerate(sizes):
                data = message(1, sequence, size)
                await stream.send(data)
                poison(data)
                data.clear()
        checker.finish()
        assert checker.counts == {1: len(sizes)}

    @both_readers
    async def test_buffers_of_one_message_are_overwritten(
        self, link: Link, ours: bool
    ) -> None:
        checker = Checker()
        async with reading(link, checker.feed, ours=ours), link.sender() as stream:
            for sequence in range(3):
                data = message(1, sequence, 90_000)
                head, body, tail = data[:40], data[40:70_000], data[70_000:]
                await stream.send(head, body, tail)
                for piece in (head, body, tail):
                    poison(piece)
                    piece.clear()
        checker.finish()

    async def test_pending_send_locks_the_buffer(self, clogged: Link) -> None:
        data = message(1, 0, BIG)
        checker = Checker()
        async with reading(clogged, checker.feed, start=False) as reader:
            async with clogged.sender() as stream:
                async with stuck(stream, data):
                    with pytest.raises(BufferError):
                        data.append(0)
                    with pytest.raises(BufferError):
                        data.clear()
                    reader.start()
                data.clear()
        checker.finish()
        assert checker.counts == {1: 1}

    async def test_sent_without_a_copy(self, clogged: Link) -> None:
        data = message(1, 0, BIG)
        checker = Checker()
        async with reading(clogged, checker.feed, start=False) as reader:
            async with clogged.sender() as stream:
                async with stuck(stream, data):
                    reader.start()
                assert stream.stats.bytes_rescued == 0
                assert stream.stats.bytes_sent == len(data)
                assert stream.stats.messages_sent == 1
                assert stream.stats.bytes_queued == stream.stats.messages_queued == 0

    async def test_temporary_buffer_is_kept_alive(self, clogged: Link) -> None:
        received = bytearray()
        async with reading(clogged, received.extend, start=False) as reader:
            async with clogged.sender() as stream:
                async with stuck(stream, bytes(message(1, 0, BIG))):
                    canaries = [bytearray([CANARY]) * (BIG + 32) for _ in range(4)]
                    reader.start()
                del canaries
        assert_same(received, message(1, 0, BIG))

    async def test_flush_means_all_before_it_is_out(self, clogged: Link) -> None:
        checker = Checker()
        data = [message(1, sequence, BIG // 2) for sequence in range(3)]
        async with reading(clogged, checker.feed, start=False) as reader:
            async with clogged.sender() as stream:
                tickets = [await stream.put(each) for each in data]
                reader.start()
                await stream.flush()
                assert all(ticket.done() for ticket in tickets)
                assert stream.stats.bytes_sent == sum(map(len, data))
                for each in data:
                    poison(each)
                    each.clear()
        checker.finish()


class TestIntegrity:
    """P1: a receiver sees a prefix of what was sent, in order, messages whole."""

    @both_readers
    async def test_fifty_tasks_and_four_threads(self, link: Link, ours: bool) -> None:
        largest = 20_000 if link.kind == "pty" else 3 << 20
        checker = Checker()
        rng = random.Random(50)

        def sizes(name: int) -> list[int]:
            small = [int(10 ** rng.uniform(0, 4)) for _ in range(3)]
            return [*small, largest] if name % 25 == 0 else small

        async def send_all(name: int, stream: SendStream) -> None:
            for sequence, size in enumerate(sizes(name)):
                data = message(name, sequence, size)
                await stream.send(data)
                poison(data)

        def send_all_from_thread(name: int, stream: SendStream) -> None:
            for sequence, size in enumerate((1, largest // 4, 70, 9_000)):
                data = message(name, sequence, size)
                stream.send_from_thread(data)
                poison(data)

        async with reading(link, checker.feed, ours=ours), link.sender() as stream:
            threads = [
                threading.Thread(target=send_all_from_thread, args=(name, stream))
                for name in range(100, 104)
            ]
            async with anyio.create_task_group() as tasks:
                for thread in threads:
                    thread.start()
                for name in range(50):
                    tasks.start_soon(send_all, name, stream)
            await until(lambda: not any(thread.is_alive() for thread in threads))
        checker.finish()
        assert sum(checker.counts.values()) == 50 * 3 + 2 + 4 * 4

    async def test_order_of_calls_is_the_order_of_messages(self, clogged: Link) -> None:
        checker = Checker()
        async with reading(clogged, checker.feed, start=False) as reader:
            async with clogged.sender() as stream:
                big = message(1, 0, BIG)
                async with stuck(stream, big) as tasks:
                    tasks.start_soon(stream.send, message(1, 1, 10))
                    await begun(stream, 2)
                    await stream.put(message(1, 2, BIG))
                    tasks.start_soon(
                        stream.send_many, [message(1, n, n) for n in range(3, 9)]
                    )
                    await begun(stream, 4)
                    await stream.put(message(1, 9, 0))
                    reader.start()
        checker.finish()
        assert checker.counts == {1: 10}

    @pytest.mark.parametrize("end", ["abort", "cancelled aclose"])
    async def test_receiver_sees_a_prefix_after(self, clogged: Link, end: str) -> None:
        data = [message(1, sequence, BIG // 3) for sequence in range(6)]
        received = bytearray()
        sent = b"".join(data)
        async with reading(clogged, received.extend, start=False):
            stream = clogged.sender()
            async with anyio.create_task_group() as tasks:
                for count, each in enumerate(data, start=1):
                    tasks.start_soon(_send_and_poison, stream, each, StreamClosed)
                    await begun_or_sent(stream, count)
                await begun(stream)
                await _END[end](stream)
            assert stream.fileno() == -1
        assert_prefix(received, sent)
        assert 0 < len(received) < len(sent)


async def begun_or_sent(stream: SendStream, count: int) -> None:
    """Return once so many messages are on their way or over."""
    await until(
        lambda: stream.stats.messages_queued + stream.stats.messages_sent >= count
    )


async def _send_and_poison(
    stream: SendStream, data: bytearray, error: type[Exception]
) -> None:
    """Send; whatever becomes of it, poison and resize the buffer at once."""
    with contextlib.suppress(error):
        try:
            await stream.send(data)
        finally:
            poison(data)
            data.clear()


async def _abort(stream: SendStream) -> None:
    stream.abort()


async def _cancelled_aclose(stream: SendStream) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await stream.aclose()


async def _cancelled_aclose_while_it_flushes(stream: SendStream) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.aclose)
        await let_others_run()
        tasks.cancel_scope.cancel()


_END = {
    "abort": _abort,
    "cancelled aclose": _cancelled_aclose,
    "aclose cancelled later": _cancelled_aclose_while_it_flushes,
}


class TestNoLaterBytes:
    """P2: what is stored after send returned or raised is seen by nobody."""

    async def test_after_a_cancel_the_message_is_as_it_was(self, clogged: Link) -> None:
        received = bytearray()
        data = message(1, 0, BIG)
        sent = bytes(data)
        async with reading(clogged, received.extend, start=False) as reader:
            async with clogged.sender() as stream:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_send_and_poison, stream, data, StreamClosed)
                    await begun(stream)
                    tasks.cancel_scope.cancel()
                assert data == b""
                assert stream.stats.bytes_rescued >= stream.stats.bytes_queued > 0
                reader.start()
        assert_same(received, sent)

    @pytest.mark.parametrize("end", _END)
    async def test_after_a_close_nothing_follows(self, clogged: Link, end: str) -> None:
        received = bytearray()
        data = message(1, 0, BIG)
        sent = bytes(data)
        async with reading(clogged, received.extend, start=False):
            stream = clogged.sender()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_send_and_poison, stream, data, StreamClosed)
                await begun(stream)
                await _END[end](stream)
            assert data == b""
        assert_prefix(received, sent)
        assert 0 < len(received) < len(sent)


class TestNoLeak:
    """P3: nobody sees memory that was not sent: not after cancel, close or abort."""

    SIZE = 100_000  # malloc gives such a block to the next who asks

    @pytest.mark.parametrize("end", ["cancel", *_END])
    async def test_freed_memory_is_not_sent(self, clogged: Link, end: str) -> None:
        received = bytearray()
        count = 14
        sent = b"".join(message(1, n, self.SIZE) for n in range(count))
        async with reading(clogged, received.extend, start=False) as reader:
            stream = clogged.sender()
            async with anyio.create_task_group() as tasks:
                for n in range(count):
                    tasks.start_soon(self._send_and_forget, stream, n)
                    await begun_or_sent(stream, n + 1)
                await begun(stream)
                if end == "cancel":
                    tasks.cancel_scope.cancel()
                else:
                    await _END[end](stream)
            canaries = [bytearray([CANARY]) * (self.SIZE + 32) for _ in range(count)]
            reader.start()
            await stream.aclose()
        del canaries
        assert_prefix(received, sent)
        assert received

    async def _send_and_forget(self, stream: SendStream, sequence: int) -> None:
        with contextlib.suppress(StreamClosed):
            await stream.send(message(1, sequence, self.SIZE))


class TestBackpressure:
    """P4: the memory held for an fd is bounded; senders wait."""

    async def test_put_waits_for_room(self, clogged: Link) -> None:
        limit = BIG + 200_000
        data = [message(1, sequence, BIG // 8) for sequence in range(40)]
        checker = Checker()
        most = put = 0

        async def put_all(stream: SendStream) -> None:
            nonlocal most, put
            for each in data:
                await stream.put(each)
                put += 1
                most = max(most, stream.stats.bytes_queued)

        async with reading(clogged, checker.feed, start=False) as reader:
            async with clogged.sender(queue_limit=limit) as stream:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(put_all, stream)
                    await until(lambda: put >= 7)
                    await let_others_run()
                    assert put < len(data)
                    assert stream.stats.bytes_queued <= limit
                    reader.start()
        checker.finish()
        assert checker.counts == {1: len(data)}
        assert 0 < most <= limit

    async def test_message_above_the_limit_fits_alone(self, clogged: Link) -> None:
        checker = Checker()
        async with reading(clogged, checker.feed, start=False) as reader:
            async with clogged.sender(queue_limit=1000) as stream:
                first = await stream.put(message(1, 0, BIG))
                assert not first.done()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(stream.put, message(1, 1, 10))
                    await let_others_run()
                    assert stream.stats.messages_queued == 1
                    reader.start()
        checker.finish()
        assert checker.counts == {1: 2}

    async def test_line_is_first_in_first_out(self, clogged: Link) -> None:
        checker = Checker()
        calls: list[tuple[str, int]] = [
            ("put", 100_000),  # does not fit; nobody overtakes it
            ("send", 10),
            ("put", 0),
            ("send_many", 5),
            ("put", 70_000),
            ("flush", 0),
            ("send", 0),
        ]
        async with reading(clogged, checker.feed, start=False) as reader:
            async with clogged.sender(queue_limit=BIG + 50_000) as stream:
                await stream.put(message(1, 0, BIG))
                async with anyio.create_task_group() as tasks:
                    sequence = 1
                    for call, size in calls:
                        if call == "flush":
                            tasks.start_soon(stream.flush)
                        else:
                            data: Any = message(1, sequence, size)
                            sequence += 1
                            argument = [data] if call == "send_many" else data
                            tasks.start_soon(getattr(stream, call), argument)
                        await let_others_run(3)
                    assert stream.stats.messages_queued == 1
                    reader.start()
        checker.finish()
        assert checker.counts == {1: 7}

    async def test_cancelled_put_in_line_leaves_no_trace(self, clogged: Link) -> None:
        checker = Checker()
        dropped = message(9, 0, 100_000)
        async with reading(clogged, checker.feed, start=False) as reader:
            async with clogged.sender(queue_limit=BIG + 50_000) as stream:
                await stream.put(message(1, 0, BIG))
                async with anyio.create_task_group() as others:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(stream.put, dropped)
                        await let_others_run(3)
                        others.start_soon(stream.send, message(1, 1, 100))
                        await let_others_run(3)
                        tasks.cancel_scope.cancel()
                    dropped.clear()
                    await begun(stream, 2)  # the next one's turn came at once
                    reader.start()
        checker.finish()
        assert checker.counts == {1: 2}

    async def test_frames_take_no_memory(self, pipe: Link) -> None:
        frame = bytearray(16 << 20)
        size = 0

        def count(piece: memoryview) -> None:
            nonlocal size
            size += len(piece)

        async with reading(pipe, count), pipe.sender() as stream:
            await stream.send(frame)
            before = _resident()
            for _ in range(10):
                await stream.send(frame)
            grown = _resident() - before
            assert stream.stats.bytes_rescued == 0
        assert size == 11 * len(frame)
        assert grown < 2 << 20


def _resident() -> int:
    """Bytes of memory that this process has in RAM."""
    try:
        with open("/proc/self/statm") as statm:
            pages = int(statm.read().split()[1])
    except OSError:
        pytest.skip("this system does not tell")
    return pages * os.sysconf("SC_PAGE_SIZE")


class TestIndependence:
    """P5: a stalled fd delays no other fd, and not the event loop."""

    async def test_forty_nine_others_go_on(self, clogged: Link, tmp_path: Path) -> None:
        checkers = [Checker() for _ in range(49)]
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                beats += 1
                await anyio.lowlevel.checkpoint()

        async def work(number: int, checker: Checker) -> None:
            with open_link(("pipe", "unix", "adopted")[number % 3], tmp_path) as link:
                async with reading(link, checker.feed, ours=True), link.sender() as one:
                    await one.send(message(number, 0, 100_000))

        stalled = clogged.sender()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stalled.send, message(1, 0, BIG))
            await begun(stalled)
            tasks.start_soon(beat)
            async with anyio.create_task_group() as others:
                for number, checker in enumerate(checkers):
                    others.start_soon(work, number, checker)
            assert stalled.stats.messages_queued == 1
            tasks.cancel_scope.cancel()
        stalled.abort()
        for checker in checkers:
            checker.finish()
        assert [sum(checker.counts.values()) for checker in checkers] == [1] * 49
        assert beats > 5


class TestExactFailure:
    """P6: every waiting sender gets the error, with the bytes that went out."""

    async def test_bytes_sent_is_exact(self, clogged: Link) -> None:
        before, data = message(1, 0, 3_000), message(1, 1, BIG)
        async with clogged.sender() as stream:
            await stream.send(before)
            assert clogged.read(len(before)) == before
            async with anyio.create_task_group() as tasks:
                sending = attempt(tasks, stream.send, data)
                await begun(stream)
                start = clogged.read(1000)  # too few for the sender to go on
                assert start == data[:1000]
                held = await _held_by_the_kernel(clogged, stream, len(before) + 1000)
                clogged.kill_reader()
        error = sending.error
        assert isinstance(error, StreamBroken)
        assert error.total == len(data)
        if clogged.kind in ("pipe", "adopted", "fifo", "unix"):
            assert error.bytes_sent == 1000 + held
        assert 1000 <= error.bytes_sent < len(data)
        assert f"{error.bytes_sent:,} of {len(data):,} bytes" in str(error)

    async def test_all_senders_fail_in_order(self, clogged: Link) -> None:
        failed: list[tuple[int, StreamBroken]] = []

        async def send(number: int) -> None:
            data = message(1, number, BIG)
            try:
                await stream.send(data)
            except StreamBroken as error:
                data.clear()  # it is ours again, although the error still lives
                failed.append((number, error))

        async def wait(ticket: Ticket) -> None:
            with pytest.raises(StreamBroken) as caught:
                await ticket
            failed.append((4, caught.value))

        async with clogged.sender() as stream:
            async with anyio.create_task_group() as tasks:
                for number in range(4):
                    tasks.start_soon(send, number)
                    await begun(stream, number + 1)
                tasks.start_soon(wait, await stream.put(message(1, 4, BIG)))
                await let_others_run()
                clogged.kill_reader()
            stream.abort()
        numbers = [number for number, _ in failed]
        if not is_trio():
            assert numbers == [0, 1, 2, 3, 4]
        assert sorted(numbers) == [0, 1, 2, 3, 4]
        for number, error in failed:
            assert isinstance(error, ConnectionError)
            assert isinstance(error, anyio.BrokenResourceError)
            assert isinstance(error.__cause__, OSError)
            assert error.__cause__.errno == error.errno
            assert error.errno in (errno.EPIPE, errno.ECONNRESET, errno.EIO)
            assert error.total == BIG + 32
            assert (error.bytes_sent > 0) == (number == 0)

    async def test_sending_after_the_peer_left(self, clogged: Link) -> None:
        async with clogged.sender() as stream:
            clogged.kill_reader()
            for _ in range(2):
                with pytest.raises(StreamBroken) as caught:
                    while True:  # a socket learns of it with the first message
                        await stream.send(b"x" * 1000)
                assert isinstance(caught.value.__cause__, OSError)
            with pytest.raises(StreamBroken):
                await stream.put(b"x")
            with pytest.raises(StreamBroken):
                await stream.send_many([b"x"])
            with pytest.raises(StreamBroken):
                await stream.flush()

    async def test_thread_gets_the_error_too(self, clogged: Link) -> None:
        errors: list[StreamBroken] = []

        def send() -> None:
            try:
                stream.send_from_thread(message(1, 0, BIG))
            except StreamBroken as error:
                errors.append(error)

        async with clogged.sender() as stream:
            thread = threading.Thread(target=send)
            thread.start()
            await begun(stream)
            clogged.kill_reader()
            await until(lambda: not thread.is_alive())
        assert errors[0].total == BIG + 32
        assert 0 < errors[0].bytes_sent < BIG + 32


async def _held_by_the_kernel(link: Link, stream: SendStream, read: int) -> int:
    """Bytes that the reader could still read, once the sender moves no more."""
    if link.kind in ("cat", "pty", "tcp4", "tcp6"):
        return 0  # there are buffers on the way that nobody tells of
    await until(lambda: stream.stats.bytes_sent == read + link.unread())
    return link.unread()
