"""Pages lent to TCP (MSG_ZEROCOPY): nobody sees them change.

The peer has a tiny buffer and does not read, so most of what was lent is still in the
caller's pages, waiting to be sent.  Each test poisons the frame the moment that it is
its own again, and reads afterwards.  (On its way over loopback every byte is copied in
the end: the kernel says so with the first acknowledgement, and lending is over.)
"""

from __future__ import annotations

import contextlib
import select
import shutil
import signal
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import scripts
from links import begun, let_others_run, refusing, until
from loans import (
    SIZE,
    Loan,
    cancel_halfway,
    close_at_once,
    filled,
    poison_in_a_child,
    read_to_end,
)
from oracle import assert_prefix, assert_same, payload, poison

import aiozerocopy as azc
from aiozerocopy import _native

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio
lends = pytest.mark.skipif(_native.PORTABLE, reason="the portable build lends nothing")

SO_ZEROCOPY = 60
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: the close is a reset


def connected(buffer: int = 4096) -> tuple[socket.socket, socket.socket]:
    """Two ends over loopback; the second is the peer's, with a tiny buffer."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        ours = socket.create_connection(listener.getsockname())
        peer, _ = listener.accept()
    peer.setblocking(False)
    return ours, peer


def lane(stream: azc.SendStream) -> str:
    return _native.lane_of(stream._out.stats())


def bytes_lent(stream: azc.SendStream) -> int:
    return stream._out.stats().lent


class Zero(Loan):
    """A stream that lends, its peer's plain socket, and a pool."""

    stream: azc.Stream

    def __init__(self, slots: int) -> None:
        ours, self.peer = connected()
        stream = azc.wrap_socket(ours, zerocopy=True)
        super().__init__(stream, self.peer.fileno(), slots)

    def hang_up(self) -> None:
        """The peer leaves, with a reset."""
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.peer.close()


@contextlib.asynccontextmanager
async def zero(slots: int = 3) -> AsyncIterator[Zero]:
    link = Zero(slots)
    try:
        yield link
    finally:
        link.stream.abort()
        link.peer.close()
        link.pool.close()


class TestLane:
    @lends
    async def test_it_lends_until_the_kernel_says_that_it_copies(self) -> None:
        async with zero() as link:
            frame = filled(link.pool, 1)
            assert lane(link.stream) == link.stream.lane == "copy"
            ticket = await link.stream.put(frame)
            assert lane(link.stream) == "zerocopy"
            assert bytes_lent(link.stream) == SIZE
            assert_same(await link.read(SIZE), payload(1, SIZE))
            await ticket
            assert lane(link.stream) == link.stream.lane == "copy"
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(link.stream.send, frame)
                assert_same(await link.read(SIZE), payload(1, SIZE))
            assert bytes_lent(link.stream) == SIZE  # once was enough

    @lends
    async def test_only_a_pools_bigger_pieces_are_lent(self) -> None:
        async with zero() as link:
            frame = filled(link.pool, 1)
            await link.stream.send(bytes(20_000))
            await link.stream.send(frame.view[: (10 << 10) - 1])
            assert bytes_lent(link.stream) == 0
            await link.stream.put(b"header", frame.view[: 10 << 10], bytes(20_000))
            assert bytes_lent(link.stream) == 10 << 10

    @lends
    async def test_nothing_is_lent_unless_it_is_asked_for(self) -> None:
        ours, peer = connected()
        with azc.FramePool(SIZE) as pool, filled(pool, 1) as frame, peer:
            stream = azc.wrap_socket(ours)
            await stream.put(frame)
            assert bytes_lent(stream) == 0
            stream.abort()

    async def test_where_it_cannot_be_it_is_a_copy(self) -> None:
        """A Unix socket; and one whose count of loans did not begin with us."""
        counted, peer = connected()
        with contextlib.suppress(OSError):
            counted.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        for ours, other in (socket.socketpair(), (counted, peer)):
            other.setblocking(False)
            with azc.FramePool(SIZE) as pool, filled(pool, 1) as frame, other:
                stream = azc.wrap_socket(ours, zerocopy=True)
                await stream.put(frame)
                assert bytes_lent(stream) == 0
                stream.abort()

    async def test_connect_and_serve(self) -> None:
        """The option is there, whatever comes of it, and what arrives is the same."""
        got = bytearray(SIZE)
        asked = []

        def is_asked_for(stream: azc.Stream) -> bool:
            return bool(stream._raw_socket.getsockopt(socket.SOL_SOCKET, SO_ZEROCOPY))

        async def handler(stream: azc.Stream) -> None:
            asked.append(is_asked_for(stream))
            await stream.receive_exactly(got)
            await stream.send(b"thanks")

        async with azc.serve_tcp(handler, zerocopy=True) as server:
            connecting = azc.connect_tcp("127.0.0.1", server.port, zerocopy=True)
            async with connecting as stream:
                asked.append(is_asked_for(stream))
                with azc.FramePool(SIZE) as pool, filled(pool, 1) as frame:
                    await stream.send(frame)
                assert await stream.receive() == b"thanks"
        assert asked == [not _native.PORTABLE] * 2
        assert_same(got, payload(1, SIZE))


