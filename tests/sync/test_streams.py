"""Streams without an event loop: the promises, in threads."""

import asyncio
import contextlib
import gc
import linecache
import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
import scripts
from interruption import (
    HandedOver,
    Interruption,
    Lines,
    Place,
    is_exported,
    shown,
)
from links import (
    BIG,
    EACH_WAY,
    SOCKETS,
    STALLING,
    Link,
    PlainReader,
    begun_in_thread,
    open_link,
    open_unread,
)
from oracle import Checker, message, poison

from aiozerocopy import StreamBroken, StreamClosed, sync
from aiozerocopy._core import sending
from aiozerocopy._core.binding import lib
from aiozerocopy._core.pins import send_at_once
from aiozerocopy._core.waiter import LOOP_IS_CHEAP
from aiozerocopy.sync._waiting import SharedPort

ROOMS = ("sync",)
PATIENCE = 5.0  # seconds for something that happens at once or never


def sender(link: Link, **options: Any) -> sync.SendStream:
    opener = sync.wrap_socket if link.kind in SOCKETS else sync.open_writer
    return opener(link.take_write_fd(), **options)


def receiver(link: Link) -> sync.ReceiveStream:
    opener = sync.wrap_socket if link.kind in SOCKETS else sync.open_reader
    return opener(link.take_read_fd())


def wait_until(condition: Callable[[], object]) -> None:
    while not condition():
        os.sched_yield()


@contextlib.contextmanager
def reading(link: Link) -> Iterator[tuple[PlainReader, Checker]]:
    checker = Checker()
    reader = PlainReader(link, checker.feed)
    try:
        yield reader, checker
    finally:
        reader.start()
        reader._thread.join()
    assert reader._error is None
    checker.finish()


def in_thread(call: Callable[..., object], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=call, args=args)
    thread.start()
    return thread


@pytest.mark.parametrize("kind", EACH_WAY)
def test_what_is_sent_is_yours(kind: str, tmp_path: Path) -> None:
    with open_link(kind, tmp_path) as link, reading(link) as (reader, checker):
        reader.start()
        with sender(link) as stream:
            for sequence, size in enumerate((0, 10, 3000, BIG, 2 * BIG)):
                data = message(1, sequence, size)
                stream.send(data[:7], data[7:])
                poison(data)
            stream.send_many([message(1, 5, 50), message(1, 6, 60)])
            data = message(1, 7, BIG)
            ticket = stream.put(data)
            ticket.wait()
            assert ticket.done()
            data.clear()
            late = message(1, 8, BIG)
            ticket = stream.put(late)
            stream.flush()
            assert ticket.done()
            stream.put(message(1, 9, BIG))  # close sends it
            assert stream.stats.messages_sent >= 9
            assert stream.lane == "copy"
        assert stream.fileno() == -1
    assert checker.counts == {1: 10}


@pytest.mark.parametrize("kind", EACH_WAY)
def test_what_is_received(kind: str, tmp_path: Path) -> None:
    data = bytes(message(1, 0, BIG))
    with open_unread(kind, tmp_path, data) as link:
        with receiver(link) as stream:
            got = bytearray(1000)
            stream.receive_exactly(got)
            assert stream.receive_into(memoryview(got)[500:]) <= 500
            rest = bytearray(b"".join(stream))
            assert len(rest) >= len(data) - 1500
            assert data.endswith(rest)
            with pytest.raises(anyio.EndOfStream):
                stream.receive()
            assert stream.stats.bytes_received == len(data)


def test_pairs_of_our_own() -> None:
    with sync.pipe() as (reader, writer):
        writer.send(b"through a pipe")
        assert reader.receive() == b"through a pipe"
    with sync.socketpair() as (one, other):
        one.send(b"there")
        other.send(b"and back")
        assert (other.receive(), one.receive()) == (b"there", b"and back")
        one.send_eof()
        one.send_eof()
        other.send_fds(b"1", [0])
        received, fds = one.receive_fds(1, 1)
        for fd in fds:
            os.close(fd)
        assert (received, len(fds)) == (b"1", 1)
        assert list(other) == []


