"""The promise, clause by clause, on every kind of link and every event loop."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
import scripts
from links import (
    BIG,
    EACH_WAY,
    KINDS,
    STALLING,
    Link,
    attempt,
    begun,
    cancelled_at,
    is_trio,
    let_others_run,
    open_link,
    open_unread,
    reading,
    refusing,
    stuck,
    until,
    wait_for_file,
)
from oracle import (
    CANARY,
    POISON,
    Checker,
    assert_prefix,
    assert_same,
    message,
    payload,
    poison,
)

import aiozerocopy as azc
from aiozerocopy import (
    IncompleteReceive,
    ReceiveStream,
    SendStream,
    StreamBroken,
    StreamClosed,
    Ticket,
)
from aiozerocopy._core import sending

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
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


@pytest.fixture(params=EACH_WAY)
def some(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Link]:
    """As clogged, for what only depends on how the bytes go in and out."""
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

    async def test_sent_without_a_copy(self, some: Link) -> None:
        data = message(1, 0, BIG)
        checker = Checker()
        async with reading(some, checker.feed, start=False) as reader:
            async with some.sender() as stream:
                async with stuck(stream, data):
                    reader.start()
                assert stream.stats.bytes_rescued == 0
                assert stream.stats.bytes_sent == len(data)
                assert stream.stats.messages_sent == 1
                assert stream.stats.bytes_queued == stream.stats.messages_queued == 0

    async def test_temporary_buffer_is_kept_alive(self, some: Link) -> None:
        received = bytearray()
        async with reading(some, received.extend, start=False) as reader:
            async with some.sender() as stream:
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
        largest = 20_000 if link.kind in ("pty", "fifo") else 3 << 20
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

    def have_begun() -> bool:
        stats = stream.stats  # one snapshot: a message goes from the one to the other
        return stats.messages_queued + stats.messages_sent >= count

    await until(have_begun)


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
        if end == "cancel":
            self._assert_whole_messages(received, count)
        else:
            assert_prefix(received, sent)
        assert received

    def _assert_whole_messages(self, received: bytearray, count: int) -> None:
        """One that is dropped leaves no trace; a later one may have begun by then."""
        size, following = self.SIZE + 32, 0
        assert len(received) % size == 0
        for at in range(0, len(received), size):
            piece = received[at : at + size]
            known = [message(1, n, self.SIZE) for n in range(following, count)]
            assert piece in known
            following += known.index(piece) + 1

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

    async def test_message_above_the_limit_fits_alone(self, some: Link) -> None:
        checker = Checker()
        async with reading(some, checker.feed, start=False) as reader:
            async with some.sender(queue_limit=1000) as stream:
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
            ("put", BIG),  # does not fit; nobody overtakes it
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

    async def test_cancelled_put_in_line_leaves_no_trace(self, some: Link) -> None:
        checker = Checker()
        dropped = message(9, 0, BIG)
        async with reading(some, checker.feed, start=False) as reader:
            async with some.sender(queue_limit=BIG + 50_000) as stream:
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

    async def test_cancelled_while_others_run_gives_the_buffer_back(
        self, some: Link
    ) -> None:
        """A put gives others a turn too; who cancels it then has no ticket."""
        checker = Checker()
        data = [message(1, n, 1_000) for n in range(1, 600)]
        async with reading(some, checker.feed, start=False) as reader:
            async with some.sender(queue_limit=8 * BIG) as stream:
                async with stuck(stream, message(1, 0, BIG)):
                    count = 0
                    with anyio.CancelScope() as scope:
                        scope.cancel()
                        for each in data:
                            await stream.put(each)
                            count += 1
                    assert count == (0 if is_trio() else 511)
                    assert stream.stats.messages_queued == 1 + count
                    data[count].clear()
                    reader.start()
        checker.finish()
        assert checker.counts == {1: 1 + count}

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

    @pytest.mark.parametrize("kind", ["pipe", "file"])  # small enough for the pipe
    @pytest.mark.parametrize("call", ["send", "put", "send_many"])
    async def test_one_that_never_waits_lets_others_run(
        self, tmp_path: Path, call: str, kind: str
    ) -> None:
        beats, sends = 0, 2_000

        async def beat() -> None:
            nonlocal beats
            while True:
                beats += 1
                await anyio.lowlevel.checkpoint()

        with open_link(kind, tmp_path) as link:
            async with link.sender() as stream, anyio.create_task_group() as tasks:
                tasks.start_soon(beat)
                for _ in range(sends):
                    await (
                        stream.send_many([b"a", b"b"])
                        if call == "send_many"
                        else getattr(stream, call)(b"a")
                    )
                seen = beats
                tasks.cancel_scope.cancel()
        assert seen >= (sends - 1 if is_trio() else sends // 512)


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

    async def test_sending_after_the_peer_left(self, some: Link) -> None:
        async with some.sender() as stream:
            some.kill_reader()
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

    async def test_thread_gets_the_error_too(self, some: Link) -> None:
        errors: list[StreamBroken] = []

        def send() -> None:
            try:
                stream.send_from_thread(message(1, 0, BIG))
            except StreamBroken as error:
                errors.append(error)

        async with some.sender() as stream:
            thread = threading.Thread(target=send)
            thread.start()
            await begun(stream)
            some.kill_reader()
            await until(lambda: not thread.is_alive())
        assert errors[0].total == BIG + 32
        assert 0 < errors[0].bytes_sent < BIG + 32


async def _held_by_the_kernel(link: Link, stream: SendStream, read: int) -> int:
    """Bytes that the reader could still read, once the sender moves no more."""
    if link.kind in ("cat", "pty", "tcp4", "tcp6"):
        return 0  # there are buffers on the way that nobody tells of

    def rests() -> bool:
        stats = stream.stats  # between two pieces the bytes add up too
        return stats.send_waits > 0 and stats.bytes_sent == read + link.unread()

    await until(rests)
    return link.unread()


class TestCancellation:
    """Not begun: no trace.  Begun: the message completes.  The buffers are yours."""

    async def test_not_begun_leaves_no_trace(self, clogged: Link) -> None:
        dropped = [message(9, n, 5_000) for n in range(3)]
        checker = Checker()
        async with reading(clogged, checker.feed, start=False) as reader:
            async with clogged.sender() as stream:
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
        checker.finish()
        assert checker.counts == {1: 2}

    async def test_begun_completes_and_the_next_follows(self, clogged: Link) -> None:
        data = [message(1, n, BIG) for n in range(3)]
        pieces = [data[1][:10], data[1][10:500_000], data[1][500_000:]]
        checker = Checker()
        async with reading(clogged, checker.feed, start=False) as reader:
            async with clogged.sender() as stream:
                async with stuck(stream, data[0]) as tasks:
                    tasks.cancel_scope.cancel()
                poison(data[0])
                data[0].clear()
                reader.start()
                await stream.send(*pieces)
                await stream.send(data[2])
        checker.finish()
        assert checker.counts == {1: 3}

    async def test_many_begun_one_after_the_other(self, some: Link) -> None:
        checker = Checker()
        async with reading(some, checker.feed), some.sender() as stream:
            for number in range(30):
                data = message(number, 0, 120_000)
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(stream.send, data[:50], data[50:])
                        await let_others_run(number % 4)
                        scope.cancel()
                poison(data)
                data.clear()
            await stream.send(message(100, 0, 10))
        checker.finish()
        assert set(checker.counts.values()) == {1}
        assert checker.counts[100] == 1

    async def test_above_the_rescue_limit_breaks_the_stream(
        self, clogged: Link
    ) -> None:
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

    async def test_twice(self, some: Link) -> None:
        checker = Checker()
        data = message(1, 0, BIG)
        async with reading(some, checker.feed, start=False) as reader:
            async with some.sender() as stream:
                with anyio.CancelScope() as outer:
                    async with stuck(stream, data) as tasks:
                        tasks.cancel_scope.cancel()
                        outer.cancel()
                        tasks.cancel_scope.cancel()
                poison(data)
                data.clear()
                reader.start()
        checker.finish()
        assert checker.counts == {1: 1}

    async def test_timeout_zero_sends_all_or_nothing(self, link: Link) -> None:
        checker = Checker()
        async with reading(link, checker.feed), link.sender() as stream:
            for number in range(5):
                data = message(number, 0, 300_000)
                with anyio.move_on_after(0):
                    await stream.send(data)
                poison(data)
                data.clear()
            await stream.send(message(9, 0, 10))
        checker.finish()
        assert checker.counts[9] == 1

    @pytest.mark.parametrize("call", ["send", "pieces", "put", "send_many", "flush"])
    async def test_at_every_await(self, link: Link, call: str) -> None:
        checker = Checker()
        async with reading(link, checker.feed), link.sender() as stream:
            cancelled, n = True, 0
            while cancelled:
                n += 1
                data = [message(10 * n + i, 0, 90_000) for i in range(4)]
                calls: dict[str, Callable[[], Any]] = {
                    "send": partial(stream.send, data[0]),
                    "pieces": partial(stream.send, data[0][:9], data[0][9:]),
                    "put": partial(_put_and_wait, stream, data[0]),
                    "send_many": partial(stream.send_many, data),
                    "flush": partial(_put_and_flush, stream, data[0]),
                }
                cancelled, _ = await cancelled_at(calls[call](), n)
                if call in ("put", "flush"):  # what was put stays on its way
                    await stream.flush()
                for each in data:
                    poison(each)
                    each.clear()
                await stream.send(message(10 * n + 9, 0, 100))
                arrived = [checker.counts[10 * n + i] for i in range(4)]
                assert sorted(arrived, reverse=True) == arrived
        checker.finish()
        assert set(checker.counts.values()) <= {0, 1}
        assert all(checker.counts[10 * i + 9] == 1 for i in range(1, n + 1))
        if call != "flush":
            assert checker.counts[10 * n] == 1

    async def test_aclose_at_every_await(self, some: Link, tmp_path: Path) -> None:
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
    async def test_send_eof_at_every_await(self, kind: str, tmp_path: Path) -> None:
        cancelled, n = True, 0
        while cancelled:
            n += 1
            checker = Checker()
            with open_link(kind, tmp_path) as link:
                async with reading(link, checker.feed):
                    async with azc.wrap_socket(link.take_write_fd()) as stream:
                        await stream.put(message(1, 0, BIG))
                        cancelled, _ = await cancelled_at(stream.send_eof(), n)
                        if cancelled:  # not sent: the stream is as before
                            await stream.send(message(1, 1, 10))
                        await stream.send_eof()
            checker.finish()
            assert checker.counts == {1: 1 + cancelled}

    async def test_ticket_leaves_the_message_alone(self, some: Link) -> None:
        checker = Checker()
        async with reading(some, checker.feed, start=False) as reader:
            async with some.sender() as stream:
                data = message(1, 0, BIG)
                ticket = await stream.put(data)
                with anyio.CancelScope() as scope:
                    async with anyio.create_task_group() as tasks:
                        waiting = attempt(tasks, _wait_for, ticket)
                        await let_others_run(3)
                        scope.cancel()
                assert waiting.done
                assert not ticket.done()
                with pytest.raises(BufferError):
                    data.clear()
                assert stream.stats.bytes_rescued == 0
                reader.start()
                await ticket
                data.clear()
        checker.finish()
        assert checker.counts == {1: 1}

    async def test_coroutine_thrown_away(self, some: Link) -> None:
        checker = Checker()
        data = [message(1, n, BIG) for n in range(2)]
        dropped = message(9, 0, 10)
        async with reading(some, checker.feed, start=False) as reader:
            async with some.sender() as stream:
                for each in (data[0], dropped):
                    coroutine = stream.send(each)
                    await _run_until_it_waits(coroutine, stream)
                    coroutine.close()
                    poison(each)
                    each.clear()
                await let_others_run()
                reader.start()
                await stream.send(data[1])
        checker.finish()
        assert checker.counts == {1: 2}


def error_in_thread(call: Callable[..., object], *args: Any) -> object:
    """What the call raises, or returns, in a thread of its own."""
    ends: list[object] = []

    def run() -> None:
        try:
            ends.append(call(*args))
        except Exception as error:
            ends.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return ends[0]


async def _put_and_wait(stream: SendStream, data: bytearray) -> None:
    await (await stream.put(data))


async def _put_and_flush(stream: SendStream, data: bytearray) -> None:
    await stream.put(data)
    await stream.flush()


async def _wait_for(ticket: Ticket) -> None:
    await ticket


async def _run_until_it_waits(
    coroutine: Coroutine[Any, Any, None], stream: SendStream
) -> None:
    """Drive a send by hand, as nobody should, to where it waits for the reader."""
    queued = stream.stats.messages_queued
    while stream.stats.messages_queued == queued:
        coroutine.send(None)
    await begun(stream)


class TestSendMany:
    """Each message is contiguous; a cancel cuts between messages only."""

    @pytest.mark.parametrize("size", [10, 3_000, 40_000])
    async def test_arrives_as_if_sent_one_by_one(self, link: Link, size: int) -> None:
        checker = Checker()
        count = 1_500 if size == 10 else 60
        async with reading(link, checker.feed), link.sender() as stream:
            for start in (0, count):
                batch = [message(1, start + n, size) for n in range(count)]
                await stream.send_many(batch)
                for each in batch:
                    poison(each)
                    each.clear()
            await stream.send_many([])
            await stream.send_many(iter([message(1, 2 * count, 0)]))
            assert stream.stats.messages_sent == 2 * count + 1
        checker.finish()
        assert checker.counts == {1: 2 * count + 1}

    @pytest.mark.parametrize("size", [100, 60_000])
    async def test_size_that_changes_meanwhile_is_refused(
        self, some: Link, size: int
    ) -> None:
        checker = Checker()

        def changing() -> Iterator[bytearray]:
            batch = [bytearray(size) for _ in range(4)]
            yield from batch
            batch[1].clear()

        async with reading(some, checker.feed), some.sender() as stream:
            with pytest.raises(ValueError, match="changed its size"):
                await stream.send_many(changing())
            await stream.send(message(1, 0, 10))
        checker.finish()
        assert checker.counts == {1: 1}

    @pytest.mark.parametrize("size", [1_000, 60_000])
    async def test_cancel_cuts_between_messages(self, clogged: Link, size: int) -> None:
        count = 4 * BIG // size
        batch = [message(1, n, size) for n in range(count)]
        checker = Checker()
        async with reading(clogged, checker.feed, start=False) as reader:
            async with clogged.sender() as stream:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(stream.send_many, batch)
                    await begun(stream)
                    tasks.cancel_scope.cancel()
                for each in batch:
                    poison(each)
                    each.clear()
                reader.start()
                await stream.send(message(2, 0, 10))
                # (a waiting lane has a piece of 4 KiB in flight besides)
                assert stream.stats.bytes_rescued <= 4096 + size + 32
        checker.finish()
        assert checker.counts[2] == 1
        assert 0 < checker.counts[1] < count

    async def test_takes_half_a_megabyte_at_a_time(self, clogged: Link) -> None:
        """P4: what is copied to be sent together has a bound, however long the list."""
        batch = [bytes(8 << 10)] * 512
        async with clogged.sender() as stream:
            async with stuck(stream, bytes(BIG)) as tasks:
                tasks.start_soon(stream.send_many, batch)
                await begun(stream, 2)
                assert stream.stats.bytes_queued <= BIG + (512 << 10)
                tasks.cancel_scope.cancel()
            stream.abort()

    async def test_others_do_not_come_between(self, some: Link) -> None:
        checker = Checker()
        batch = [message(1, n, 20_000) for n in range(20)]
        async with reading(some, checker.feed, start=False) as reader:
            async with some.sender() as stream:
                async with stuck(stream, message(1, 0, BIG)) as tasks:
                    batch = [message(1, n, 20_000) for n in range(1, 20)]
                    tasks.start_soon(stream.send_many, batch)
                    await begun(stream, 2)
                    tasks.start_soon(stream.send, message(1, 20, 10))
                    await begun(stream, 3)
                    reader.start()
        checker.finish()
        assert checker.counts == {1: 21}


class TestClosing:
    """aclose sends what was accepted; abort does not; afterwards nothing goes."""

    async def test_aclose_sends_what_was_accepted(self, some: Link) -> None:
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
                await let_others_run(3)
                reader.start()
            assert sending.error is None
            assert stream.fileno() == -1
            for each in data:
                each.clear()
        checker.finish()
        assert checker.counts == {1: 4}

    async def test_abort_ends_every_sender(self, some: Link) -> None:
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
                    attempt(tasks, _wait_for, ticket),
                ]
                await let_others_run()
                stream.abort()
            for each in attempts:
                assert isinstance(each.error, StreamClosed)
            assert ticket.done()
            for message_ in data:
                poison(message_)
                message_.clear()
        assert_prefix(received, sent)
        assert 0 < len(received) < len(sent)

    async def test_buffers_are_free_when_aclose_or_abort_returns(
        self, some: Link, tmp_path: Path
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

    async def test_use_after_close(self, some: Link) -> None:
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

    async def test_leaving_by_exception_ends_within_the_linger(
        self, some: Link, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sending, "LINGER", 0.05)
        data = message(1, 0, BIG)
        before = anyio.current_time()
        with pytest.raises(ZeroDivisionError):
            async with some.sender() as stream:
                ticket = await stream.put(data)
                raise ZeroDivisionError
        assert 0.04 < anyio.current_time() - before < 2
        assert stream.fileno() == -1
        await let_others_run()
        assert ticket.done()
        data.clear()

    async def test_leaving_by_exception_sends_what_a_reader_takes(
        self, some: Link
    ) -> None:
        checker = Checker()
        async with reading(some, checker.feed):
            with pytest.raises(ZeroDivisionError):
                async with some.sender() as stream:
                    await stream.put(message(1, 0, BIG))
                    raise ZeroDivisionError
        checker.finish()
        assert checker.counts == {1: 1}

    async def test_leaving_by_exception_hides_no_exception(self, some: Link) -> None:
        with pytest.raises(ZeroDivisionError):
            async with some.sender() as stream:
                await stream.put(message(1, 0, BIG))
                some.kill_reader()
                raise ZeroDivisionError

    async def test_aclose_tells_that_the_reader_left(self, some: Link) -> None:
        stream = some.sender()
        await stream.put(message(1, 0, BIG))
        await begun(stream)
        async with anyio.create_task_group() as tasks:
            closing = attempt(tasks, stream.aclose)
            await let_others_run(3)
            some.kill_reader()
        assert isinstance(closing.error, StreamBroken)
        assert stream.fileno() == -1


class TestTickets:
    """A ticket says when the buffers of a put message are the caller's again."""

    async def test_awaited_twice_and_by_many(self, some: Link) -> None:
        checker = Checker()
        data = message(1, 0, BIG)
        async with reading(some, checker.feed, start=False) as reader:
            async with some.sender() as stream:
                ticket = await stream.put(data)
                assert not ticket.done()
                async with anyio.create_task_group() as tasks:
                    waiting = [attempt(tasks, _wait_for, ticket) for _ in range(5)]
                    await let_others_run(3)
                    assert not any(each.done for each in waiting)
                    with pytest.raises(BufferError):
                        data.clear()
                    reader.start()
                assert ticket.done()
                data.clear()
                await ticket
                await ticket
                assert all(each.error is None for each in waiting)
        checker.finish()

    async def test_done_at_once_where_there_is_room(self, pipe: Link) -> None:
        async with pipe.sender() as stream:
            data = bytearray(b"x" * 100)
            ticket = await stream.put(data)
            assert ticket.done()
            data.clear()
            await ticket
            assert pipe.unread() == 100

    async def test_of_a_broken_stream_raise_every_time(self, some: Link) -> None:
        async with some.sender() as stream:
            tickets = [await stream.put(message(1, n, BIG)) for n in range(3)]
            await begun(stream)
            some.kill_reader()
            for _ in range(2):
                for number, ticket in enumerate(tickets):
                    with pytest.raises(StreamBroken) as caught:
                        await ticket
                    assert (caught.value.bytes_sent > 0) == (number == 0)
            assert all(ticket.done() for ticket in tickets)
            stream.abort()

    async def test_in_any_order(self, some: Link) -> None:
        checker = Checker()
        async with reading(some, checker.feed), some.sender() as stream:
            tickets = [await stream.put(message(1, n, 200_000)) for n in range(6)]
            for ticket in reversed(tickets):
                await ticket
        checker.finish()