class TestIntegrity:
    async def test_loans_and_copies_in_order(self) -> None:
        sizes = [1, 100, 4096, 10_239, 10_240, 10_241, 65_537, 100_000, SIZE - 10]
        async with zero() as link:
            frame, sent = filled(link.pool, 1), bytearray()
            async with anyio.create_task_group() as tasks:

                async def send() -> None:
                    for n, size in enumerate(sizes):
                        part = frame.view[n : n + size]
                        await link.stream.send(b"header", part, b"end")
                        await link.stream.send(part)

                tasks.start_soon(send)
                for n, size in enumerate(sizes):
                    part = frame.view[n : n + size].tobytes()
                    sent += b"header" + part + b"end" + part
                assert_same(await link.read(len(sent)), sent)

    @pytest.mark.slow
    async def test_100_megabytes(self) -> None:
        """In 25 connections, so that much of it is lent; the slots all come back."""
        frames, lent = 10, 0
        for connection in range(25):
            async with zero() as link, anyio.create_task_group() as tasks:

                async def render(link: Zero, first: int) -> None:
                    for n in range(frames):
                        with await link.pool.acquire() as frame:
                            frame.view[:] = payload(first + n, SIZE)
                            await link.stream.put(frame)

                tasks.start_soon(render, link, connection)
                for n in range(frames):
                    assert_same(await link.read(SIZE), payload(connection + n, SIZE))
                await until(lambda pool=link.pool: pool.stats.free == 3)  # type: ignore[misc]
                lent += bytes_lent(link.stream)
        assert _native.PORTABLE or lent >= 25 * SIZE


