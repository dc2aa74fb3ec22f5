"""azc+unix:// sends large messages by a pipe; most tests have a socket as the peer."""

import asyncio
import contextlib
import gc
import logging
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from figures import count
from interruption import Interruption, Lines, hit_each_line
from inventory import held
from links import fork, linux_only, until

pytest.importorskip("distributed", reason="needs Dask")
np = pytest.importorskip("numpy")


from distributed.comm.core import CommClosedError  # noqa: E402
from distributed.protocol.serialize import to_serialize  # noqa: E402

from aiozerocopy import StreamBroken  # noqa: E402
from aiozerocopy._core.binding import PORTABLE  # noqa: E402
from aiozerocopy.dask import loan as loan_module  # noqa: E402
from aiozerocopy.dask import local  # noqa: E402
from aiozerocopy.dask.local import AGAIN, BY_PIPE, LARGE, PIPE, WHOLE  # noqa: E402
from aiozerocopy.dask.messages import pack  # noqa: E402
from aiozerocopy.dask.unix import PIPES, UnixComm  # noqa: E402
from aiozerocopy.opening import stream_over  # noqa: E402

pytestmark = [
    pytest.mark.anyio,
    linux_only,
    pytest.mark.skipif(PORTABLE, reason="the portable build lends nothing"),
]

BIG = 3 << 20
DEATHS = int(os.environ.get("AZC_DASK_DEATHS", "3"))  # for each kind


def comm_over(sock: socket.socket) -> Any:
    comm = UnixComm(stream_over(sock), "azc+unix:///here", "azc+unix:///there")
    comm.remote_info = {PIPES: True}  # as the handshake would set it
    return comm


class Ends:
    """A comm, and a plain socket as its peer."""

    def __init__(self) -> None:
        ours, self.peer = socket.socketpair()
        self.peer.settimeout(10)
        self.comm = comm_over(ours)

    def __enter__(self) -> "Ends":
        return self

    def __exit__(self, *_: object) -> None:
        self.comm.abort()
        self.peer.close()


Comms = tuple[Any, Any]


@pytest.fixture
async def comms() -> AsyncIterator[Comms]:
    """Two comms that are connected to each other."""
    one, other = map(comm_over, socket.socketpair())
    yield one, other
    await one.close()
    await other.close()


def array(nbytes: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype="u1")


def message(nbytes: int, seed: int = 0) -> dict[str, Any]:
    return {"a": to_serialize(array(nbytes, seed))}


def exactly(sock: socket.socket, nbytes: int) -> bytes:
    got = sock.recv(nbytes, socket.MSG_WAITALL)
    assert len(got) == nbytes
    return got


def take_pipe(sock: socket.socket) -> int:
    """Take a pipe's fd, as a peer does."""
    assert struct.unpack("=Q", exactly(sock, 8)) == (PIPE,)
    word, fds, _, _ = socket.recv_fds(sock, 1, 1)
    assert word == b"p"
    return fds[0]


def announced(sock: socket.socket) -> int:
    (first,) = struct.unpack("=Q", exactly(sock, 8))
    assert first >= BY_PIPE
    return int(first - BY_PIPE)


async def ends_in_error(doing: Any) -> None:
    with pytest.raises(CommClosedError):
        await doing


# ---- the pipe and the socket --------------------------------------------------------


async def test_messages_of_all_sizes_keep_their_order(comms: Comms) -> None:
    rng = random.Random(1)
    sizes = [rng.choice((0, 9, LARGE - 200, LARGE, BIG)) for _ in range(40)]

    async def write(comm: Any) -> None:
        for number, size in enumerate(sizes):
            await comm.write({"n": number, **message(size, number)})

    async def read(comm: Any) -> None:
        for number, size in enumerate(sizes):
            got = await comm.read()
            assert got["n"] == number
            assert np.array_equal(got["a"], array(size, number))

    one, other = comms
    await asyncio.gather(write(one), read(one), write(other), read(other))
    for comm in (one, other):
        assert comm.stream._loan.writer._out.stats().lent > BIG