def test_exception_of_a_block_is_not_hidden() -> None:
    reader, writer = sync.pipe()
    with pytest.raises(ZeroDivisionError), writer:
        writer.put(b"before")
        reader.abort()
        writer.put(bytearray(BIG))
        1 / 0  # noqa: B018
    reader, writer = sync.pipe()
    with reader, pytest.raises(ZeroDivisionError), writer:
        writer.put(b"before")
        1 / 0  # noqa: B018
    with pytest.raises(StreamClosed):
        writer.send(b"after")


class TestFailures:
    @pytest.mark.parametrize("kind", STALLING)
    def test_reader_that_leaves(self, kind: str, tmp_path: Path) -> None:
        with open_link(kind, tmp_path) as link, sender(link) as stream:
            data = message(1, 0, 4 * BIG)
            end = begun_in_thread(stream.send, data)
            wait_until(lambda: stream.stats.bytes_sent)
            link.kill_reader()
            error = end()
            assert isinstance(error, StreamBroken)
            assert 0 < error.bytes_sent < error.total == len(data)
            assert isinstance(error.__cause__, OSError)
            data.clear()

    @pytest.mark.parametrize("end", ["close", "abort"])
    @pytest.mark.parametrize("call", ["send", "receive"])
    def test_end_of_the_stream_ends_calls(self, call: str, end: str) -> None:
        one, other = sync.socketpair()
        with other:
            args = [bytearray(8 * BIG)] if call == "send" else []
            ended = begun_in_thread(getattr(one, call), *args)
            if call == "send":
                wait_until(lambda: one.stats.messages_queued)
            else:
                wait_until(lambda: one._waiter.port._listener)
            if (call, end) == ("send", "close"):  # close waits for the message
                got = bytearray(8 * BIG)
                with_it = in_thread(other.receive_exactly, got)
                one.close()
                with_it.join()
                expected: type = type(None)
            else:
                getattr(one, end)()
                expected = StreamClosed
            assert isinstance(ended(), expected)

    def test_given_up_before_the_listener_has_noted_its_end(self) -> None:
        one, other = sync.socketpair()
        with one, other:
            port = one._waiter.port
            receive = one._it.receive(100)
            receive.send(None)
            port._listener = object()  # as if a thread listened without a turn
            other.send(b"came")
            wait_until(lambda: select.select([port], [], [], 0)[0])
            receive.close()
            port._listener = None
            other.send(b"next")
            assert one.receive() == b"came"

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="buffers in Python: 3.12")
    def test_taken_back_while_another_thread_releases_the_buffer(self) -> None:
        one, other = sync.socketpair()
        released, taken_back = threading.Event(), threading.Event()

        class Slow:
            def __buffer__(self, flags: int) -> memoryview:
                return memoryview(b"slow" * BIG)

            def __release_buffer__(self, view: memoryview) -> None:
                taken_back.wait(0.2)  # (it must not come)
                released.set()

        with one, other:
            port, channel = one._waiter.port, one._it._out
            operation = channel.send_now(port, [Slow()])
            other.receive_exactly(bytearray(4 * BIG))
            draining = in_thread(port.drain)
            wait_until(lambda: not operation.views)
            channel.take_back_blocking(port, operation)
            assert released.is_set()
            taken_back.set()
            draining.join()

    @pytest.mark.skipif(not LOOP_IS_CHEAP, reason="no thread takes the fast path")
    def test_interrupted_as_another_thread_ends_the_message(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, other = sync.socketpair()

        def interrupted(*given: Any) -> None:
            send_at_once(*given)
            other.receive_exactly(bytearray(4 * BIG))
            in_thread(one._waiter.port.drain).join()
            monkeypatch.undo()
            raise KeyboardInterrupt

        with one, other:
            one.send(b"bound")
            other.receive()
            monkeypatch.setattr(sending, "send_at_once", interrupted)
            with pytest.raises(KeyboardInterrupt):
                one.send(bytearray(4 * BIG))
            one.send(b"next")
            assert other.receive() == b"next"
            assert one._it._out.free()

    def test_listener_that_stops_again_leaves_the_next_one_alone(self) -> None:
        """An interrupted stop is repeated, when another thread may listen already."""
        one, other = sync.socketpair()
        with one, other:
            port, mine, next_one = one._waiter.port, object(), object()
            port._listener = mine
            port._stop(mine)
            port._listener = next_one
            port._stop(mine)
            assert port._listener is next_one
            port._listener = None

    def test_interrupted_as_a_port_is_made(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was opened is closed, and no finalizer complains."""

        def interrupt() -> None:
            raise KeyboardInterrupt

        fds = os.listdir("/proc/self/fd")
        monkeypatch.setattr(select, "poll", interrupt)
        with pytest.raises(KeyboardInterrupt):
            SharedPort()
        gc.collect()
        assert os.listdir("/proc/self/fd") == fds

    def test_abort_as_the_listener_begins_to_wait(self) -> None:
        """The fd must stay open, as another file could get its number."""
        one, other = sync.socketpair()
        port = one._waiter.port
        fds = []

        class Poll:
            ready = port._ready

            def poll(self, timeout: float | None) -> object:
                in_thread(one.abort).join()
                fds.append(lib.azc_port_fd(port.id))
                return self.ready.poll(timeout)

        def receive() -> None:
            with pytest.raises(StreamClosed):
                one.receive()

        port._ready = cast("Any", Poll())
        receiving = threading.Thread(target=receive, daemon=True)
        receiving.start()
        receiving.join(PATIENCE)
        assert not receiving.is_alive()
        other.close()
        assert min(fds) >= 0
        assert lib.azc_port_fd(port.id) < 0

    def test_stream_that_leaves_as_the_listener_stops(self) -> None:
        """The stream leaves the end of the port to the listener."""
        port = SharedPort()
        taken = []

        class Lock:
            lock = threading.RLock()

            def __enter__(self) -> None:
                self.lock.acquire()
                taken.append(self)
                if len(taken) == 3:  # (two are at the beginning)
                    port.leave()

            def __exit__(self, *error: object) -> None:
                self.lock.release()

        port._lock = cast("Any", Lock())
        port.drain()
        assert lib.azc_port_fd(port.id) < 0

    def test_connecting_fails(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            with sync.connect_tcp("127.0.0.1", port, timeout=5) as stream:
                there, _ = server.accept()
                with there:
                    stream.send(b"hello")
                    assert there.recv(10) == b"hello"
        with pytest.raises(ConnectionRefusedError, match=f"127.0.0.1:{port}"):
            sync.connect_tcp("127.0.0.1", port)
        with pytest.raises(FileNotFoundError, match="nobody"):
            sync.connect_unix("/nobody")


class TestThreads:
    def test_one_that_receives_wakes_one_that_sends(self) -> None:
        one, other = sync.socketpair()
        with one, other:
            first = in_thread(one.receive)
            wait_until(lambda: one._waiter.port._listener)
            sends = in_thread(one.send, bytearray(8 * BIG))
            wait_until(lambda: one._waiter.port._gates)
            got = bytearray(8 * BIG)
            other.receive_exactly(got)
            sends.join()
            assert first.is_alive()
            other.send(b"x")
            first.join()

    def test_that_receive_take_turns(self) -> None:
        with sync.pipe() as (reader, writer):
            ends = [begun_in_thread(reader.receive, 1) for _ in range(3)]
            writer.send(b"123")
            assert {end() for end in ends} == {b"1", b"2", b"3"}

    def test_whose_loop_runs_is_refused(self) -> None:
        with sync.pipe() as (reader, writer):

            async def main() -> None:
                for call in (
                    lambda: writer.send(b"1"),
                    lambda: writer.put(b"1"),
                    lambda: reader.receive(),
                    lambda: writer.close(),
                    lambda: sync.connect_tcp("localhost", 1),
                ):
                    with pytest.raises(RuntimeError, match="runs an event loop"):
                        call()
                # beside a running loop, a thread may call it
                await asyncio.to_thread(writer.send, b"from a thread")

            asyncio.run(main())
            assert reader.receive() == b"from a thread"
            assert writer.stats.messages_sent == 1
            with pytest.raises(RuntimeError, match="runs an event loop"):
                sync.run(calls_back, writer)  # in the portal's own thread


def test_run_takes_a_function() -> None:
    coroutine: Any = anyio.lowlevel.checkpoint()
    with pytest.raises(TypeError, match=r"write run\(function, \*arguments\), not run"):
        sync.run(coroutine)
    coroutine.close()


async def calls_back(writer: sync.SendStream) -> None:
    writer.send(b"1")


# ---- Ctrl-C --------------------------------------------------------------------------


class TestCtrlC:
    def test_ends_a_receive_which_loses_nothing(self) -> None:
        code = """
            from aiozerocopy import sync
            reader, writer = sync.pipe()
            with reader, writer:
                writer.send(b"begun")
                threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
                try:
                    reader.receive_exactly(got := bytearray(10))
                except KeyboardInterrupt:
                    got.clear()
                print(reader.receive())
        """
        assert scripts.run(code) == "b'begun'\n"

    def test_gives_bytes_back_before_another_thread_receives(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        one, other = sync.socketpair()
        got = []

        def receive() -> None:
            got.append(other.receive(1))

        def interrupted(call: Any) -> None:
            other._waiter.run(call())
            monkeypatch.undo()
            raise KeyboardInterrupt

        with one, other:
            one.send(b"12")
            other._turn = cast("Any", HandedOver(receive))
            monkeypatch.setattr(other, "_run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                other.receive(1)
            receive()
            assert got == [b"1", b"2"]

    def test_ends_what_the_portal_does(self) -> None:
        code = """
            from aiozerocopy import sync
            ended = threading.Event()
            async def forever():
                threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
                try:
                    await anyio.sleep_forever()
                finally:
                    ended.set()
            try:
                sync.run(forever)
            except KeyboardInterrupt:
                print(ended.is_set())
        """
        assert scripts.run(code) == "True\n"

    def test_storm_of_signals_leaves_no_thread_waiting(self) -> None:
        code = """
            warnings.filterwarnings("ignore", message=".*never awaited")
            from aiozerocopy import sync
            def interrupt(*_):
                raise KeyboardInterrupt
            signal.signal(signal.SIGALRM, interrupt)
            one, other = sync.socketpair()
            received, stop = [], threading.Event()
            def receive():
                received.append(sum(map(len, other)))
            def send():
                while not stop.is_set():
                    one.send(bytes(70_000))
            threads = [threading.Thread(target=each) for each in (receive, send)]
            for thread in threads:
                thread.start()
            data = bytearray(300_000)
            for hit in range(1000):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.0002 + hit % 40 / 20_000)
                    while True:
                        one.send(data)
                except KeyboardInterrupt:
                    data.append(0)  # it is ours
                    data.pop()
            stop.set()
            threads[1].join()
            one.send_eof()
            threads[0].join()
            print(received[0] % 10_000)
            one.close()
            other.close()
        """
        assert scripts.run(code) == "0\n"


class TestProcesses:
    def test_portal_whose_thread_does_not_start(self) -> None:
        """Or whose start is interrupted: the next call goes on from there."""
        code = """
            from aiozerocopy import sync
            start, fds = threading.Thread.start, []
            def refused(thread):
                raise RuntimeError("can't start new thread")
            def interrupted(thread):
                start(thread)
                raise KeyboardInterrupt
            for threading.Thread.start in (refused, refused, refused, interrupted):
                try:
                    sync.run(anyio.sleep, 0)
                except (RuntimeError, KeyboardInterrupt) as error:
                    assert error.__context__ is None
                    fds.append(len(os.listdir("/proc/self/fd")))
            threading.Thread.start = start
            for _ in range(3):
                sync.run(anyio.sleep, 0)
            while threading.active_count() > 2:  # one ends at once
                pass
            print(fds == fds[:1] * 4, len(os.listdir("/proc/self/fd")) == fds[0])
        """
        assert scripts.run(code) == "True True\n"

    def test_child_of_a_fork_is_told_and_has_a_portal_of_its_own(self) -> None:
        code = """
            warnings.simplefilter("ignore", DeprecationWarning)  # threads, and a fork
            from aiozerocopy import sync
            reader, writer = sync.pipe()
            sync.run(anyio.sleep, 0)
            late = bytearray(5 << 20)
            ticket = writer.put(late)
            if (child := os.fork()) == 0:
                for call in (ticket.wait, reader.receive, lambda: writer.send(b"1")):
                    try:
                        call()
                    except azc.StreamClosed as error:
                        assert "forked child" in str(error), error
                    else:
                        os._exit(1)
                writer.close()
                sync.run(anyio.sleep, 0)
                with sync.pipe() as (r, w):
                    w.send(b"1")
                    os._exit(r.receive() != b"1")
            _, status = os.waitpid(child, 0)
            threading.Thread(target=writer.close).start()
            with reader:
                print(status, len(b"".join(reader)))
        """
        assert scripts.run(code) == f"0 {5 << 20}\n"

    def test_threads_are_silent_at_the_exit(self, tmp_path: Path) -> None:
        # (Python may abort if one prints at its end: "could not acquire lock for ...")
        joins = "[each.join() for each in threads[1:]]"  # after all streams are closed
        before = f"import atexit; atexit.register(lambda: {joins})\n"
        code = """
            from aiozerocopy import sync
            reader, writer = sync.pipe()
            one, other = sync.socketpair()
            def send():
                while True:
                    one.send(bytes(70_000))
            async def receive():
                source, _ = ends = azc.pipe()
                opened.append(ends)
                await source.receive()
            def record():
                with sync.ffmpeg.Writer(sys.argv[1], (32, 32)) as film:
                    while True:
                        film.send(bytes(32 * 32 * 3))
                        opened.append(film)
            opened = []
            sync.run(anyio.sleep, 0)  # (3.10 crashes if a thread begins at the end)
            calls = (
                lambda: sync.run(anyio.sleep_forever), lambda: sync.run(receive),
                reader.receive, send, lambda: list(other), record,
            )
            threads = [threading.Thread(target=call, daemon=True) for call in calls]
            for thread in threads:
                thread.start()
            while not (len(opened) > 9 and reader._waiter.port._listener
                       and one.stats.bytes_sent > 10**6):
                pass
            print("here")
        """
        film = str(tmp_path / "film.mp4")
        process = scripts.start(code, film, before=before, warnings="ignore")
        assert scripts.finish(process) == (0, "here\n", "")


BUFFER = 8 * BIG


def play(call: str, lines: Lines) -> list[str]:
    """Make a call, with an interruption at one line; return complaints."""
    one, other = sync.socketpair()
    size = 1000 if call == "receive" else BUFFER
    data, got, complaints = bytearray(b"data" * (size // 4)), bytearray(), []
    sent = bytes(data)
    reader = threading.Thread(target=lambda: got.extend(b"".join(other)))
    if call == "receive":
        one.send(data)
    else:
        reader.start()
    try:
        with lines:
            if call == "receive":
                got += other.receive(100)
            else:
                getattr(one, call)(data)
    except Interruption:
        if is_exported(data):
            complaints.append("a traceback keeps the buffer, or C has it")
    if call == "receive":
        reader.start()
    ended = in_thread(one.close)
    ended.join(PATIENCE)
    if ended.is_alive():
        complaints.append("it cannot be closed")
        one.abort()
    reader.join(PATIENCE)
    if is_exported(data):
        complaints.append("the buffer is still borrowed")
    # (what is interrupted may send nothing, or all; a receive loses nothing)
    if got != sent and (got or lines.at is None or call == "receive"):
        complaints.append(f"{len(got):,} bytes are not the message")
    other.abort()
    return complaints


def play_with_a_file(call: str, lines: Lines) -> list[str]:
    """Do as `play`: a file and its bytes come with this call, or with the next."""
    one, other = sync.socketpair()
    one.send_fds(b"before", [0])
    data, fds = b"", []
    try:
        with lines:
            received = getattr(other, call)(10, 1)
        data, fds = received
    except Interruption:
        pass
    one.send(b"after")
    one.close()
    with other, contextlib.suppress(anyio.EndOfStream):
        while True:
            more, others = other.receive_fds(10, 1)
            data += more
            fds += others
    for fd in fds:
        os.close(fd)
    return [] if (data, len(fds)) == (b"beforeafter", 1) else [f"{data!r}, {fds}"]


@pytest.mark.timeout(60)
@pytest.mark.filterwarnings("ignore:.*never awaited")  # interrupted before it began
@pytest.mark.parametrize("call", ["send", "put", "receive", "receive_fds"])
def test_signal_at_any_line(call: str) -> None:
    played = play_with_a_file if call == "receive_fds" else play
    lines = Lines(None, ROOMS)
    assert not played(call, lines)
    assert lines.seen
    found: dict[Place, list[str]] = {}
    for place in dict.fromkeys(lines.seen):
        if linecache.getline(*place[:2]).lstrip().startswith("with self."):
            continue  # a tracer is called before the release, a handler is not
        if complaints := played(call, Lines(place, ROOMS)):
            found[place] = complaints
        if len(found) > 5:
            break
    assert not found, "\n".join(f"{shown(at)}: {it}" for at, it in found.items())