class TestReceiving:
    """What was sent arrives; a cancel loses nothing; the end is told."""

    SIZE = 400_000
    CALLS = ("receive", "receive_into", "receive_exactly")

    @pytest.fixture(params=KINDS)
    def source(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> Iterator[tuple[Link, bytes]]:
        data = bytes(payload(7, self.SIZE))
        with open_unread(request.param, tmp_path, data) as link:
            if link.kind == "file":
                wait_for_file(link, len(data))
            yield link, data

    @pytest.mark.parametrize("call", CALLS)
    async def test_all_and_the_end(self, source: tuple[Link, bytes], call: str) -> None:
        link, data = source
        received = bytearray()
        async with link.receiver() as stream:
            with pytest.raises(anyio.EndOfStream):
                while True:
                    received += await _receive(stream, call, 10_000)
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()
            assert stream.stats.bytes_received == len(data)
        assert_same(received, data)

    @pytest.mark.parametrize("call", CALLS)
    async def test_cancel_at_every_await_loses_nothing(
        self, source: tuple[Link, bytes], call: str
    ) -> None:
        link, data = source
        received = bytearray()
        async with link.receiver() as stream:
            for n in (1, 2, 3, 4, 5, 1, 1, 1):
                cancelled, piece = await cancelled_at(_receive(stream, call, 20_000), n)
                if not cancelled:
                    received += piece
                received += await stream.receive(999)
            with contextlib.suppress(anyio.EndOfStream):
                while True:
                    received += await stream.receive()
        assert_same(received, data)

    async def test_incomplete(self, source: tuple[Link, bytes]) -> None:
        link, data = source
        memory = bytearray([CANARY]) * (len(data) + 1_000)
        async with link.receiver() as stream:
            with pytest.raises(IncompleteReceive) as caught:
                await stream.receive_exactly(memory)
        assert caught.value.received == len(data)
        assert caught.value.total == len(memory)
        assert_same(memory[: len(data)], data)
        assert memory[len(data) :] == bytes([CANARY]) * 1_000

    async def test_one_task_at_a_time(self, some: Link) -> None:
        async with some.receiver() as stream:
            async with anyio.create_task_group() as tasks:
                waiting = attempt(tasks, stream.receive)
                await let_others_run(3)
                for call in self.CALLS:
                    with pytest.raises(anyio.BusyResourceError):
                        await _receive(stream, call, 10)
                assert not waiting.done
                tasks.cancel_scope.cancel()

    async def test_pending_receive_locks_the_buffer(self, some: Link) -> None:
        memory = bytearray(100)
        async with some.receiver() as stream:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.receive_exactly, memory)
                await let_others_run(3)
                with pytest.raises(BufferError):
                    memory.clear()
                tasks.cancel_scope.cancel()
            memory.clear()

    async def test_nothing_is_stored_after_a_cancel(self, some: Link) -> None:
        memory = bytearray(1_000)
        async with some.receiver() as stream, some.sender() as sender:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stream.receive_exactly, memory)
                await sender.send(b"a" * 400)
                await until(lambda: stream.stats.bytes_received == 400)
                tasks.cancel_scope.cancel()
            poison(memory)
            await sender.send(b"b" * 600)
            again = bytearray(1_000)
            await stream.receive_exactly(again)
        assert memory == bytes([POISON]) * 1_000
        assert again == b"a" * 400 + b"b" * 600

    async def test_close_ends_a_receive(self, some: Link) -> None:
        stream = some.receiver()
        async with anyio.create_task_group() as tasks:
            waiting = attempt(tasks, stream.receive)
            await let_others_run(3)
            await stream.aclose()
        assert isinstance(waiting.error, StreamClosed)
        for call in self.CALLS:
            with pytest.raises(StreamClosed):
                await _receive(stream, call, 10)

    async def test_abort_ends_a_receive(self, some: Link) -> None:
        stream = some.receiver()
        async with anyio.create_task_group() as tasks:
            waiting = attempt(tasks, stream.receive_exactly, bytearray(10))
            await let_others_run(3)
            stream.abort()
        assert isinstance(waiting.error, StreamClosed)

    async def test_empty_and_wrong_arguments(self, some: Link) -> None:
        async with some.receiver() as stream:
            assert await stream.receive_into(bytearray()) == 0
            await stream.receive_exactly(bytearray())
            for n in (0, -1):
                with pytest.raises(ValueError, match="positive"):
                    await stream.receive(n)
            with pytest.raises(BufferError):
                await stream.receive_into(b"read only")
            with pytest.raises(TypeError):
                await stream.receive_into("text")  # type: ignore[arg-type]