async def test_writers_that_compete_do_not_mix(comms: Comms) -> None:
    sizes = (10, BIG, LARGE, 20) * 3
    one, other = comms
    writes = [
        asyncio.create_task(one.write({"n": n, **message(size, n)}))
        for n, size in enumerate(sizes)
    ]
    for _ in sizes:
        got = await other.read()
        assert np.array_equal(got["a"], array(sizes[got["n"]], got["n"]))
    await asyncio.gather(*writes)


@pytest.mark.parametrize("told", [{}, {PIPES: False}, {PIPES: "yes"}])
async def test_who_takes_no_pipes_gets_none(told: dict[str, Any], comms: Comms) -> None:
    one, other = comms
    assert one.handshake_info()[PIPES] is True
    one.remote_info = told
    await asyncio.gather(other.read(), one.write(message(BIG)))  # large enough to wait
    assert one.stream._stream.stats.bytes_sent > BIG


@pytest.mark.parametrize("why", ["small pipes", "refused"])
async def test_pipe_that_is_not_worth_it_is_not_used(
    why: str, monkeypatch: pytest.MonkeyPatch, comms: Comms
) -> None:
    if why == "small pipes":
        monkeypatch.setattr(loan_module, "ROOM", 64 << 10)
    else:
        monkeypatch.setattr(loan_module.Loan, "is_refused", True)

    one, other = comms
    for expected in (0 if why == "refused" else 1, 1, 1):
        before = one.stream._stream.stats.bytes_sent
        _, got = await asyncio.gather(one.write(message(BIG)), other.read())
        assert np.array_equal(got["a"], array(BIG))
        by_socket = one.stream._stream.stats.bytes_sent - before > BIG
        assert by_socket == expected


# ---- waiting ------------------------------------------------------------------------


async def test_write_waits_until_the_peer_has_read_the_pipe() -> None:
    with Ends() as ends:
        data = array(LARGE)
        write = asyncio.create_task(ends.comm.write({"a": to_serialize(data)}))
        await until(lambda: ends.comm.stream._loan._ends is not None)
        fd = await asyncio.to_thread(take_pipe, ends.peer)
        first = await asyncio.to_thread(announced, ends.peer)
        got = await asyncio.to_thread(read_all, fd, first - 1)
        assert not write.done()  # a byte is still unread
        got += os.read(fd, 99)
        await write
        assert data.tobytes() in got
        assert exactly(ends.peer, 1) == WHOLE
        os.close(fd)


def read_all(fd: int, nbytes: int) -> bytes:
    os.set_blocking(fd, True)
    got = bytearray()
    while len(got) < nbytes:
        piece = os.read(fd, nbytes - len(got))
        assert piece
        got += piece
    return bytes(got)


