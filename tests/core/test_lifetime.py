"""Forks, exits, lost fds, two loops: who owns streams and memory, and for how long."""

import fcntl
import gc
import os
import select
import weakref
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
import scripts
from links import (
    BIG,
    Link,
    attempt,
    begun,
    error_in_thread,
    open_link,
    others_wait,
    reading,
    stuck,
    until,
)
from oracle import Checker, assert_prefix, message, payload

import aiozerocopy as azc
from aiozerocopy import StreamBroken, StreamClosed
from aiozerocopy._core import lifetime
from aiozerocopy._core.borrows import Port, borrowed
from aiozerocopy._core.waiter import Waiter, current_waiter

every_loop = pytest.mark.parametrize("loop", ["asyncio", "uvloop", "trio"])
ADOPTED = ("adopted", "fifo", "file", "pty", "unix", "cat")


@pytest.fixture(params=ADOPTED)
def adopted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Link]:
    with open_link(request.param, tmp_path) as opened:
        yield opened


class TestFork:
    """The child's streams are dead and touch nothing; the parent goes on."""

    CHILD = """
    def is_dead(call, *arguments):
        coroutine = call(*arguments)
        try:
            coroutine.send(None)
        except azc.StreamClosed as error:
            return "forked child" in str(error)
        return False

    def fork():
        with warnings.catch_warnings():  # 3.12 and later warn about threads
            warnings.simplefilter("ignore", DeprecationWarning)
            return os.fork()

    def ends_well(pid):
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    """

    @every_loop
    def test_child_of_a_pending_send(self, loop: str) -> None:
        scripts.run(
            self.CHILD
            + """
    async def main():
        reader, writer = azc.pipe(1 << 16)
        one, other = azc.socketpair()
        data = bytes(range(256)) * 4096
        received = bytearray()
        async with reader, writer, one, other, anyio.create_task_group() as tasks:
            tasks.start_soon(writer.send, data)
            await begun(writer)
            ours = {os.readlink(f"/proc/self/fd/{stream.fileno()}")
                    for stream in (reader, writer, one, other)}
            pid = fork()
            if pid == 0:
                os._exit(child((reader, writer, one, other), ours))
            assert ends_well(pid)
            while len(received) < len(data):
                received += await reader.receive()
            await one.send(b"parent")
            assert await other.receive() == b"parent"
        assert received == data

    def child(streams, ours):
        reader, writer, one, _ = streams
        writer._waiter.leave = None  # (the loop is the parent's)
        alive = [
            call for call, *arguments in (
                (writer.send, b"child"), (writer.put, b"child"), (writer.flush,),
                (writer.send_many, [b"child"]), (one.send, b"child"),
                (reader.receive,), (reader.receive_into, bytearray(9)),
                (one.receive,), (one.send_eof,),
            )
            if not is_dead(call, *arguments)
        ]
        try:
            writer.send_from_thread(b"child")
        except (azc.StreamClosed, RuntimeError):
            pass
        for stream in streams:
            if stream is not one:  # (`one` is only aborted)
                try:
                    stream.aclose().send(None)
                except StopIteration:
                    pass
            stream.abort()
        held = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                if os.path.exists(f"/proc/self/fd/{fd}")}
        print(*alive, *(held & ours), end="", flush=True)
        return 1 if alive or held & ours else 0

    run(main)
    """,
            loop,
        )