async def _receive(stream: ReceiveStream, call: str, n: int) -> bytes:
    if call == "receive":
        return await stream.receive(n)
    memory = bytearray(n)
    if call == "receive_exactly":
        await stream.receive_exactly(memory)
        return bytes(memory)
    return bytes(memory[: await stream.receive_into(memory)])


class TestEmptyMessages:
    """An empty message is nothing on the wire, and has its turn like any other."""

    async def test_nothing_is_sent(self, link: Link) -> None:
        received = bytearray()
        async with reading(link, received.extend), link.sender() as stream:
            await stream.send()
            await stream.send(b"")
            await stream.send(b"", bytearray(), memoryview(b""))
            await (await stream.put(b""))
            await stream.send_many([b"", b""])
            await stream.send(b"x", b"")
        assert received == b"x"

    async def test_waits_for_those_before_it(self, some: Link) -> None:
        async with reading(some, len, start=False) as reader:
            async with some.sender() as stream:
                async with stuck(stream, message(1, 0, BIG)) as tasks:
                    empty = attempt(tasks, stream.send, b"")
                    await let_others_run()
                    assert not empty.done
                    reader.start()
                assert empty.done


class TestThreads:
    """send_from_thread: one order with all others; the thread is what waits."""

    async def test_locks_the_buffer_and_sends_it(self, some: Link) -> None:
        checker = Checker()
        data = message(1, 1, BIG)
        async with reading(some, checker.feed, start=False) as reader:
            async with some.sender() as stream:
                async with stuck(stream, message(1, 0, BIG)):
                    thread = threading.Thread(
                        target=stream.send_from_thread, args=(data[:32], data[32:])
                    )
                    thread.start()
                    await begun(stream, 2)
                    assert thread.is_alive()
                    reader.start()
                await until(lambda: not thread.is_alive())
                await stream.send(message(1, 2, 10))
        checker.finish()
        assert checker.counts == {1: 3}

    async def test_refused_where_a_loop_runs(self, some: Link) -> None:
        async with some.sender() as stream:
            with pytest.raises(RuntimeError, match="event loop"):
                stream.send_from_thread(message(1, 0, BIG))
            assert stream.stats.messages_queued == 0

    async def test_close_ends_it(self, some: Link) -> None:
        stream = some.sender()
        data = message(1, 0, BIG)
        ends: list[object] = []
        thread = threading.Thread(
            target=lambda: ends.append(error_in_thread(stream.send_from_thread, data))
        )
        thread.start()
        await begun(stream)
        stream.abort()
        await until(lambda: not thread.is_alive())
        assert isinstance(ends[0], StreamClosed)
        data.clear()


