"""Pages lent to the reader of a pipe or a Unix socket do not change under its eyes.

A reader of lent pages sees their content at the time of its read.  So each test poisons
the frame as soon as the frame is its own again, and reads afterwards.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest
import scripts
from endings import ENDS
from inventory import open_files
from links import (
    FREE_THREADED,
    begun,
    cut_short,
    meanwhile,
    others_wait,
    refusing,
    stuck,
    submitted,
    until,
)
from loans import (
    SIZE,
    Loan,
    cancel_halfway,
    ends,
    filled,
    in_a_child,
    poison_in_a_child,
    read_to_end,
)
from oracle import assert_prefix, assert_same, payload, poison

import aiozerocopy as azc
from aiozerocopy import opening
from aiozerocopy._core.binding import PORTABLE
from aiozerocopy.opening import lending_pipe

if TYPE_CHECKING:
    Lend = Callable[..., AbstractAsyncContextManager["Lent"]]

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(PORTABLE, reason="the portable build lends nothing"),
]


KINDS = ["pipe", "socket"]
PART = {"pipe": 64 << 10, "socket": 128 << 10}  # bytes: the least that is ever lent
LONG = 4 << 20  # bytes: the buffer of a lending socket
ERRORS = ["EINVAL", "EPERM", "ENOSYS", "EFAULT"]  # from kernels that do not lend


class Lent(Loan):
    """A link with a plain fd to read, a writer that lends, and a pool."""

    def __init__(self, kind: str, peer: str, slots: int) -> None:
        fd, write_fd = ends(kind)
        self.part = PART[kind]
        super().__init__(azc.open_writer(write_fd, peer), fd, slots)
        self.frame = filled(self.pool, 1)
        if kind == "socket":  # room for more than the least that is lent
            with socket.socket(fileno=os.dup(self.stream.fileno())) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 104 << 10)

    def hang_up(self) -> None:
        """Let the only reader leave; the fd's number is another file's then."""
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, self.fd)
        os.close(null)


@contextlib.asynccontextmanager
async def opened(kind: str, peer: str = "reads", slots: int = 3) -> AsyncIterator[Lent]:
    link = Lent(kind, peer, slots)
    try:
        yield link
    finally:
        link.stream.abort()
        os.close(link.fd)
        link.pool.close()


def pipes() -> set[int]:
    """Return the fds of this process that are ends of pipes."""
    return {int(fd) for fd, each in open_files().items() if each.startswith("pipe:")}


async def lane_between(
    writer: azc.SendStream, reader: azc.ReceiveStream, size: int = LONG
) -> str:
    """Send a frame, and return the lane that it took."""
    data = bytearray(size)
    with azc.FramePool(size) as pool, filled(pool, 1) as frame:
        async with meanwhile(reader.receive_exactly, data):
            await writer.send(frame)
    assert_same(data, payload(1, size))
    return writer.lane


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return cast("str", request.param)


@pytest.fixture
def lent(kind: str) -> Lend:
    return functools.partial(opened, kind)


class TestLane:
    @pytest.mark.parametrize(
        ("peer", "lane"),
        [("reads", "vmsplice"), ("unknown", "copy"), ("untrusted", "copy")],
    )
    async def test_lane_tells_the_truth(self, lent: Lend, peer: str, lane: str) -> None:
        async with lent(peer) as link, anyio.create_task_group() as tasks:
            assert link.stream.lane == "copy"
            tasks.start_soon(link.stream.send, bytes(SIZE))
            await link.read(SIZE)
            assert link.stream.lane == "copy"  # heap memory is not lent
            with filled(link.pool, 1) as frame:
                tasks.start_soon(link.stream.send, frame)
                assert await link.read(SIZE) == payload(1, SIZE)
            assert link.stream.lane == lane

    async def test_a_child_is_a_stranger_unless_we_are_told(self) -> None:
        for options, lane in (({}, "copy"), ({"peer": "reads"}, "vmsplice")):
            command = [sys.executable, "-c", "import sys; sys.stdin.buffer.read()"]
            with azc.FramePool(SIZE) as pool, filled(pool, 1) as frame:
                async with azc.open_process(command, **options) as child:  # type: ignore[arg-type]
                    assert child.stdin is not None
                    await child.stdin.send(frame)
                    assert child.stdin.lane == lane

    async def test_tcp_and_file_lend_nothing(self, tmp_path: Path) -> None:
        file = azc.open_writer((tmp_path / "file").open("wb"), "reads")
        with azc.FramePool(SIZE) as pool, filled(pool, 1) as frame:
            async with file:
                await file.send(frame)
                assert file.lane == "copy"
        assert (tmp_path / "file").read_bytes() == payload(1, SIZE)
        with socket.create_server(("127.0.0.1", 0)) as server:
            near = socket.create_connection(server.getsockname())
            far, _ = server.accept()
        async with (
            azc.wrap_socket(near, peer="reads") as tcp,
            azc.open_reader(far) as to,
        ):
            assert await lane_between(tcp, to) == "copy"

    @pytest.mark.parametrize(
        ("peer", "lane"), [("unknown", "copy"), ("reads", "vmsplice")]
    )
    async def test_unix_sockets_lend_if_their_peers_read(
        self, peer: str, lane: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "socket"
        wrapped, theirs = (
            azc.wrap_socket(end, peer=peer) for end in socket.socketpair()
        )
        served: list[str] = []

        async def handle(stream: azc.UnixStream) -> None:
            both_ways = ((stream, client), (client, stream))
            served.extend([await lane_between(*ends) for ends in both_ways])

        async with wrapped, theirs, azc.socketpair(peer=peer) as (one, other):
            for ends in ((wrapped, theirs), (theirs, wrapped), (one, other)):
                assert await lane_between(*ends) == lane
        async with azc.serve_unix(handle, path, peer=peer):
            async with azc.connect_unix(path, peer=peer) as client:
                await until(lambda: len(served) == 2)
        assert served == [lane, lane]

    @pytest.mark.parametrize(
        ("given", "lane"), [(None, "copy"), (64 << 10, "vmsplice"), (1 << 20, "copy")]
    )
    async def test_a_socket_lends_messages_longer_than_its_buffer(
        self, given: int | None, lane: str
    ) -> None:
        near, far = socket.socketpair()
        if given:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, given)
        async with (
            azc.wrap_socket(near, peer="reads") as one,
            azc.wrap_socket(far) as two,
        ):
            assert await lane_between(one, two, SIZE) == lane

    async def test_with_a_buffer_that_stays_small_all_is_copied(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(opening, "LENDING_BUFFER", 1 << 30)  # the kernel gives less
        async with azc.socketpair(peer="reads") as (one, other):
            assert await lane_between(one, other) == "copy"

    @pytest.mark.parametrize("piece", [1, 4096, 5000, 65536, 1 << 20])
    async def test_pages_and_copies_in_order(self, lent: Lend, piece: int) -> None:
        sizes = [1, 100, 4096, 65_535, 65_536, 65_537, 100_000, 200_001, SIZE]
        if piece == 1:
            sizes = sizes[:3]
        sent = bytearray()
        async with lent() as link, anyio.create_task_group() as tasks:
            for n, size in enumerate(sizes):
                sent += b"header" + link.frame.view[n : n + size].tobytes() + b"end"

            async def send() -> None:
                for n, size in enumerate(sizes):
                    await link.stream.send(
                        b"header", link.frame.view[n : n + size], b"end"
                    )

            tasks.start_soon(send)
            assert_same(await link.read(len(sent), piece), sent)

    async def test_the_other_holders_of_the_pipe_stay_blocking(self) -> None:
        read_fd, write_fd = os.pipe()
        other = os.dup(write_fd)
        async with azc.open_writer(write_fd, "reads"):
            assert os.get_blocking(other)
        os.close(other)
        os.close(read_fd)


class TestUntilItIsRead:
    async def test_send_returns_when_the_last_byte_is_read(self, lent: Lend) -> None:
        async with lent() as link, anyio.create_task_group() as tasks:
            done = anyio.Event()

            async def send() -> None:
                await link.stream.send(link.frame)
                poison(link.frame.view)
                done.set()

            tasks.start_soon(send)
            first = await link.read(SIZE - 1)
            await until(lambda: link.stream.stats.bytes_sent == SIZE)
            await others_wait()
            assert link.stream.stats.messages_queued == 1
            assert not done.is_set()
            last = await link.read(1)
            await done.wait()
            assert_same(first + last, payload(1, SIZE))

    async def test_a_peer_that_shuts_down_can_read_what_is_lent(self) -> None:
        async with opened("socket") as link:
            part = link.frame.view[: link.part]
            ticket = await link.stream.put(part)
            with socket.socket(fileno=os.dup(link.fd)) as peer:
                peer.shutdown(socket.SHUT_RD)
            await others_wait()
            assert not ticket.done()
            assert_same(await link.read(link.part), payload(1, link.part))
            await ticket
            with pytest.raises(azc.StreamBroken):
                await link.stream.send(part)

    async def test_frame_that_goes_with_files_is_copied(self) -> None:
        came, got = [], bytearray()
        read_fd, write_fd = ends("socket")
        stream = azc.wrap_socket(write_fd, peer="reads")
        async with azc.wrap_socket(read_fd) as reader, stream:
            assert isinstance(stream, azc.UnixStream)
            assert isinstance(reader, azc.UnixStream)
            with azc.FramePool(SIZE) as pool, filled(pool, 1) as frame:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(stream.send, frame)
                    await submitted(stream, 1)
                    tasks.start_soon(stream.send_fds, frame, [0])
                    await submitted(stream, 2)
                    tasks.start_soon(stream.send, frame)
                    while len(got) < 3 * SIZE:
                        piece, fds = await reader.receive_fds(3 * SIZE, 1)
                        got += piece
                        came += [len(got)] * len(fds)
                        for fd in fds:
                            os.close(fd)
                assert_same(got, bytes(payload(1, SIZE)) * 3)
                assert [SIZE < end <= 2 * SIZE for end in came] == [True]

    async def test_a_copy_behind_it_waits_for_no_reader(self, lent: Lend) -> None:
        async with lent() as link:
            ticket = await link.stream.put(link.frame.view[: link.part])
            await link.read(32 << 10)
            await link.stream.send(b"small")
            assert not ticket.done()
            assert await link.read(link.part - (32 << 10) + 5) == (
                bytes(payload(1, link.part))[32 << 10 :] + b"small"
            )
            await ticket

    async def test_flush_waits_for_the_reader(self, lent: Lend) -> None:
        async with lent() as link, anyio.create_task_group() as tasks:
            ticket = await link.stream.put(link.frame.view[: link.part])
            flushed = anyio.Event()

            async def flush() -> None:
                await link.stream.flush()
                assert ticket.done()
                flushed.set()

            tasks.start_soon(flush)
            await submitted(link.stream, 2)
            assert not flushed.is_set()
            await link.read(link.part)
            await flushed.wait()


class TestTakenBack:
    async def test_after_a_cancel_the_reader_sees_old_bytes(self, lent: Lend) -> None:
        async with lent() as link:
            await cancel_halfway(link.stream, link.frame)
            assert_same(link.frame.view, payload(1, SIZE))  # it is unchanged
            poison(link.frame.view)
            assert_same(await link.read(SIZE), payload(1, SIZE))
            assert link.stream.stats.bytes_rescued

    async def test_cancelled_when_all_is_lent(self, lent: Lend) -> None:
        async with lent() as link:
            part = link.frame.view[: link.part]
            async with cut_short(link.stream.send, part):
                await until(lambda: link.stream.stats.bytes_sent == len(part))
            poison(part)
            assert_same(await link.read(len(part)), payload(1, len(part)))
            await link.stream.send(b"well")
            assert await link.read(4) == b"well"

    @pytest.mark.skipif(FREE_THREADED, reason="without the GIL, Python needs memory")
    def test_without_room_for_other_pages(self, kind: str) -> None:
        read_fd, write_fd = ends(kind)
        process = scripts.start(
            NO_ROOM, "asyncio", str(write_fd), str(PART[kind]), pass_fds=[write_fd]
        )
        os.close(write_fd)
        status, _, complained = scripts.finish(process)
        assert status == 0, complained
        with open(read_fd, "rb") as file:
            assert file.read() == b"a" * PART[kind]

    async def test_only_memory_of_a_pool_is_lent(self, lent: Lend) -> None:
        """Other memory around a frame in one message could not be taken back."""
        async with lent() as link:
            ends = bytearray(b"<" * 5_000)
            want = bytes(ends) + bytes(link.frame.view) + bytes(ends)
            async with cut_short(link.stream.send, ends, link.frame, ends):
                await begun(link.stream)
            poison(ends)
            poison(link.frame.view)
            assert_same(await link.read(len(want)), want)

    async def test_a_number_that_is_anothers_is_not_asked(self, lent: Lend) -> None:
        """The number now belongs to an empty pipe; our pipe still has data."""
        async with lent() as link:
            part = link.frame.view[: link.part]
            ticket = await link.stream.put(part)
            number = link.stream.fileno()
            read_fd, write_fd = os.pipe()
            os.dup2(write_fd, number)
            with pytest.raises(azc.StreamBroken):
                await ticket
            poison(part)
            assert_same(await read_to_end(link.fd), payload(1, len(part)))
            for fd in (number, read_fd, write_fd):
                os.close(fd)

    @pytest.mark.parametrize("end", [0, 1])
    async def test_a_number_of_the_pipe_between_is_anothers(self, end: int) -> None:
        """Our data does not go into the strange pipe, nor its data to our reader."""
        before = pipes()
        async with opened("socket") as link, anyio.create_task_group() as tasks:
            tasks.start_soon(link.stream.send, link.frame)
            assert_same(await link.read(SIZE), payload(1, SIZE))
            numbers = sorted(pipes() - before)
            strange = os.pipe()
            os.write(strange[1], b"strange")
            os.dup2(strange[end], numbers[end])
            tasks.start_soon(link.stream.send, link.frame)
            assert_same(await link.read(SIZE), payload(1, SIZE))
            assert link.stream.lane == "copy"
        assert os.read(strange[0], SIZE) == b"strange"
        for fd in (*strange, numbers[end]):
            os.close(fd)

    async def test_another_stream_of_the_frame_sees_nothing(self, lent: Lend) -> None:
        async with lent() as link, lent() as other:
            async with meanwhile(other.stream.send, link.frame):
                await begun(other.stream)
                await cancel_halfway(link.stream, link.frame)
                assert_same(await other.read(SIZE), payload(1, SIZE))
            assert_same(await link.read(SIZE), payload(1, SIZE))

    @pytest.mark.parametrize("way", ["abort", "cancelled aclose"])
    async def test_after_a_close_the_reader_sees_the_old_bytes(
        self, lent: Lend, way: str
    ) -> None:
        async with lent() as link:
            ticket = await link.stream.put(link.frame)
            await begun(link.stream)
            await ENDS[way](link.stream)
            with pytest.raises(azc.StreamClosed):
                await ticket
            assert_same(link.frame.view, payload(1, SIZE))
            poison(link.frame.view)
            data = await read_to_end(link.fd)
            assert_prefix(data, payload(1, SIZE))
            assert data

    @pytest.mark.usefixtures("deadly_sigpipe")
    @pytest.mark.parametrize("all_is_lent", [False, True])
    async def test_when_the_reader_leaves_everybody_hears(
        self, lent: Lend, all_is_lent: bool
    ) -> None:
        async with lent() as link:
            part = link.frame.view[: link.part if all_is_lent else SIZE]
            tickets = [await link.stream.put(part)]
            if not all_is_lent:
                tickets += [
                    await link.stream.put(each) for each in (b"small", link.frame)
                ]
            await begun(link.stream)
            assert not any(ticket.done() for ticket in tickets)
            link.hang_up()
            for ticket in tickets:
                with pytest.raises(azc.StreamBroken):
                    await ticket

    async def test_forgotten_streams_take_their_pages_back(
        self, lent: Lend, kind: str
    ) -> None:
        async with lent() as link:
            read_fd, write_fd = ends(kind)
            stream = azc.open_writer(write_fd, "reads")
            await stream.put(link.frame.view[: link.part])
            with pytest.warns(ResourceWarning, match="unclosed"):
                del stream
            poison(link.frame.view)
            os.set_blocking(read_fd, False)
            assert_prefix(await read_to_end(read_fd), payload(1, SIZE))
            os.close(read_fd)


EXIT = """
async def main():
    size = int(sys.argv[3])
    pool = azc.FramePool(size, slots=1)
    frame = pool.acquire_nowait()
    frame.view[:] = b"a" * size
    stream = azc.open_writer(int(sys.argv[2]), "reads")
    await stream.put(frame)
    print(stream.lane, flush=True)
    if sys.argv[4] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    stream.abort()
    frame.view[:] = b"b" * size

