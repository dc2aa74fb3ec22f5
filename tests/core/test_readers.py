"""Readers of every kind: however they take the bytes, they get the right ones.

Copies (`peer="unknown"`, `"untrusted"`) are safe from all readers: bytes that a reader
holds by splice or tee do not change after `send` has returned.  Lent pages
(`peer="reads"`) are for readers that read.  A reader that splices or tees sees what the
pages hold later, but no other memory; and after a cancel, only what was sent.
"""

import ctypes
import fcntl
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import figures
import pytest
from links import cut_short, linux_only, others_wait, until
from loans import ends
from oracle import POISON, Checker, message, payload, poison

import aiozerocopy as azc
from aiozerocopy._core.binding import PORTABLE

pytestmark = [linux_only, pytest.mark.anyio]

MiB = 1 << 20
PIECE = 50_000
LIBC = ctypes.CDLL(None, use_errno=True)
Sink = Callable[[bytes], object]
Held = Callable[[], object]  # waits until the sender is done with its buffers
Read = Callable[[int, Sink, Held], None]


# ---- readers: each takes everything, and gives it to the sink -----------------------


def by_read(fd: int, sink: Sink, _held: Held) -> None:
    while data := os.read(fd, PIECE):
        sink(data)


def by_readv(fd: int, sink: Sink, _held: Held) -> None:
    pieces = [bytearray(size) for size in (1, 100, 4096, 30_000)]
    while n := os.readv(fd, pieces):
        sink(b"".join(pieces)[:n])


def by_vmsplice(fd: int, sink: Sink, _held: Held) -> None:
    """vmsplice from a pipe's reading end copies the bytes into our memory."""
    memory = ctypes.create_string_buffer(PIECE)
    vec = (ctypes.c_size_t * 2)(ctypes.addressof(memory), PIECE)
    while n := checked(LIBC.vmsplice(fd, ctypes.byref(vec), ctypes.c_ulong(1), 0)):
        sink(memory.raw[:n])


def by_read_and_resize(fd: int, sink: Sink, _held: Held) -> None:
    """The pipe's size changes, even while it is full."""
    dice = random.Random(1)
    while data := os.read(fd, dice.randrange(1, PIECE)):
        sink(data)
        try:
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 4096 << dice.randrange(9))
        except OSError:  # its content does not fit into the new size
            continue


def by_peek(fd: int, sink: Sink, _held: Held) -> None:
    """Peek and then read, as bytes that were only peeked at stay lent."""
    with socket.socket(fileno=os.dup(fd)) as sock:
        while seen := sock.recv(PIECE, socket.MSG_PEEK):
            data = sock.recv(PIECE)
            assert data.startswith(seen)
            sink(data)


def by_next_owner(fd: int, sink: Sink, _held: Held) -> None:
    """The socket, with its content, is sent over another socket before each read."""
    one, other = socket.socketpair()
    with one, other:
        number = os.dup(fd)
        data = b"?"
        while data:
            socket.send_fds(one, [b"x"], [number])
            os.close(number)
            (number,) = socket.recv_fds(other, 1, 1)[1]
            data = os.read(number, PIECE)
            sink(data)
        os.close(number)


def by_second_opener(fd: int, sink: Sink, _held: Held) -> None:
    """Two openers of the same pipe read in turn."""
    second = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    try:
        turn = 0
        while data := os.read((fd, second)[turn % 2], PIECE):
            sink(data)
            turn += 1
    finally:
        os.close(second)


def by_splice(fd: int, sink: Sink, held: Held, tees: bool = False) -> None:
    """Splice or tee into another pipe, which is read when the sender is done."""
    with own_pipe() as (out, into):
        count = 0
        while n := (tee if tees else os.splice)(fd, into, MiB):
            count += n
        held()
        read_from(out, count, sink)


def by_tee(fd: int, sink: Sink, held: Held) -> None:
    by_splice(fd, sink, held, tees=True)


def tee(fd: int, into: int, most: int) -> int:
    n = checked(LIBC.tee(fd, into, most, 0))
    read_from(fd, n, len)
    return n


def checked(n: int) -> int:
    if n < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return n


@contextmanager
def own_pipe() -> Iterator[tuple[int, int]]:
    out, into = os.pipe()
    try:
        fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, MiB)
        yield out, into
    finally:
        os.close(out)
        os.close(into)


def read_from(fd: int, n: int, sink: Sink) -> None:
    while n:
        data = os.read(fd, min(n, PIECE))
        sink(data)
        n -= len(data)


READ: list[Read] = [
    by_read,
    by_readv,
    by_vmsplice,
    by_read_and_resize,
    by_second_opener,
]
HOLD: list[Read] = [by_splice, by_tee]
BOTH_READ: list[tuple[str, Read]] = [
    *(("pipe", read) for read in READ),
    *(("socket", read) for read in (by_read, by_readv, by_peek, by_next_owner)),
]
BOTH_HOLD: list[tuple[str, Read]] = [
    ("pipe", by_splice),
    ("pipe", by_tee),
    ("socket", by_splice),
]