async def test_cancelled_write_leaves_nothing_in_the_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The peer does not see what is stored in the memory afterwards."""
    monkeypatch.setattr(local, "LARGE", 100_000)  # so that all of it fits in

    with Ends() as ends:
        write = asyncio.create_task(ends.comm.write(message(500_000)))
        fd = await asyncio.to_thread(take_pipe, ends.peer)
        first = await asyncio.to_thread(announced, ends.peer)
        loan = ends.comm.stream._loan
        await until(lambda: loan.writer._out.stats().bytes == first)
        write.cancel()
        with pytest.raises(asyncio.CancelledError):
            await write
        os.set_blocking(fd, True)  # (the thread of the pump may close it later)
        rest = await asyncio.to_thread(os.read, fd, LARGE)
        assert rest == b""  # the end, without data before it
        assert ends.peer.recv(1) == b""  # and no word that it was whole
        os.close(fd)
        assert not held()


async def test_forked_child_takes_nothing_out_of_the_pipe(
    monkeypatch: pytest.MonkeyPatch, comms: Comms
) -> None:
    monkeypatch.setattr(local, "LARGE", 100_000)
    one, other = comms
    write = asyncio.create_task(one.write(message(500_000)))
    await until(lambda: one.stream._lends and one.stream._loan.reader.fileno() < 0)
    await until(lambda: one.stream._loan.writer._out.stats().bytes > 500_000)
    child = fork()
    if not child:
        one.abort()
        os._exit(0)
    await asyncio.to_thread(os.waitpid, child, 0)
    got = await other.read()
    assert np.array_equal(got["a"], array(500_000))
    await write


# ---- no fds -------------------------------------------------------------------------


@contextlib.contextmanager
def no_fds_left() -> Iterator[None]:
    most = max(map(int, os.listdir("/proc/self/fd")))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as files:
        while (file := files.enter_context(open(os.devnull))).fileno() < most:
            pass  # (there may be gaps in the numbers)
        last = file.fileno()
        resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def start_threads(one: Any, other: Any) -> None:
    """Start the threads that send and receive, so that they have their fds."""
    told, one.remote_info = one.remote_info, {}
    await asyncio.gather(other.read(), one.write(message(BIG)))  # large enough to wait
    one.remote_info = told


async def test_sender_without_fds_uses_the_socket(comms: Comms) -> None:
    one, other = comms
    await start_threads(one, other)
    with no_fds_left():
        assert not (await asyncio.gather(other.read(), written(one)))[1]
    assert (await asyncio.gather(other.read(), written(one)))[1]  # with fds


async def written(comm: Any, seed: int = 0) -> bool:
    """Write a large message; return whether the pipe was used."""
    before = comm.stream._stream.stats.bytes_sent
    await comm.write(message(BIG, seed))
    return bool(comm.stream._stream.stats.bytes_sent - before < 100)


async def test_receiver_without_fds_gets_it_by_the_socket(comms: Comms) -> None:
    one, other = comms
    await start_threads(one, other)
    write = asyncio.create_task(one.write(message(BIG)))
    await until(lambda: one.stream._loan._ends and one.stream._lends)
    await until(lambda: one.stream._loan.reader.fileno() < 0)  # its fd was sent
    with no_fds_left():
        got = await other.read()
    await write
    assert other.stream._pipe is None
    assert np.array_equal(got["a"], array(BIG))
    # from now on, the socket is used
    got, by_pipe = await asyncio.gather(other.read(), written(one))
    assert not by_pipe


# ---- hostile peers ------------------------------------------------------------------


def number(value: int) -> bytes:
    return struct.pack("=Q", value)


def body(nbytes: int) -> tuple[int, bytes]:
    """Return a message's first number, and the rest of it."""
    buffers, _ = pack([b"\x80", b"\x80" * nbytes])
    whole = b"".join(map(bytes, buffers))
    return struct.unpack_from("=Q", whole)[0], whole[8:]


def offer(peer: socket.socket, *fds: int) -> None:
    peer.send(number(PIPE))
    socket.send_fds(peer, [b"p"], fds) if fds else peer.send(b"p")


@contextlib.contextmanager
def offered(peer: socket.socket) -> Iterator[tuple[int, int]]:
    """A pipe whose read end was offered."""
    fds = os.pipe()
    offer(peer, fds[0])
    yield fds
    for fd in fds:
        os.close(fd)


def _no_pipe_after_all_and_yet(peer: socket.socket) -> None:
    offer(peer)
    peer.send(BY_NO_PIPE)


def _offer_and_close(peer: socket.socket, *fds: int) -> None:
    offer(peer, fds[0])
    for fd in fds:
        os.close(fd)


def _lend(
    first: int, data: bytes, word: bytes = b""
) -> Callable[[socket.socket], object]:
    """Send a message by a pipe, and then this word on the socket."""

    def attack(peer: socket.socket) -> None:
        with offered(peer) as (_, write_fd):
            peer.send(number(BY_PIPE + first))
            os.write(write_fd, data)
            peer.send(word)

    return attack


def _two_pipes(peer: socket.socket) -> None:
    with offered(peer) as (read_fd, _):
        offer(peer, read_fd)


def _the_end_in_place_of_the_word(peer: socket.socket) -> None:
    _lend(FIRST, REST)(peer)
    peer.shutdown(socket.SHUT_WR)