run(main)
"""


NO_ROOM = """
import resource

async def main():
    size = int(sys.argv[3])
    stream = azc.open_writer(int(sys.argv[2]), peer="reads")
    frame = azc.FramePool(size, slots=1).acquire_nowait()
    frame.view[:] = b"a" * size
    limits = resource.getrlimit(resource.RLIMIT_AS)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream.send, frame)
        await anyio.lowlevel.checkpoint()
        while stream.stats.bytes_sent < size:
            await anyio.lowlevel.checkpoint()
        resource.setrlimit(resource.RLIMIT_AS, (1, limits[1]))
        tasks.cancel_scope.cancel()
    resource.setrlimit(resource.RLIMIT_AS, limits)
    assert bytes(frame.view) == b"a" * size
    frame.view[:] = b"b" * size
    await stream.aclose()

run(main)
"""


class TestTheEnd:
    @pytest.mark.parametrize("way", ["kill", "exit"])
    def test_what_a_reader_sees_after_the_program_has_ended(
        self, kind: str, way: str
    ) -> None:
        read_fd, write_fd = ends(kind)
        os.set_inheritable(write_fd, True)
        process = scripts.start(
            EXIT, "asyncio", str(write_fd), str(PART[kind]), way, pass_fds=[write_fd]
        )
        os.close(write_fd)
        status, said, complained = scripts.finish(process)
        assert said.strip() == "vmsplice", complained
        assert status == (-signal.SIGKILL if way == "kill" else 0)
        with open(read_fd, "rb") as file:
            assert file.read() == b"a" * PART[kind]

    async def test_a_forked_child_may_store_into_its_copy(self, lent: Lend) -> None:
        async with lent() as link:
            ticket = await link.stream.put(link.frame.view[: link.part])
            poison_in_a_child(link.frame.view)
            assert_same(await link.read(link.part), payload(1, link.part))
            await ticket

    async def test_a_forked_child_closes_the_pipe_between(self) -> None:
        before = pipes()
        async with opened("socket") as link:
            await link.stream.put(link.frame.view[: link.part])
            between = pipes() - before
            assert len(between) == 2
            assert not in_a_child(lambda: between & pipes())


REFUSED = """
async def main():
    if sys.argv[2] == "pipe":
        read_fd, write_fd = os.pipe()
    else:
        read_fd, write_fd = (end.detach() for end in socket.socketpair())
    size = 400_000
    with azc.FramePool(size, slots=1) as pool:
        frame = pool.acquire_nowait()
        frame.view[:] = bytes(range(256)) * (size // 256) + bytes(size % 256)
        want = bytes(frame.view)
        async with azc.open_reader(read_fd) as reader:
            async with azc.open_writer(write_fd, "reads") as stream:
                data = bytearray(3 * size)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(reader.receive_exactly, data)
                    for _ in range(3):
                        await stream.send(frame)
                assert data == want * 3
                print(stream.lane)

run(main)
"""


class TestRefused:
    @pytest.mark.parametrize("anyio_backend", ["asyncio"])
    @pytest.mark.parametrize(
        ("kind", "fault"),
        [
            *((kind, f"vmsplice:error={error}") for kind in KINDS for error in ERRORS),
            *(("socket", f"splice:error={error}") for error in ERRORS[:2]),
            ("socket", "pipe2:error=EMFILE"),
        ],
    )
    async def test_kernel_that_refuses_gets_copies(self, kind: str, fault: str) -> None:
        for when in (":when=1", ":when=3+"):
            if when == ":when=3+" and fault.startswith("pipe2"):
                continue  # the call is made only once
            said = scripts.run(REFUSED, "asyncio", kind, under=refusing(fault + when))
            assert said.split() == ["copy"]


class TestAnyMemory:
    """Any memory is lent, as Dask's comms lend the memory of arrays."""

    @pytest.mark.parametrize("make", [bytes, bytearray, memoryview])
    async def test_it_is_lent_in_order_with_what_is_small(self, make: Any) -> None:
        reader, writer = lending_pipe(1 << 20)
        async with writer, reader:
            parts = [payload(n, size) for n, size in enumerate((9, 300_001, 70_000))]
            got = bytearray(sum(map(len, parts)))
            async with meanwhile(reader.receive_exactly, got):
                await writer.send(*map(make, parts))
            assert_same(bytes(got), b"".join(parts))
            assert writer._out.stats().lent == 370_001

    async def test_it_is_the_readers_until_it_was_read(self) -> None:
        reader, writer = lending_pipe(1 << 20)
        async with writer, reader:
            data = bytearray(payload(1, 100_000))
            ticket = await writer.put(data)
            await until(lambda: writer._out.stats().lent == len(data))
            assert not ticket.done()
            assert len(await reader.receive(99_999)) == 99_999
            assert not ticket.done()
            await reader.receive(1)
            await ticket
            poison(data)

    async def test_a_cancel_copies_nothing_and_ends_the_stream(self) -> None:
        reader, writer = lending_pipe(256 << 10)
        async with stuck(writer, payload(1, 1 << 20)) as tasks:
            tasks.cancel_scope.cancel()
        assert writer.stats.bytes_rescued == 0
        with pytest.raises(azc.StreamBroken):
            await writer.send(b"more")
        writer.abort()
        reader.abort()
