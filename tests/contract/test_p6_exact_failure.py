"""P6: every waiting sender gets the error, with the number of bytes sent.

What a child adds to the error: ../core/test_process.py.
"""

import errno
import threading

import anyio
import pytest
from links import BIG, Link, attempting, begun, is_trio, others_wait, until
from oracle import message

from aiozerocopy import SendStream, StreamBroken, Ticket

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("deadly_sigpipe")]


async def test_bytes_sent_is_exact(clogged: Link) -> None:
    before, data = message(1, 0, 3_000), message(1, 1, BIG)
    async with clogged.sender() as stream:
        await stream.send(before)
        assert clogged.read(len(before)) == before
        async with attempting(stream.send, data) as sending:
            await begun(stream)
            start = clogged.read(1000)  # too few for the sender to continue
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


@pytest.mark.every_loop
async def test_all_senders_fail_in_order(clogged: Link) -> None:
    failed: list[tuple[int, StreamBroken]] = []

    async def send(number: int) -> None:
        data = message(1, number, BIG)
        try:
            await stream.send(data)
        except StreamBroken as error:
            data.clear()  # although the error is still alive
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
            await others_wait()
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


@pytest.mark.parametrize("size", [1000, 60_000])  # the larger is sent in pieces
async def test_sending_after_the_peer_left(clogged: Link, size: int) -> None:
    async with clogged.sender() as stream:
        clogged.kill_reader()
        for _ in range(2):
            with pytest.raises(StreamBroken) as caught:
                while True:  # a socket notices with its first message
                    await stream.send(bytes(size))
            assert isinstance(caught.value.__cause__, OSError)
        with pytest.raises(StreamBroken):
            await stream.put(b"x")
        with pytest.raises(StreamBroken):
            await stream.send_many([b"x"])
        with pytest.raises(StreamBroken):
            await stream.flush()


@pytest.mark.every_loop
async def test_thread_gets_the_error_too(some: Link) -> None:
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
    """Return how many bytes the reader could still read, once the sender is stuck."""
    if link.kind in ("cat", "pty", "tcp4", "tcp6"):
        return 0  # how full the buffers on their way are is not known

    def rests() -> bool:
        stats = stream.stats  # the bytes also match between two pieces
        return stats.send_waits > 0 and stats.bytes_sent == read + link.unread()

    await until(rests)
    return link.unread()