FIRST, REST = body(1000)
BY_NO_PIPE = number(BY_PIPE + 24) + WHOLE
HOSTILE: dict[str, Callable[[socket.socket], object]] = {
    "a file": lambda peer: _offer_and_close(peer, os.open(os.devnull, os.O_RDONLY)),
    "a write end": lambda peer: _offer_and_close(peer, *reversed(os.pipe())),
    "a socket": lambda peer: offer(peer, peer.fileno()),
    "by a pipe that never came": lambda peer: peer.send(BY_NO_PIPE),
    "no pipe after all, and yet": _no_pipe_after_all_and_yet,
    "two pipes": _two_pipes,
    "more than fits into memory": _lend(1 << 62, b""),
    "a strange word": _lend(FIRST, REST, b"?"),
    "the end in place of the word": _the_end_in_place_of_the_word,
    "the end in the pipe": _lend(FIRST, REST[:-1], WHOLE),
    "nonsense in the pipe": _lend(64, b"\xff" * 64, WHOLE),
}


@pytest.mark.parametrize("attack", HOSTILE)
async def test_peer_that_breaks_the_rules(attack: str) -> None:
    with Ends() as ends:
        HOSTILE[attack](ends.peer)
        await ends_in_error(ends.comm.read())
        assert ends.comm.closed()


@pytest.mark.parametrize("fds", [0, 1, 2])
@pytest.mark.parametrize("part", [0, 12, None])
async def test_message_that_is_sent_again(
    fds: int, part: int | None, comms: Comms
) -> None:
    """Without the pipe, with one that ends too soon or not, or with too many fds."""
    one, other = comms
    peer = socket.socket(fileno=os.dup(one.stream.fileno()))
    buffers, _ = pack([b"\x80", b"\x93\x01\x02\x03" * 9])
    whole = b"".join(map(bytes, buffers))
    read_fd, write_fd = os.pipe()
    offer(peer, *[read_fd, write_fd][:fds])
    peer.send(number(BY_PIPE + struct.unpack_from("=Q", whole)[0]))
    os.write(write_fd, whole[8:][:part])
    os.close(read_fd)
    os.close(write_fd)
    peer.send(AGAIN + whole[8:])
    frames = await other.stream.receive_frames(LARGE)
    assert bytes(frames[0]) == b"\x80"
    assert other.stream._pipe is None
    peer.close()


