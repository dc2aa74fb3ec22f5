"""The streams in memory behave like ours, and as a test asks them to.

test_check_stream.py checks that they keep the contract.
"""

import contextlib
import linecache
from functools import partial

import anyio
import anyio.lowlevel
import pytest
from interruption import Interruption, Lines, Place, hit_each_line
from links import attempt, attempting, cut_short, meanwhile, others_wait

from aiozerocopy import IncompleteReceive, StreamBroken, StreamClosed
from aiozerocopy.testing import MemoryStream, memory_pair

pytestmark = [pytest.mark.anyio, pytest.mark.every_loop]


async def receive(stream: MemoryStream, n: int) -> bytes:
    memory = bytearray(n)
    await stream.receive_exactly(memory)
    return bytes(memory)


# ---- sending ------------------------------------------------------------------------


async def test_cancelled_put_in_line_leaves_no_trace() -> None:
    one, other = memory_pair(10, queue_limit=100)
    await one.put(b"1" * 110)
    data = bytearray(b"2" * 60)
    async with cut_short(one.put, data):
        await others_wait()
    data.clear()
    await one.put()
    assert await receive(other, 110) == b"1" * 110
    await one.send(b"3")
    assert await receive(other, 1) == b"3"


# ---- receiving ----------------------------------------------------------------------


async def test_receive_into_memory() -> None:
    one, other = memory_pair(10)
    memory = bytearray(b"-" * 6)
    await one.send(b"abcd")
    assert await other.receive_into(memory) == 4
    assert memory == b"abcd--"
    assert await other.receive_into(bytearray()) == 0
    async with attempting(other.receive_exactly, memory) as receiving:
        await one.send(b"12")
        await others_wait()
        with pytest.raises(BufferError):
            memory.clear()
        for call in (other.receive, partial(other.receive_into, bytearray(1))):
            with pytest.raises(anyio.BusyResourceError):
                await call()
        assert not receiving.done
        await one.send(b"3456789")
    assert memory == b"123456"
    assert await other.receive(2) == b"78"
    with pytest.raises(BufferError):
        await other.receive_into(b"read only")
    with pytest.raises(ValueError, match="positive"):
        await other.receive(0)


async def test_cancelled_receive_exactly_loses_nothing() -> None:
    one, other = memory_pair(3)
    memory = bytearray(10)
    async with cut_short(other.receive_exactly, memory):
        await one.send(b"abcde")
        await others_wait()
    memory.clear()
    await one.put(b"fghij")
    assert await receive(other, 10) == b"abcdefghij"


async def play_receive(call: str, lines: Lines) -> list[str]:
    """What an interrupted receive does not return comes with the next."""
    one, other = memory_pair(4)
    ticket = await one.put(b"123456")
    got, memory = b"", bytearray(5)
    with contextlib.suppress(Interruption), lines:
        if call == "receive":
            got = await other.receive()
        elif call == "receive_into":
            n = await other.receive_into(memory)
            got = bytes(memory)[:n]
        else:
            await other.receive_exactly(memory)
            got = bytes(memory)
    memory.clear()
    with anyio.move_on_after(5):
        while len(got) < 6:
            got += await other.receive()
        await ticket
    return [] if got == b"123456" else [f"{got!r} came"]


@pytest.mark.parametrize("call", ["receive", "receive_into", "receive_exactly"])
async def test_interrupted_receive_loses_nothing(call: str) -> None:
    def some(places: list[Place]) -> list[Place]:
        # (before the end of a block a tracer is called, but no handler)
        return [at for at in places if "with self." not in linecache.getline(*at[:2])]

    await hit_each_line(partial(play_receive, call), ("testing",), some)


async def test_incomplete() -> None:
    one, other = memory_pair()
    await one.send(b"abc")
    await one.aclose()
    memory = bytearray(5)
    with pytest.raises(IncompleteReceive) as caught:
        await other.receive_exactly(memory)
    assert (caught.value.received, caught.value.total) == (3, 5)
    assert memory == b"abc\0\0"
    with pytest.raises(anyio.EndOfStream):
        await other.receive_exactly(memory)


async def test_pieces() -> None:
    one, other = memory_pair(pieces=3)
    await one.send(b"abcdefgh")
    assert [await other.receive() for _ in range(3)] == [b"abc", b"def", b"gh"]
    await other.send(b"12345")
    assert await receive(one, 5) == b"12345"
    for wrong in (partial(memory_pair, 0), partial(memory_pair, pieces=0)):
        with pytest.raises(ValueError, match="must be at least 1"):
            wrong()


# ---- the end of a stream -------------------------------------------------------------


async def test_break_after_some_bytes() -> None:
    one, other = memory_pair(10)
    await one.send(b"123")
    one.break_after(20)
    data = bytearray(b"x" * 30)
    async with anyio.create_task_group() as tasks:
        sending = attempt(tasks, one.send, data)
        await others_wait()
        waiting = attempt(tasks, one.send, b"next")
        reading = attempt(tasks, one.receive)
        received = b""
        with pytest.raises(StreamBroken, match="the peer reset the connection"):
            while True:
                received += await other.receive()
    assert received == b"123" + b"x" * 20
    data.clear()
    assert isinstance(sending.error, StreamBroken)
    assert (sending.error.bytes_sent, sending.error.total) == (20, 30)
    assert "20 of 30 bytes" in str(sending.error)
    assert isinstance(sending.error.__cause__, ConnectionResetError)
    assert isinstance(waiting.error, StreamBroken)
    assert (waiting.error.bytes_sent, waiting.error.total) == (0, 4)
    assert isinstance(reading.error, StreamBroken)
    for stream in (one, other):
        for call in (partial(stream.send, b"x"), stream.receive, stream.flush):
            with pytest.raises(StreamBroken):
                await call()
        await stream.aclose()
        with pytest.raises(StreamClosed):
            await stream.send(b"x")


async def test_cancelled_aclose_closes() -> None:
    one, other = memory_pair(10)
    ticket = await one.put(b"x" * 30)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await one.aclose()
    assert ticket.done()
    assert await receive(other, 10) == b"x" * 10
    with pytest.raises(anyio.EndOfStream):
        await other.receive()


async def test_aclose_tells_of_a_put_that_failed() -> None:
    one, other = memory_pair(10)
    tickets = [await one.put(b"x" * 30), await one.put(b"y")]
    other.abort()
    with pytest.raises(StreamBroken):
        await tickets[1]
    with pytest.raises(StreamBroken) as caught:
        await one.aclose()
    assert caught.value.total == 30
    await one.aclose()


async def test_exception_in_a_block_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aiozerocopy.testing._memory.LINGER", 0.01)
    with pytest.raises(ZeroDivisionError):
        async with memory_pair(10) as (one, other):
            await other.put(b"x" * 30)
            async with one:
                await one.put(b"x" * 30)
                raise ZeroDivisionError
    with pytest.raises(StreamClosed):
        await one.receive()


async def test_send_eof() -> None:
    one, other = memory_pair(10)
    ticket = await one.put(b"x" * 20)
    async with meanwhile(one.send_eof):
        assert await receive(other, 20) == b"x" * 20
        with pytest.raises(anyio.EndOfStream):
            await other.receive()
    await ticket
    await one.send_eof()
    for call in (one.send, one.put, one.flush, partial(one.send_many, [])):
        with pytest.raises(StreamClosed):
            await call()
    await other.send(b"answer")
    assert await one.receive() == b"answer"
    await one.aclose()