@pytest.mark.anyio
class TestNumbers:
    """A stream is tied to its file, not to a number: other files get no byte."""

    @pytest.mark.parametrize("somewhere", [True, False], ids=["dup lives", "last"])
    @pytest.mark.parametrize("kind", ["pipe", "adopted", "fifo", "pty", "unix"])
    async def test_our_number_is_anothers_during_a_send(
        self, kind: str, somewhere: bool, tmp_path: Path
    ) -> None:
        data = message(1, 0, BIG)
        sent = bytes(data)
        with open_link(kind, tmp_path) as link:
            received = bytearray()
            async with reading(link, received.extend, start=False) as reader:
                stream = link.sender()
                async with anyio.create_task_group() as tasks:
                    sending = attempt(tasks, stream.send, data)
                    await begun(stream)
                    number = stream.fileno()
                    # The pipe is full, so no call is between its check and its write.
                    await until(lambda: not select.select([], [number], [], 0)[1])
                    spare = os.dup(number) if somewhere else -1
                    other = _put_a_file_at(number, tmp_path / "other")
                    reader.start()
                    if somewhere:
                        await until(lambda: sending.done)
                        os.close(spare)
                    else:
                        await reader.finish()  # no fd leads to the pipe any more
                    stream.abort()
                error = StreamBroken if somewhere else (StreamBroken, StreamClosed)
                assert isinstance(sending.error, error)
                data.clear()
                assert os.fstat(other).st_size == 0  # still open, and empty
                os.close(other)
        assert_prefix(received, sent)

    async def test_the_same_file_again_goes_unnoticed(self, tmp_path: Path) -> None:
        """Its device and inode are those that the stream knows."""
        path = tmp_path / "file"
        stream = azc.open_writer(path.open("wb"))
        await stream.send(b"one")
        _put_a_file_at(stream.fileno(), path)
        await stream.send(b"of")
        await stream.aclose()
        assert path.read_bytes() == b"ofe"


@every_loop
def test_standard_files_that_a_daemon_has_closed(loop: str) -> None:
    """Nothing of ours takes their numbers, to which other code may still write."""
    scripts.run(
        """
    def check():
        for fd in 0, 1, 2:
            assert not os.path.lexists(f"/proc/self/fd/{fd}"), fd

    async def main():
        one, source = azc.socketpair()
        sink, other = azc.socketpair()
        for fd in 0, 1, 2:
            os.close(fd)
        async def pass_on():
            await azc.relay(source, sink)  # it has a pipe of its own
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pass_on)
            await one.send(b"x")
            await other.receive()
            check()
            tasks.cancel_scope.cancel()
        async with azc.pipe() as (reader, writer), anyio.create_task_group() as tasks:
            tasks.start_soon(writer.send, bytes(4 << 20))  # the pump's work
            await reader.receive_exactly(bytearray(4 << 20))
            check()
        for stream in (one, other, source, sink):
            stream.abort()

    run(main)
    """,
        loop,
    )


@pytest.mark.anyio
@pytest.mark.parametrize("end", ["aclose", "abort", "reset"])
async def test_closing_twice_closes_nobody_elses_file(pipe: Link, end: str) -> None:
    read_fd = pipe.take_read_fd()
    reader, stream = azc.open_reader(read_fd), pipe.sender()
    await stream.send(b"x")
    numbers = {reader.fileno(), stream.fileno()}
    if end == "reset":
        reader.abort()
        with pytest.raises(StreamBroken):
            await stream.send(b"x")
    for each in (reader, stream):
        if end == "aclose":
            await each.aclose()
        else:
            each.abort()
    others: list[int] = []
    while not numbers <= set(others):
        others.append(os.open(os.devnull, os.O_RDONLY))
    for each in (reader, stream):
        await each.aclose()
        each.abort()
    del reader, stream, each
    gc.collect()
    for fd in others:
        os.close(fd)


