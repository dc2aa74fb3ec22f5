"""Splitter: every reader has an unbroken piece of what came, and so has the file."""

import errno
import gc
import io
import math
import os
import random
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import scripts
from answering import Answering
from anyio.abc import ByteReceiveStream
from limits import files_up_to
from links import linux_only, refusing, until
from own_threads import TASKS, thread_ids

import aiozerocopy as azc
from aiozerocopy import StreamClosed
from aiozerocopy._core import fork_and_exit, splitting
from aiozerocopy._core.binding import PORTABLE
from aiozerocopy._core.pipe_size import PIPE_SIZE, enlarge_pipe
from aiozerocopy._core.splitting import Split, SplitterReader

pytestmark = [pytest.mark.anyio, linux_only]

DATA = random.Random(7).randbytes(5_000_000)
SMALL = 1 << 16  # bytes that a pipe holds


@pytest.fixture
def small_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A splitter's pipes hold little."""
    monkeypatch.setattr("aiozerocopy.splitter.PIPE_SIZE", SMALL)


async def content(reader: azc.ReceiveStream) -> bytes:
    """All that comes until the end."""
    received = bytearray()
    async with reader:
        async for data in reader:
            received += data
    return bytes(received)


class Collector:
    """Readers that are read to their ends, each by a task."""

    def __init__(self, tasks: anyio.abc.TaskGroup, *readers: azc.ReceiveStream) -> None:
        self.contents: dict[azc.ReceiveStream, bytes] = {}
        for reader in readers:
            tasks.start_soon(self._collect, reader)

    async def _collect(self, reader: azc.ReceiveStream) -> None:
        self.contents[reader] = await content(reader)


async def wait_for_state(splitter: azc.Splitter, **wanted: int) -> None:
    await until(lambda: all(getattr(splitter, one) == n for one, n in wanted.items()))


# ---- what everybody gets -----------------------------------------------------------


async def test_every_reader_and_the_file_get_every_byte(tmp_path: Path) -> None:
    async with azc.pipe() as (source, writer):
        path = tmp_path / "film.ts"
        async with azc.Splitter(source, path, patience=math.inf) as splitter:
            readers = [await splitter.join() for _ in range(3)]
            async with anyio.create_task_group() as tasks:
                collected = Collector(tasks, *readers)
                await writer.send(DATA)
                await writer.aclose()
                assert await splitter.wait() == len(DATA)
            assert splitter.lane == ("copy" if PORTABLE else "tee")
            assert (splitter.readers, splitter.dropped) == (0, 0)
        assert [collected.contents[reader] for reader in readers] == [DATA] * 3
        assert {reader.ended for reader in readers} == {"end"}
        assert path.read_bytes() == DATA


async def test_childs_output_is_split() -> None:
    command = [sys.executable, "-c", "print('x' * 3_000_000, end='')"]
    async with azc.open_process(command, stdin=False, stdout=True) as child:
        assert child.stdout is not None
        async with azc.Splitter(child.stdout, patience=math.inf) as splitter:
            reader = await splitter.join()
            received = await content(reader)
            assert await splitter.wait() >= len(received)
    assert received == b"x" * len(received)  # (it may have begun before we joined)