class Reader:
    """A thread that reads; `finish` raises its error."""

    def __init__(self, fd: int, read: Read) -> None:
        self.received = bytearray()
        self._fd = fd
        self._read = read
        self._may_go_on = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._read(self._fd, self.received.extend, self._may_go_on.wait)
        except BaseException as error:
            self._error = error
        finally:
            os.close(self._fd)

    async def finish(self) -> bytes:
        """The sender is done with its buffers: take the rest, and return everything."""
        self._may_go_on.set()
        await until(lambda: not self._thread.is_alive())
        if self._error is not None:
            raise self._error
        figures.count("bytes through readers of every kind", len(self.received), "B")
        return bytes(self.received)


# ---- copies -------------------------------------------------------------------------

SIZES = (10, 100_000, 4096, 3, 200_000, 65_537, 60_000)  # together less than 1 MiB


@pytest.mark.parametrize("read", READ + HOLD)
@pytest.mark.parametrize(
    ("peer", "memory"),
    [("unknown", "heap"), ("untrusted", "heap"), ("unknown", "pool")],
)
async def test_copies_are_safe_from_all(read: Read, peer: str, memory: str) -> None:
    read_fd, write_fd = os.pipe()
    reader = Reader(read_fd, read)
    async with azc.open_writer(write_fd, peer=peer) as stream:
        for number, size in enumerate(SIZES):
            data = message(1, number, size)
            if memory == "heap":
                await stream.send(data)
                poison(data)
            else:
                with azc.FramePool(len(data), slots=1) as pool:
                    with await pool.acquire() as frame:
                        frame.view[:] = data
                        await stream.send(frame)
                        poison(frame.view)
    checker = Checker()
    checker.feed(await reader.finish())
    checker.finish()
    assert checker.counts == {1: len(SIZES)}


# ---- lent pages ---------------------------------------------------------------------

FRAMES = 6
FRAME = 150_000
lends = pytest.mark.skipif(PORTABLE, reason="the portable build lends nothing")


async def lend(stream: azc.SendStream) -> None:
    """Send frames from one slot, each drawn over the last."""
    with azc.FramePool(FRAME, slots=1) as pool:
        for number in range(FRAMES):
            with await pool.acquire() as frame:
                frame.view[:] = message(1, number, FRAME - 32)
                await stream.send(frame)
                poison(frame.view)


async def received_of_lent(kind: str, read: Read) -> bytes:
    read_fd, write_fd = ends(kind)
    reader = Reader(read_fd, read)
    async with azc.open_writer(write_fd, peer="reads") as stream:
        await lend(stream)
        assert stream.lane == "vmsplice"
    return await reader.finish()


@lends
@pytest.mark.parametrize(("kind", "read"), BOTH_READ)
async def test_lent_pages_are_safe_from_readers_that_read(
    kind: str, read: Read
) -> None:
    checker = Checker()
    checker.feed(await received_of_lent(kind, read))
    checker.finish()
    assert checker.counts == {1: FRAMES}


@lends
@pytest.mark.parametrize(("kind", "read"), BOTH_HOLD)
async def test_who_holds_lent_pages_sees_no_more_than_what_is_drawn(
    kind: str, read: Read
) -> None:
    """The reader gets all bytes, each from its frame, a later one, or the poison."""
    got = await received_of_lent(kind, read)
    frames = [message(1, number, FRAME - 32) for number in range(FRAMES)]
    assert len(got) == FRAMES * FRAME
    for number in range(FRAMES):
        part = got[number * FRAME : (number + 1) * FRAME]
        drawn = zip(*frames[number:], strict=True)
        for at, (byte, later) in enumerate(zip(part, drawn, strict=True)):
            assert byte in later or byte == POISON, (number, at)


@lends
@pytest.mark.parametrize(("kind", "read"), BOTH_READ + BOTH_HOLD)
@pytest.mark.parametrize("end", ["cancel", "abort"])
async def test_what_was_lent_is_taken_from_nobody_by_a_cancel(
    kind: str, read: Read, end: str
) -> None:
    """The slot moves to other pages, so holders of the old pages see the old bytes.

    The reader starts after the end of the send, and takes what is in the pipe.
    """
    read_fd, write_fd = ends(kind)
    size = 60_000
    with azc.FramePool(FRAME, slots=1) as pool:
        stream = azc.open_writer(write_fd, peer="reads")
        with await pool.acquire() as frame:
            frame.view[:] = payload(1, FRAME)
            async with cut_short(stream.send, frame):
                await until(lambda: stream.stats.bytes_sent >= size)
                await others_wait()
            if end == "abort":
                stream.abort()
            poison(frame.view)
        reader = Reader(read_fd, read)
        if end == "cancel":
            await stream.aclose()
        got = await reader.finish()
    assert len(got) >= size
    assert got == payload(1, len(got)).tobytes()