def _put_a_file_at(number: int, path: Path) -> int:
    """Close number without the package's knowledge, and open a file there."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    if fd != number:
        os.dup2(fd, number, inheritable=False)
        os.close(fd)
    return number


@pytest.mark.anyio
class TestModes:
    """All fds of a file share its blocking mode: we leave it as it was."""

    @pytest.mark.parametrize("blocking", [True, False])
    async def test_flags_stay(self, adopted: Link, blocking: bool) -> None:
        fd = adopted.take_write_fd()
        os.set_blocking(fd, blocking)
        spare = os.dup(fd)
        flags = fcntl.fcntl(spare, fcntl.F_GETFL)
        checker = Checker()
        async with reading(adopted, checker.feed, start=False) as reader:
            async with azc.open_writer(fd) as stream:
                assert fcntl.fcntl(spare, fcntl.F_GETFL) == flags
                if adopted.kind != "file":
                    async with stuck(stream, message(1, 0, BIG)):
                        assert fcntl.fcntl(spare, fcntl.F_GETFL) == flags
                        reader.start()
                await stream.send(message(1, 1 if checker.counts else 0, 100))
            assert fcntl.fcntl(spare, fcntl.F_GETFL) == flags
            os.close(spare)
        checker.finish()

    @pytest.mark.parametrize("blocking", [True, False])
    async def test_flags_of_a_reader_stay(self, adopted: Link, blocking: bool) -> None:
        fd = adopted.take_read_fd()
        os.set_blocking(fd, blocking)
        spare = os.dup(fd)
        flags = fcntl.fcntl(spare, fcntl.F_GETFL)
        async with azc.open_reader(fd) as receiver:
            async with adopted.sender() as sender, anyio.create_task_group() as tasks:
                if adopted.kind == "file":
                    await sender.send(b"abc")
                waiting = attempt(tasks, receiver.receive_exactly, bytearray(3))
                await others_wait()
                assert fcntl.fcntl(spare, fcntl.F_GETFL) == flags
                await sender.send(b"abc")
                await until(lambda: waiting.done)
                assert waiting.error is None
        assert fcntl.fcntl(spare, fcntl.F_GETFL) == flags
        os.close(spare)


class TestLoops:
    """A stream belongs to the loop that first used it."""

    def test_no_loop(self, pipe: Link) -> None:
        stream = pipe.sender()
        data = bytearray(10)
        coroutine = stream.send(data)
        with pytest.raises(RuntimeError):
            coroutine.send(None)
        data.clear()
        stream.send_from_thread(b"threads need none")
        stream.abort()

    @pytest.mark.anyio
    async def test_abort_as_it_is_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """For example by another thread, which finds no waiter yet."""

        def aborts() -> Waiter:
            ends.one.abort()
            return current_waiter()

        ends, before = azc.socketpair(), dict(borrowed)
        async with ends.other:
            await ends.other.send(b"x")
            monkeypatch.setattr(lifetime, "current_waiter", aborts)
            with pytest.raises(StreamClosed):
                await ends.one.send(b"x")
            assert len(current_waiter()._users) == 1
            assert len(borrowed) == len(before) + 1

    def test_a_closed_stream_that_is_kept_keeps_no_port(self) -> None:
        """Operations that end after their loop are noticed by a sweep of lost ports.
        A kept port is not lost: memory would stay borrowed while the stream lives."""
        ends = azc.socketpair()

        async def use() -> weakref.ref[Port]:
            await ends.one.send(b"x")
            assert ends.one._waiter is not None
            port = weakref.ref(ends.one._waiter.port)
            for stream in ends:
                stream.abort()
            return port

        port = anyio.run(use)
        gc.collect()
        assert port() is None


@pytest.mark.anyio
class TestClosed:
    """After the close, accepted messages are out, or an error says otherwise."""

    async def test_after_a_failure_of_which_the_loop_has_not_heard(self) -> None:
        reader, writer = azc.pipe()
        ticket = await writer.put(bytes(2 * BIG))  # more than the pipe holds
        reader.abort()
        while writer.stats.messages_queued:  # the loop has no turn meanwhile
            pass
        with pytest.raises(StreamBroken, match="reader is gone"):
            await writer.aclose()
        assert ticket.done()


# A task that sends, and an action once it is stuck.  (`_start` looks for WAIT.)
SENDS = """
    stuck = threading.Event()

    async def main():  # WAIT
        task = asyncio.create_task(stream.send(data[0]))
        await begun(stream)
        print("stuck", flush=True)
        {}
        stuck.set()
        await task

    async def in_a_group():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(main)

    {}
    """
RUN = "asyncio.run(main())"
IN_A_DAEMON = """
    thread = threading.Thread(target=run, args=({},), daemon=True)
    thread.start()
    stuck.wait()
    late = thread.join