@lends
class TestUntilItIsAcknowledged:
    async def test_send_returns_when_the_peer_has_it(self) -> None:
        async with zero() as link, anyio.create_task_group() as tasks:
            frame = filled(link.pool, 1)
            done = anyio.Event()

            async def send() -> None:
                await link.stream.send(frame)
                poison(frame.view)
                done.set()

            tasks.start_soon(send)
            first = await link.read(SIZE // 2)
            await let_others_run()
            assert not done.is_set()
            rest = await link.read(SIZE - len(first))
            await done.wait()
            assert_same(first + rest, payload(1, SIZE))

    async def test_a_copy_behind_it_does_not_wait_for_the_peer(self) -> None:
        async with zero() as link:
            frame = filled(link.pool, 1)
            ticket = await link.stream.put(frame.view[:50_000])
            await link.stream.send(b"small")
            assert not ticket.done()
            want = bytes(payload(1, SIZE))[:50_000] + b"small"
            assert_same(await link.read(len(want)), want)
            await ticket

    async def test_flush_waits_for_the_peer(self) -> None:
        async with zero() as link, anyio.create_task_group() as tasks:
            frame = filled(link.pool, 1)
            ticket = await link.stream.put(frame.view[:50_000])
            flushed = anyio.Event()

            async def flush() -> None:
                await link.stream.flush()
                assert ticket.done()
                flushed.set()

            tasks.start_soon(flush)
            await let_others_run()
            assert not flushed.is_set()
            await link.read(50_000)
            await flushed.wait()

    async def test_when_the_peer_leaves_everybody_hears(self) -> None:
        async with zero() as link:
            frames = [filled(link.pool, n) for n in range(3)]
            tickets = [await link.stream.put(frame) for frame in frames]
            link.hang_up()
            for ticket in tickets:
                with pytest.raises(azc.StreamBroken):
                    await ticket

    async def test_when_the_peer_leaves_and_the_receiver_hears_it_first(self) -> None:
        """The socket has one error to give, and somebody has it already."""
        async with zero() as link:
            ticket = await link.stream.put(filled(link.pool, 1))
            async with anyio.create_task_group() as tasks:

                async def receive() -> None:
                    with contextlib.suppress(anyio.EndOfStream, azc.StreamBroken):
                        await link.stream.receive()

                tasks.start_soon(receive)
                await let_others_run()
                link.hang_up()
            with pytest.raises(azc.StreamBroken):
                await ticket


@lends
class TestTakenBack:
    async def test_after_a_cancel_the_peer_sees_the_old_bytes(self) -> None:
        async with zero() as link:
            frame = filled(link.pool, 1)
            await cancel_halfway(link.stream, frame)
            assert_same(frame.view, payload(1, SIZE))  # it is as it was
            poison(frame.view)
            assert_same(await link.read(SIZE), payload(1, SIZE))
            assert link.stream.stats.bytes_rescued
            await link.stream.send(b"well")
            assert await link.read(4) == b"well"

    async def test_cancelled_when_only_some_of_it_is_lent(self) -> None:
        async with zero() as link:
            frame, more = filled(link.pool, 1), filled(link.pool, 2)
            sent = bytes(payload(1, SIZE)) + bytes(payload(2, SIZE)) * 12
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(link.stream.send, frame, *[more] * 12)
                await begun(link.stream)
                tasks.cancel_scope.cancel()
            assert link.stream.stats.bytes_queued
            poison(frame.view)
            poison(more.view)
            assert_same(await link.read(len(sent)), sent)

    async def test_what_stands_beside_a_frame_was_copied(self) -> None:
        async with zero() as link:
            frame, ends = filled(link.pool, 1), bytearray(b"<" * 20_000)
            want = bytes(ends) + bytes(frame.view) + bytes(ends)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(link.stream.send, ends, frame, ends)
                await until(lambda: link.stream.stats.bytes_sent > 20_000)
                tasks.cancel_scope.cancel()
            poison(ends)
            poison(frame.view)
            assert_same(await link.read(len(want)), want)

    async def test_the_same_frame_twice_and_to_another(self) -> None:
        async with zero() as link, zero() as other:
            frame = filled(link.pool, 1)
            await other.stream.put(frame)
            kept = await link.stream.put(frame)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(link.stream.send, frame)
                await until(lambda: link.stream.stats.messages_queued == 2)
                tasks.cancel_scope.cancel()
            assert_same(await other.read(SIZE), payload(1, SIZE))
            assert_same(await link.read(SIZE), payload(1, SIZE))
            await kept
            poison(frame.view)
            assert_same(await link.read(SIZE), payload(1, SIZE))

    @pytest.mark.parametrize("way", ["abort", "aclose"])
    async def test_after_a_close_the_peer_sees_the_old_bytes(self, way: str) -> None:
        async with zero() as link:
            frame = filled(link.pool, 1)
            ticket = await link.stream.put(frame)
            await close_at_once(link.stream, way)
            with pytest.raises(azc.StreamClosed):
                await ticket
            poison(frame.view)
            data = await read_to_end(link.fd)
            assert_prefix(data, payload(1, SIZE))
            assert len(data) > 50_000

    async def test_forgotten_streams_take_their_pages_back(self) -> None:
        async with zero() as link:
            ours, peer = connected()
            frame = filled(link.pool, 1)
            stream = azc.wrap_socket(ours, zerocopy=True)
            await stream.put(frame)
            with pytest.warns(ResourceWarning, match="unclosed"):
                del stream
            poison(frame.view)
            with peer:
                data = await read_to_end(peer.fileno())
            assert_prefix(data, payload(1, SIZE))
            assert len(data) > 50_000

    async def test_a_closed_pool_keeps_nothing_from_the_peer(self) -> None:
        async with zero() as link:
            with azc.FramePool(SIZE) as pool:
                await cancel_halfway(link.stream, filled(pool, 1))
            assert_same(await link.read(SIZE), payload(1, SIZE))

    async def test_a_forked_child_may_store_into_its_copy(self) -> None:
        async with zero() as link:
            frame = filled(link.pool, 1)
            ticket = await link.stream.put(frame)
            poison_in_a_child(frame.view)
            assert_same(await link.read(SIZE), payload(1, SIZE))
            await ticket


EXIT = """
import socket

async def main():
    pool = azc.FramePool(400_000, slots=1)
    frame = pool.acquire_nowait()
    frame.view[:] = b"a" * 400_000
    sock = socket.socket(fileno=int(sys.argv[2]))
    stream = azc.wrap_socket(sock, zerocopy=True)
    await stream.put(frame)
    print(stream._out.stats().lent, flush=True)
    if sys.argv[3] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[3] == "abort":
        stream.abort()
        frame.view[:] = b"b" * 400_000

run(main)
"""


@lends
class TestTheEnd:
    @pytest.mark.parametrize("way", ["kill", "abort", "exit"])
    def test_what_a_peer_sees_after_the_program_has_ended(self, way: str) -> None:
        ours, peer = connected()
        number = ours.fileno()
        process = scripts.start(
            EXIT, "asyncio", str(number), way, warnings="ignore", pass_fds=[number]
        )
        ours.close()
        status, said, complained = scripts.finish(process)
        assert said.strip() == "400000", complained
        assert status == (-signal.SIGKILL if way == "kill" else 0)
        peer.setblocking(True)
        with peer, peer.makefile("rb") as file:
            assert file.read() == b"a" * 400_000


async def seconds_used_meanwhile() -> float:
    """How much of a processor this process needs in 0.4 s in which nothing happens."""
    before = time.process_time()
    with anyio.move_on_after(0.4):
        await anyio.sleep_forever()
    return time.process_time() - before


@lends
class TestWaiting:
    async def test_no_time_is_spent_on_waiting(self) -> None:
        """Neither for the peer, nor by who receives from the same socket."""
        async with zero() as link, anyio.create_task_group() as tasks:
            ticket = await link.stream.put(filled(link.pool, 1))
            tasks.start_soon(link.stream.receive)
            await let_others_run()
            assert await seconds_used_meanwhile() < 0.1
            assert not ticket.done()
            tasks.cancel_scope.cancel()

    async def test_what_comes_after_a_cancel_is_not_left_lying(self) -> None:
        """An error that nobody takes would wake who receives again and again."""
        async with zero() as link, anyio.create_task_group() as tasks:
            tasks.start_soon(link.stream.receive)
            await cancel_halfway(link.stream, filled(link.pool, 1))
            assert not link.stream.stats.messages_queued
            await link.read(SIZE)
            error = select.poll()
            error.register(link.stream.fileno(), 0)
            await until(lambda: lane(link.stream) == "copy")  # it has heard
            await until(lambda: not error.poll(0))
            assert await seconds_used_meanwhile() < 0.1
            tasks.cancel_scope.cancel()

    async def test_a_socket_that_reports_its_end_again_and_again(self) -> None:
        async with zero() as link, anyio.create_task_group() as tasks:
            await cancel_halfway(link.stream, filled(link.pool, 1))
            link.stream._raw_socket.shutdown(socket.SHUT_RDWR)
            assert await seconds_used_meanwhile() < 0.1
            tasks.cancel_scope.cancel()


AS_ON_A_CARD = """
import hashlib, socket

async def main():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    ours = socket.create_connection(listener.getsockname())
    peer, _ = listener.accept()
    size, frames = 1_000_003, 100
    sent, got = hashlib.blake2b(), hashlib.blake2b()

    def read():
        while data := peer.recv(1 << 20):
            got.update(data)

    reader = threading.Thread(target=read)
    reader.start()
    with azc.FramePool(size, slots=3) as pool:
        async with azc.wrap_socket(ours, zerocopy=True) as stream:
            async with anyio.create_task_group() as tasks:
                with anyio.CancelScope() as receiving:
                    tasks.start_soon(stream.receive)
                    for n in range(frames):
                        frame = await pool.acquire()
                        frame.view[:] = bytes([n]) * size
                        sent.update(frame.view)
                        await stream.put(frame)
                        frame.release()
                    await stream.flush()
                    stats = stream._out.stats()
                    assert stats.lent > 0.98 * frames * size, stats.lent
                    assert stats.bytes == frames * size
                    # Each number wakes who receives, but not again and again.
                    assert stream._in.stats().calls < 10 * frames
                    assert pool.stats.free == 3
                    tasks.cancel_scope.cancel()
    reader.join()
    peer.close()
    listener.close()
    assert got.digest() == sent.digest()
    print("the same")

run(main)
"""


@lends
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
class TestAsOnANetworkCard:
    """With the word of the copying left out, loopback is as a card is: the pages are
    looked at when the bytes are sent, and nothing ever ends the lending."""

    @pytest.mark.slow
    async def test_100_megabytes_are_all_lent(
        self, tmp_path: Path, anyio_backend: tuple[str, dict[str, Any]]
    ) -> None:
        name, options = anyio_backend
        library = tmp_path / "uncopied.so"
        source = Path(__file__).parent / "sim" / "uncopied.c"
        command = ["cc", "-shared", "-fPIC", "-o", str(library), str(source)]
        subprocess.run(command, check=True)  # noqa: ASYNC221 - nobody else waits
        loop = "uvloop" if options.get("use_uvloop") else name
        said = scripts.run(AS_ON_A_CARD, loop, under=["env", f"LD_PRELOAD={library}"])
        assert said.strip() == "the same"


REFUSED = """
import socket

async def main():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    ours = socket.create_connection(listener.getsockname())
    theirs, _ = listener.accept()
    size = 400_000
    with azc.FramePool(size, slots=1) as pool:
        frame = pool.acquire_nowait()
        frame.view[:] = bytes(range(256)) * (size // 256) + bytes(size % 256)
        want = bytes(frame.view)
        async with azc.wrap_socket(theirs) as reader:
            async with azc.wrap_socket(ours, zerocopy=True) as stream:
                data = bytearray(3 * size)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(reader.receive_exactly, data)
                    for _ in range(3):
                        await stream.send(frame)
                assert data == want * 3
                print(stream._out.stats().lent)
    listener.close()

run(main)
"""


@lends
class TestRefused:
    @pytest.mark.parametrize("anyio_backend", ["asyncio"])
    @pytest.mark.parametrize(
        "fault",
        [
            "setsockopt:error=ENOPROTOOPT",
            "setsockopt:error=EPERM",
            "sendmsg:error=ENOBUFS",
            "sendmsg:error=EOPNOTSUPP",
            "sendmsg:error=EINVAL:when=1",
        ],
    )
    async def test_a_kernel_that_refuses_gets_copies(self, fault: str) -> None:
        said = scripts.run(REFUSED, "asyncio", under=refusing(fault))
        assert said.split() == ["0"]