@pytest.mark.parametrize("unit", [1, 188])
async def test_who_joins_later_has_the_rest(unit: int) -> None:
    async with (
        azc.pipe() as (source, writer),
        azc.Splitter(source, patience=math.inf, unit=unit) as one,
    ):
        await writer.send(DATA[:1000])
        await wait_for_state(one, taken=1000)
        reader = await one.join()
        async with anyio.create_task_group() as tasks:
            collected = Collector(tasks, reader)
            await writer.send(DATA[1000:])
            await writer.aclose()
            await one.wait()
    begin = -(-1000 // unit) * unit
    assert collected.contents[reader] == DATA[begin:]


class Counting:
    """A thread that writes number after number into a pipe."""

    def __init__(self, writer: azc.SendStream) -> None:
        self.begun = -1  # the latest that it has begun to write
        self._is_over = False
        self._writer = writer
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over:
            number = self.begun + 1
            self.begun = number
            self._writer.send_from_thread(number.to_bytes(8, "big"))

    def end(self) -> None:
        self._is_over = True
        self._thread.join()


async def test_who_joins_has_what_is_sent_then() -> None:
    """However soon it is sent, and although another reader has all."""
    async with azc.pipe() as (source, writer):
        async with azc.Splitter(source, unit=8, patience=math.inf) as splitter:
            async with anyio.create_task_group() as tasks:
                Collector(tasks, await splitter.join())
                counting = Counting(writer)
                try:
                    for _ in range(1_000):
                        reader = await splitter.join()
                        next_one = counting.begun + 1
                        first = bytearray(8)
                        await reader.receive_exactly(first)
                        assert int.from_bytes(first, "big") <= next_one
                        reader.abort()
                finally:
                    counting.end()
                await writer.aclose()


async def test_reader_that_was_finalized_can_still_be_asked() -> None:
    """By a finalizer of the same cycle, which the collector calls later."""

    class Asks:
        def __init__(self, reader: azc.SplitterReader) -> None:
            self.reader = reader

        def __del__(self) -> None:
            told.append(self.reader.ended)

    told: list[str | None] = []
    source, sink = azc.pipe()
    async with source, sink, azc.Splitter(source) as splitter:
        reader = await splitter.join()
        cycle: list[object] = [reader, Asks(reader)]
        cycle.append(cycle)
        reader.cycle = cycle  # type: ignore[attr-defined]
        cycle[1].cycle = cycle  # type: ignore[attr-defined]
        with pytest.warns(ResourceWarning):
            del reader, cycle
            gc.collect()
        assert told == ["stopped"]


async def test_without_readers_all_is_taken() -> None:
    async with azc.pipe(SMALL) as (source, writer):
        async with azc.Splitter(source) as splitter:
            await writer.send(DATA)
            await writer.aclose()
            assert await splitter.wait() == len(DATA)
            with pytest.raises(azc.StreamClosed, match="come to its end"):
                await splitter.join()


async def test_source_that_is_no_pipe() -> None:
    async with (
        azc.socketpair() as (source, writer),
        azc.Splitter(source, patience=math.inf) as splitter,
    ):
        readers = [await splitter.join() for _ in range(2)]
        async with anyio.create_task_group() as tasks:
            collected = Collector(tasks, *readers)
            await writer.send(DATA)
            await writer.aclose()
            assert await splitter.wait() == len(DATA)
    assert [collected.contents[reader] for reader in readers] == [DATA] * 2


class Chunks(ByteReceiveStream):
    """A stream that is not of this package."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await anyio.lowlevel.checkpoint()
        if not self._data:
            raise anyio.EndOfStream
        chunk, self._data = self._data[:max_bytes], self._data[max_bytes:]
        return chunk

    async def aclose(self) -> None:
        """Nothing is open."""


async def test_source_of_another_package() -> None:
    async with azc.Splitter(Chunks(DATA), patience=math.inf) as splitter:
        reader = await splitter.join()
        received = await content(reader)
        assert await splitter.wait() == len(DATA)
    assert received == DATA[len(DATA) - len(received) :]


async def test_what_was_received_before_comes_first() -> None:
    async with azc.pipe() as (source, writer):
        await writer.send(b"before, ")
        source._unread = await source.receive()
        async with azc.Splitter(source) as splitter:
            reader = await splitter.join()
            await writer.send(b"after")
            await writer.aclose()
            assert await splitter.wait() == 13
            assert (b"before, after").endswith(await content(reader))


async def test_source_is_nobody_elses_meanwhile() -> None:
    async with azc.pipe() as (source, writer), azc.socketpair() as (near, _):
        async with azc.Splitter(source):
            for taking in (source.receive(), azc.relay(source, near)):
                with pytest.raises(anyio.BusyResourceError):
                    await taking
            with pytest.raises(anyio.BusyResourceError):
                async with azc.Splitter(source):
                    pass
        await writer.send(b"more")
        assert await source.receive() == b"more"


@pytest.mark.parametrize("is_waited_for", [True, False])
async def test_source_that_breaks_is_told(is_waited_for: bool) -> None:
    async with azc.socketpair() as (source, writer):
        await source.send(b"unread, so that its peer's close is a reset")
        with pytest.raises(azc.StreamBroken, match="reset"):
            async with azc.Splitter(source) as splitter:
                reader = await splitter.join()
                await writer.send(b"some")
                await wait_for_state(splitter, taken=4)
                writer.abort()
                assert await content(reader) == b"some"
                if is_waited_for:
                    await splitter.wait()


async def test_small_pieces() -> None:
    pieces = [DATA[at : at + 7] for at in range(0, 70_000, 7)]
    async with azc.pipe() as (source, writer):
        async with azc.Splitter(source, patience=math.inf, unit=5) as splitter:
            readers = [await splitter.join() for _ in range(3)]
            async with anyio.create_task_group() as tasks:
                collected = Collector(tasks, *readers)
                for piece in pieces:
                    await writer.send(piece)
                await writer.aclose()
                await splitter.wait()
    assert [*collected.contents.values()] == [b"".join(pieces)] * 3


@pytest.mark.parametrize("first", ["the lender", "the splitter"])
async def test_pages_are_lent_or_split(first: str) -> None:
    """Who has lent ones by tee would see what the frame holds later."""
    pool = azc.FramePool((1 << 20,), slots=1)
    read_fd, write_fd = os.pipe()
    if first == "the lender":
        feeder = azc.open_writer(write_fd, peer="reads")
    async with azc.open_reader(read_fd) as source, azc.Splitter(source) as splitter:
        if first == "the splitter":
            feeder = azc.open_writer(write_fd, peer="reads")
        assert (splitter.lane == "copy") == (first == "the lender" or PORTABLE)
        reader = await splitter.join()
        frame = await pool.acquire()
        frame.view[:] = DATA[: 1 << 20]
        async with feeder:
            await feeder.send(frame.view)
            frame.view[:] = bytes(1 << 20)
            frame.release()
        await splitter.wait()
        assert await content(reader) == DATA[: 1 << 20]


# ---- slow readers, and those who leave ----------------------------------------------


@pytest.mark.usefixtures("small_pipes")
async def test_stuck_reader_is_dropped_and_the_others_go_on() -> None:
    data = DATA[: 8 * SMALL]
    async with azc.pipe() as (source, writer):
        async with azc.Splitter(source, patience=0.05) as splitter:
            stuck, good = await splitter.join(), await splitter.join()
            enlarge_pipe(good.fileno(), PIPE_SIZE)  # it is never full
            await writer.send(data)
            await writer.aclose()
            assert await splitter.wait() == len(data)
            assert splitter.dropped == 1
        assert (stuck.ended, good.ended) == ("too slow", "end")
        assert await content(good) == data
        received = await content(stuck)
        assert received == data[: len(received)]
        assert 0 < len(received) <= SMALL


@pytest.mark.usefixtures("small_pipes")
async def test_all_wait_for_the_slowest_if_asked() -> None:
    async with azc.pipe(SMALL) as (source, writer):
        async with azc.Splitter(source, patience=math.inf) as one:
            slow, quick = await one.join(), await one.join()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(writer.send, DATA)
                collected = Collector(tasks, quick)
                received = bytearray()
                while len(received) < len(DATA):
                    received += await slow.receive(50_000)
                    assert one.taken <= len(received) + 2 * SMALL
                await writer.aclose()
            await slow.aclose()
            assert one.dropped == 0
    assert received == collected.contents[quick] == DATA


async def test_reader_that_leaves() -> None:
    async with azc.pipe() as (source, writer), azc.Splitter(source) as splitter:
        leaving, staying = await splitter.join(), await splitter.join()
        await wait_for_state(splitter, readers=2)
        await leaving.aclose()
        await wait_for_state(splitter, readers=1)  # although nothing is sent
        async with anyio.create_task_group() as tasks:
            collected = Collector(tasks, staying)
            await writer.send(DATA)
            await writer.aclose()
            await splitter.wait()
        assert splitter.dropped == 0
    assert collected.contents[staying] == DATA


# ---- the end before the source's ---------------------------------------------------


@pytest.mark.usefixtures("small_pipes")
async def test_what_was_not_taken_stays_in_the_source() -> None:
    async with azc.pipe() as (source, writer):
        async with azc.Splitter(source, patience=math.inf) as one:
            reader = await one.join()
            with pytest.raises(anyio.BusyResourceError):
                await source.receive()
            await writer.put(DATA)
            await wait_for_state(one, taken=SMALL)
        assert reader.ended == "stopped"
        assert await content(reader) == DATA[:SMALL]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.aclose)
            assert await content(source) == DATA[SMALL:]


@pytest.mark.usefixtures("small_pipes")
async def test_what_was_read_ahead_is_given_back() -> None:
    async with azc.socketpair() as (source, writer):
        async with azc.Splitter(source, patience=math.inf) as one:
            reader = await one.join()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(writer.send, DATA)
                await until(lambda: one.taken)
                await one.aclose()
                received = await content(reader)
                assert received[: one.taken] == DATA[: one.taken]
                tasks.start_soon(writer.aclose)
                assert await content(source) == DATA[one.taken :]


async def test_wait_after_the_end_is_refused() -> None:
    async with azc.pipe() as (source, _), azc.Splitter(source) as splitter:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(splitter.aclose)
            with pytest.raises(azc.StreamClosed, match="before its source's end"):
                await splitter.wait()
        with pytest.raises(azc.StreamClosed, match="async with"):
            await splitter.join()


async def test_dropped_without_a_close_it_warns() -> None:
    async with azc.pipe() as (source, _):
        splitter = azc.Splitter(source)
        with pytest.warns(ResourceWarning, match="unclosed <Splitter"):
            split = splitter._split
            assert split is None
            entered = splitter.__aenter__()
            await entered
            reader = await splitter.join()
            undo, splitter._undo = splitter._undo, None
            splitter.__del__()
        assert undo is not None
        assert await content(reader) == b""
        assert reader.ended == "stopped"
        await splitter.aclose()
        await undo.aclose()


# ---- the file ----------------------------------------------------------------------


@pytest.mark.parametrize("is_waited_for", [True, False])
async def test_full_disk_is_told_and_the_readers_go_on(
    is_waited_for: bool, tmp_path: Path
) -> None:
    path, room = tmp_path / "film", 100_000
    said = "the file has only 100,000 of"
    with files_up_to(room), pytest.raises(azc.StreamBroken, match=said) as told:
        async with (
            azc.pipe() as (source, writer),
            azc.Splitter(source, path, patience=math.inf) as one,
        ):
            reader = await one.join()
            async with anyio.create_task_group() as tasks:
                collected = Collector(tasks, reader)
                await writer.send(DATA)
                await writer.aclose()
            if is_waited_for:
                await one.wait()
    assert (told.value.bytes_sent, told.value.total) == (room, len(DATA))
    assert isinstance(told.value.__cause__, OSError)
    assert collected.contents[reader] == DATA
    assert path.read_bytes() == DATA[:room]


@pytest.mark.parametrize("mode", ["ab", "r+b"])
async def test_open_file_goes_on_where_it_is(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "film"
    path.write_bytes(b"before ")
    with path.open(mode) as file:
        file.seek(7)
        file.write(b"and ")
        async with azc.pipe() as (source, writer), azc.Splitter(source, file) as one:
            await writer.send(b"after")
            await writer.aclose()
            await one.wait()
        assert not file.closed
    assert path.read_bytes() == b"before and after"


async def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "film"
    path.touch()
    async with azc.pipe() as (source, writer):
        with pytest.raises(io.UnsupportedOperation, match="not a regular file"):
            azc.Splitter(source, writer.fileno())
        with path.open("rb") as file:
            with pytest.raises(io.UnsupportedOperation, match="for reading only"):
                azc.Splitter(source, file)
        with pytest.raises(IsADirectoryError):
            azc.Splitter(source, tmp_path)
        azc.Splitter(source, path)  # never entered
        with pytest.raises(ValueError, match="patience"):
            azc.Splitter(source, patience=-1)
        with pytest.raises(ValueError, match="unit"):
            azc.Splitter(source, unit=0)
    path.write_bytes(b"stays")
    async with azc.open_reader(os.open(path, os.O_RDONLY)) as source:
        with pytest.raises(ValueError, match="onto itself"):
            azc.Splitter(source, path)
    assert path.read_bytes() == b"stays"


# ---- other systems -----------------------------------------------------------------


PROGRAM = """
import sabotage

sabotage.apply(os.environ.get(sabotage.VARIABLE, ""))

async def main():
    async with azc.pipe() as (source, writer):
        async with azc.Splitter(source, sys.argv[2], patience=9, unit=3) as one:
            readers = [await one.join() for _ in range(2)]
            received = []
            async def collect(reader):
                async with reader:
                    received.append(b"".join([data async for data in reader]))
            async with anyio.create_task_group() as tasks:
                for reader in readers:
                    tasks.start_soon(collect, reader)
                await writer.send(bytes(range(256)) * 4000)
                late = await one.join()
                tasks.start_soon(collect, late)
                await writer.send(b"more")
                await writer.aclose()
                await one.wait()
            assert one.lane == sys.argv[3], one.lane
    whole = bytes(range(256)) * 4000 + b"more"
    assert all(whole.endswith(each) for each in received)
    assert sorted(map(len, received))[1:] == [len(whole)] * 2
    with open(sys.argv[2], "rb") as file:
        assert file.read() == whole

run(main)
"""


@pytest.mark.skipif(PORTABLE, reason="the portable build has no tee")
@pytest.mark.parametrize(
    ("fault", "lane"),
    [
        ("tee,splice:error=ENOSYS", "copy"),
        ("tee,splice:error=EINVAL", "copy"),
        ("tee,splice:error=EPERM", "copy"),
        ("tee,splice:error=ENOMEM:when=2+2", "tee"),  # for a while
        ("tee,splice,poll,writev:error=EINTR:when=1+2", "tee"),
        ("readv,pwritev2,poll,writev:error=EINTR:when=1+2", "tee"),
    ],
)
async def test_what_fails_in_the_kernel(fault: str, lane: str, tmp_path: Path) -> None:
    film = str(tmp_path / "film")
    scripts.run(PROGRAM, "asyncio", film, lane, under=refusing(fault))


HANDLED = sum(
    1 << number - 1
    for number in (signal.SIGALRM, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)
)


def blocked_signals(thread: int) -> int:
    status = (TASKS / str(thread) / "status").read_text()
    return int(re.findall(r"SigBlk:\s*(\w+)", status)[0], 16)


async def test_signals_do_not_reach_its_thread() -> None:
    """Python's handlers run in Python's threads, and a call of ours is interrupted."""
    before = thread_ids()
    async with azc.pipe() as (source, _), azc.Splitter(source):
        new = thread_ids() - before
        assert len(new) >= 1
        for thread in new:
            assert blocked_signals(thread) & HANDLED == HANDLED


async def test_forked_child_has_no_part_in_it() -> None:
    async with azc.pipe() as (source, writer), azc.Splitter(source) as splitter:
        reader = await splitter.join()
        await wait_for_state(splitter, readers=1)
        go_on, told = os.pipe()
        await writer.send(b"all")
        await wait_for_state(splitter, taken=3)
        child = os.fork()
        if child == 0:
            try:
                os.close(told)
                os.read(go_on, 1)  # until the parent has seen its reader's end
                splitter._split.stop()  # type: ignore[union-attr]
                os._exit(0)
            finally:
                os._exit(1)
        os.close(go_on)
        await splitter.aclose()
        assert await content(reader) == b"all"
        os.close(told)
        assert await anyio.to_thread.run_sync(os.waitpid, child, 0) == (child, 0)


# ---- one split, step by step ---------------------------------------------------------


class Source:
    """A pipe of which the read end is to be a split's."""

    def __init__(self) -> None:
        self.read_fd, self.fd = os.pipe()
        self.splits: list[Split] = []
        self.readers: list[SplitterReader] = []

    def split(self, patience: float = math.inf) -> Split:
        """It runs."""
        self.splits.append(Split(self.read_fd, -1, patience, 1))
        return self.splits[0]

    def end(self) -> None:
        fd, self.fd = self.fd, -1
        os.close(fd)

    async def close(self) -> None:
        os.close(self.read_fd)
        if self.fd >= 0:
            self.end()
        for split in self.splits:
            split.stop()
            await split.wait()
            split.close()
        for reader in self.readers:
            reader.abort()


@pytest.fixture
async def source() -> AsyncIterator[Source]:
    made = Source()
    yield made
    await made.close()


async def until_begun(split: Split, n: int) -> None:
    """Let others run until so many readers have begun."""
    await until(lambda: split.state().readers + split.state().dropped >= n)


class TestBegins:
    @pytest.mark.parametrize("with_file", [False, True])
    async def test_or_leaves_no_trace(
        self,
        source: Source,
        with_file: bool,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Whatever it is that stops it.  (conftest looks for what is left.)"""

        def interrupt(*_: object) -> Any:
            raise KeyboardInterrupt

        answering = Answering("azc_split_open", interrupt)
        monkeypatch.setattr(splitting, "lib", answering)
        with (tmp_path / "film").open("wb") as file:
            fd = file.fileno() if with_file else -1
            with pytest.raises(KeyboardInterrupt):
                Split(source.read_fd, fd, 1, 1)
            assert file.write(b"it is still ours") == 16

    @pytest.mark.parametrize(
        ("patience", "us"),
        [(0, 0), (2, 2_000_000), (math.inf, 2**64 - 1), (1e300, 2**64 - 1)],
    )
    async def test_how_patient_it_is(
        self,
        source: Source,
        patience: float,
        us: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        told: list[int] = []

        def note(*arguments: Any) -> int:
            told.append(arguments[0].patience_us)
            return -errno.EPERM

        monkeypatch.setattr(splitting, "lib", Answering("azc_split_open", note))
        with pytest.raises(PermissionError):
            Split(source.read_fd, -1, patience, 1)
        assert told == [us]


class TestJoins:
    @pytest.mark.parametrize("code", [errno.ESHUTDOWN, errno.ENOMEM])
    async def test_it_cannot(
        self, source: Source, code: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Then nothing is left open."""
        split = source.split()
        monkeypatch.setattr(splitting, "lib", Answering("azc_split_join", -code))
        if code == errno.ESHUTDOWN:
            with pytest.raises(StreamClosed, match="come to its end"):
                split.join(SMALL)
        else:
            with pytest.raises(OSError, match=os.strerror(code)):
                split.join(SMALL)

    async def test_a_forked_child_does_not(
        self, source: Source, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        split = source.split()
        reader = split.join(SMALL)
        assert (split.inherited, reader.ended) == (False, None)
        with monkeypatch.context() as patched:
            following = fork_and_exit.generation + 1
            patched.setattr(fork_and_exit, "generation", following)
            assert (split.inherited, reader.ended) == (True, "stopped")
            with pytest.raises(StreamClosed, match="parent"):
                split.join(SMALL)
        await reader.aclose()


class TestEnds:
    @pytest.mark.parametrize("patience", [2**64 / 1e9, 1e300, math.inf])
    async def test_not_for_who_is_slow_in_the_end(
        self, source: Source, patience: float
    ) -> None:
        """However long a time it was promised."""
        split = source.split(patience)
        reader = split.join(SMALL)
        await until(lambda: split.state().readers)
        os.write(source.fd, bytes(SMALL))
        await until(lambda: split.state().taken == SMALL)
        os.write(source.fd, b"x")
        for n in (2, 3):  # (before the third begins, it has looked who is slow)
            source.readers.append(split.join(SMALL))
            await until_begun(split, n)
        assert split.state().dropped == 0
        source.end()
        assert await content(reader) == bytes(SMALL) + b"x"
        assert reader.ended == "end"