"""
ENDS = {
    "exit in a task": (5, SENDS.format("sys.exit(5)", RUN)),
    "exit in a callback": (
        5,
        SENDS.format("asyncio.get_running_loop().call_soon(sys.exit, 5)", RUN),
    ),
    "daemon with a loop": (0, SENDS.format("", IN_A_DAEMON.format("main"))),
    "daemon with a group": (0, SENDS.format("", IN_A_DAEMON.format("in_a_group"))),
    "daemon that sends": (
        0,
        """
    thread = threading.Thread(  # WAIT
        target=stream.send_from_thread, args=(data[0],), daemon=True
    )
    thread.start()
    late = thread.join
    asyncio.run(begun(stream))
    print("stuck", flush=True)
    """,
    ),
}


class TestExit:
    """The interpreter may end at any time: an intact prefix, a warning, no crash."""

    SENDER = """
    import oracle
    fd = int(sys.argv[2])
    stream = azc.open_writer(fd)
    data = [oracle.message(1, n, 1 << 20) for n in range(3)]
    late = lambda: None
    from aiozerocopy._core.borrows import borrowed
    borrowed[0] = [type("Held", (), {"__del__": lambda _: os.write(2, b"freed")})()]
    """
    BEFORE = "import atexit; atexit.register(lambda: late())"  # runs after ours

    def _start(self, code: str, loop: str = "asyncio") -> tuple[bytes, int, str]:
        """Run a program that sends to a pipe; return data, exit status and stderr."""
        read_fd, write_fd = os.pipe()
        process = scripts.start(
            self.SENDER + code,
            loop,
            str(write_fd),
            warnings="default",
            before=self.BEFORE,
            pass_fds=[write_fd],
        )
        os.close(write_fd)
        with process, open(read_fd, "rb") as reader:
            received = b""
            if "WAIT" in code:  # the program says when the pipe is full
                assert process.stdout is not None
                assert process.stdout.readline() == "stuck\n"
                process.wait(timeout=15)
            received = reader.read()
            _, complained = process.communicate(timeout=15)
        assert "freed" not in complained
        sent = b"".join(message(1, n, 1 << 20) for n in range(3))
        assert_prefix(received, sent)
        return received, process.returncode, complained

    @every_loop
    def test_with_sends_pending(self, loop: str) -> None:
        received, status, complained = self._start(
            """
    async def main():  # WAIT
        for each in data:
            await stream.put(each)
        await begun(stream)
        print("stuck", flush=True)
    run(main)
    """,
            loop,
        )
        assert status == 0
        assert 0 < len(received) < 3 << 20
        lost = 3 * ((1 << 20) + 32) - len(received)
        assert f"{lost:,} bytes were still queued" in complained
        assert "Traceback" not in complained

    @pytest.mark.parametrize("end", ENDS)
    def test_in_the_middle_of_a_send(self, end: str) -> None:
        expected, code = ENDS[end]
        received, status, complained = self._start(code)
        assert status == expected
        assert 0 < len(received) < 1 << 20
        assert "Fatal" not in complained
        assert status or "Exception" not in complained  # in its thread


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "uvloop"], indirect=True)
async def test_cancelled_while_others_run_cancels_nobody_else() -> None:
    """A send with a spent budget yields; a cancel then must not hit another send.

    (On trio the yield is shielded, and tasks have no order.)
    """
    near, far = azc.socketpair()
    data = payload(2, BIG)
    received = bytearray(1 + BIG)
    async with near, far, anyio.create_task_group() as tasks:
        await near.send(b"x")
        for _ in range(near._budget - 2):
            await near.send(b"")
        await far.receive_exactly(bytearray(1))
        scope = anyio.CancelScope()

        async def first() -> None:
            with scope:
                await near.send(b"a")

        tasks.start_soon(first)
        other = attempt(tasks, near.send, data)
        await anyio.lowlevel.checkpoint()
        scope.cancel()
        await far.receive_exactly(received)
        await until(lambda: other.done)
    assert other.error is None
    assert bytes(received[1:]) == data


@pytest.mark.anyio
async def test_nothing_is_kept_of_what_is_over(pipe: Link) -> None:
    """A program that runs for long would grow with every message."""
    before = set(borrowed)
    received = bytearray()
    async with reading(pipe, received.extend):
        async with pipe.sender() as stream:
            for _ in range(3):
                await stream.send(bytes(BIG))
                await (await stream.put(bytes(BIG)))
                await stream.send_many([bytes(BIG), b"x"])
                await stream.send(bytearray(50), b"x" * 49)
                await stream.put(b"x")
            assert stream._waiter is not None
            operations = stream._waiter.port.operations
            # (a stream may keep one prepared operation for its next message)
            assert len(operations) <= 1
            assert len(set(borrowed) - before) <= 1
        await until(lambda: not operations and set(borrowed) <= before)
    assert len(received) == 9 * BIG + 3 * 101


def test_a_first_use_that_fails_leaves_the_stream_to_other_threads() -> None:
    one, other = azc.socketpair()
    with pytest.raises(RuntimeError, match="event loop"):
        one.send(b"x").send(None)
    assert error_in_thread(anyio.run, one.send, b"x") is None
    one.abort()
    other.abort()