@pytest.mark.parametrize("part", [0, 100_000])
async def test_pipe_of_the_sender_fails(
    part: int, comms: Comms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread can be started for it, say."""
    one, other = comms
    await asyncio.gather(other.read(), one.write(message(BIG)))
    writer = one.stream._loan.writer
    send = writer.send

    async def fail(*buffers: Any) -> None:
        await send(b"".join(buffers)[:part])
        raise StreamBroken("no thread")

    monkeypatch.setattr(writer, "send", fail)
    for seed in range(2):
        got, by_pipe = await asyncio.gather(other.read(), written(one, seed))
        assert np.array_equal(got["a"], array(BIG, seed))
        assert not by_pipe


# ---- death --------------------------------------------------------------------------

READER = """
import os, signal, socket, sys
peer, n = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
peer.setblocking(True)
peer.recv(8, socket.MSG_WAITALL)
fd = socket.recv_fds(peer, 1, 1)[1][0]
os.set_blocking(fd, True)
while n:
    n -= len(os.read(fd, n))
os.kill(os.getpid(), signal.SIGKILL)
"""

WRITER = """
import os, signal, socket, struct, sys
peer, n, first = socket.socket(fileno=int(sys.argv[1])), *map(int, sys.argv[2:])
peer.setblocking(True)
read_fd, write_fd = os.pipe()
peer.send(struct.pack("=Q", (1 << 64) - 1))
socket.send_fds(peer, [b"p"], [read_fd])
peer.send(struct.pack("=Q", (1 << 63) + first))
os.close(read_fd)
data = struct.pack("=3Q", 2, 1, first - 25) + bytes(first - 24)
while n:
    n -= os.write(write_fd, data[-n:])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("seed", range(DEATHS))
@pytest.mark.parametrize("role", [READER, WRITER], ids=["reader", "writer"])
async def test_peer_is_killed_at_any_byte(role: str, seed: int) -> None:
    n = random.Random(seed).randrange(1, BIG)

    with Ends() as ends:
        arguments = [str(ends.peer.fileno()), str(n), str(BIG)]
        child = await asyncio.to_thread(
            subprocess.Popen,
            [sys.executable, "-c", role, *arguments],
            pass_fds=[ends.peer.fileno()],
        )
        ends.peer.close()
        doing = ends.comm.write(message(BIG)) if role == READER else None
        await ends_in_error(doing or ends.comm.read())
        assert ends.comm.closed()
        assert await asyncio.to_thread(child.wait) == -signal.SIGKILL
    count("Dask: deaths of a peer in a large message", 1)


@pytest.mark.parametrize("seed", range(DEATHS))
@pytest.mark.parametrize("who", ["reader", "writer"])
async def test_comm_is_aborted_at_any_byte(who: str, seed: int, comms: Comms) -> None:
    """Another thread aborts it, as Dask may do."""
    n = random.Random(seed).randrange(1, BIG)
    one, other = comms
    dying = {"reader": other, "writer": one}[who]
    write = asyncio.create_task(one.write(message(BIG)))
    read = asyncio.create_task(other.read())

    def is_time() -> bool:
        is_open = one.stream._loan._ends is not None
        return write.done() or (
            is_open and one.stream._loan.writer._out.stats().bytes >= n
        )

    await until(is_time)
    await asyncio.to_thread(dying.abort)
    results = await asyncio.gather(write, read, return_exceptions=True)
    for result in results:
        if isinstance(result, dict):
            assert np.array_equal(result["a"], array(BIG))
        else:
            assert isinstance(result, (int, CommClosedError))
    count("Dask: aborts in a large message", 1)


@pytest.mark.parametrize("what", ["read", "write"])
async def test_socket_that_ends_without_the_pipe_ends_both(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LOOK", 0.01)

    with Ends() as ends:
        if what == "read":
            fd, write_fd = os.pipe()
            offer(ends.peer, fd)
            ends.peer.send(number(BY_PIPE + 1000))
            doing = asyncio.create_task(ends.comm.read())
            await until(lambda: ends.comm.stream._pipe is not None)
        else:
            write_fd = -1
            doing = asyncio.create_task(ends.comm.write(message(BIG)))
            fd = await asyncio.to_thread(take_pipe, ends.peer)
        ends.peer.close()
        await ends_in_error(doing)
        os.close(fd)
        if write_fd >= 0:
            os.close(write_fd)


# ---- exceptions at every line -------------------------------------------------------


class Other:
    """The other comm, in another thread and loop, whose lines are not interrupted."""

    def __init__(self, sock: socket.socket, writes: int) -> None:
        self.got: list[Any] = []
        self._sock, self._writes = sock, writes
        self.thread = threading.Thread(target=lambda: asyncio.run(self._main()))
        self.thread.start()

    async def _main(self) -> None:
        comm = comm_over(self._sock)
        with contextlib.suppress(CommClosedError):
            for n in range(self._writes):
                await comm.write(message(LARGE, n))
        with contextlib.suppress(CommClosedError):
            while True:
                self.got.append((await comm.read())["a"])
        await comm.close()


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["first write", "second write", "read", "close"])
def test_exception_at_every_line(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing stays open, and the peer gets only whole messages."""

    async def once(lines: Lines) -> list[str]:
        ours, theirs = socket.socketpair()
        other = Other(theirs, 1 if name == "read" else 0)
        comm = comm_over(ours)
        if name in ("second write", "close"):
            await comm.write(message(LARGE))
        calls = {"read": comm.read, "close": comm.close}
        write = partial(comm.write, message(LARGE))
        kept = None  # (keeps finalizers from being interrupted)
        with contextlib.suppress(Interruption), lines:
            kept = await (calls[name]() if name in calls else write())
        await comm.close()
        comm.abort()  # (again, in case its end was interrupted)
        del comm, calls, write, kept
        gc.collect()
        await asyncio.wait_for(asyncio.to_thread(other.thread.join), 10)
        if lines.at is None:
            assert len(other.got) == {"read": 0, "second write": 2}.get(name, 1)
        whole = all(np.array_equal(got, array(LARGE)) for got in other.got)
        return [] if whole else ["a message is not whole"]

    with caplog.at_level(logging.CRITICAL):
        asyncio.run(hit_each_line(once, ("dask",)))