TRANSFER = """
import links, oracle, pathlib

async def transfer(link, checker):
    async with links.reading(link, checker.feed, ours=True, start=False) as reader:
        async with link.sender() as stream:
            data = oracle.message(1, 0, links.BIG)
            async with links.stuck(stream, data) as tasks:
                tasks.cancel_scope.cancel()
            oracle.poison(data)
            data.clear()
            reader.start()
            await stream.send(oracle.message(1, 1, 30_000))
            await stream.send_many([oracle.message(1, n, 5_000) for n in range(2, 10)])

async def main():
    for kind in sys.argv[3:]:
        (folder := pathlib.Path(sys.argv[2]) / kind).mkdir()
        checker = oracle.Checker()
        with links.open_link(kind, folder) as link:
            await transfer(link, checker)
        checker.finish()
        assert checker.counts == {1: 10}
        print(kind)

run(main)
"""


class TestDegradation:
    """P7: where the kernel lacks or forbids a fast path, the result is the same."""

    @pytest.mark.parametrize("anyio_backend", ["asyncio"])
    @pytest.mark.parametrize(
        "fault",
        [
            "pwritev2,preadv2:error=EOPNOTSUPP",  # an old kernel, a FIFO
            "process_vm_readv:error=EPERM",  # a sandbox
            "process_vm_readv:error=ENOSYS",
            "pwritev2,writev,sendmsg,preadv2,readv,recvmsg:error=EINTR:when=2+3",
            "pwritev2,writev,sendmsg:error=ENOBUFS:when=3+9",
        ],
    )
    async def test_without_a_system_call(self, fault: str, tmp_path: Path) -> None:
        said = scripts.run(
            TRANSFER,
            "asyncio",
            str(tmp_path),
            *EACH_WAY,
            under=refusing(fault),
        )
        assert said.split() == list(EACH_WAY)

    async def test_untrusted_peer(self, tmp_path: Path) -> None:
        checker = Checker()
        with open_link("adopted", tmp_path) as link:
            stream = azc.open_writer(link.take_write_fd(), peer="untrusted")
            async with reading(link, checker.feed, start=False) as reader, stream:
                data = message(1, 0, BIG)
                async with stuck(stream, data) as tasks:
                    tasks.cancel_scope.cancel()
                poison(data)
                data.clear()
                reader.start()
                await stream.send(message(1, 1, BIG))
        checker.finish()
        assert checker.counts == {1: 2}
