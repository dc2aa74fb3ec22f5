"""TLS over a transport: what goes through, and whose a buffer is meanwhile."""

import array
import asyncio
import re
import ssl

import numpy as np
import pytest
from links import until
from oracle import assert_prefix, assert_same, payload, poison
from tls_ends import Contexts, Ends, Joined, narrow, quiet
from transports import Filler

pytestmark = pytest.mark.anyio

BIG = 3 << 20  # more than any wire holds


# ---- what goes through --------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 16384, 16385, 300_000, BIG])
async def test_both_ways_at_once(ends: Ends, size: int) -> None:
    there, back = bytes(payload(1, size)), bytes(payload(2, size))
    ends.client.transport.write(there)
    ends.server.transport.write(back)
    ends.client.transport.close()
    await until(lambda: ends.client.is_lost() and ends.server.is_lost())
    assert_same(ends.server.data, there)
    assert_prefix(ends.client.data, back)  # it has closed, and gets nothing then
    assert (ends.client.error, ends.server.error) == (None, None)


async def test_buffered_protocol_gets_it_in_its_own_memory(joined: Joined) -> None:
    above = Filler()
    ends = await joined(above=above).shake()
    narrow(ends.wires[1])
    sent = bytes(payload(1, BIG))
    ends.client.transport.write(sent)
    ends.client.transport.close()
    await until(above.is_lost)
    assert_same(above.data, sent)
    assert above.events == ["made", "data", "eof", "lost"]


async def test_any_contiguous_memory_counts_its_bytes(ends: Ends) -> None:
    picture = np.arange(24, dtype="u2").reshape(2, 3, 4)
    numbers = array.array("d", [1.5, 2.5])
    ends.client.transport.write(picture)
    ends.client.transport.write(memoryview(numbers))
    ends.client.transport.write(bytearray())
    ends.client.transport.write(np.zeros((3, 0)))
    ends.client.transport.writelines([b"x", picture, memoryview(b"y")])
    wanted = picture.tobytes() + numbers.tobytes() + b"x" + picture.tobytes() + b"y"
    await until(lambda: len(ends.server.data) == len(wanted))
    assert ends.server.data == wanted
    for wrong, error in ((picture[:, ::2], BufferError), ("text", TypeError)):
        with pytest.raises(error):
            ends.client.transport.write(wrong)


async def test_small_lines_go_under_one_seal(ends: Ends) -> None:
    sent = ends.wires[1]._stream.stats.bytes_sent
    ends.client.transport.writelines([b"line"] * 100)
    assert ends.wires[1]._stream.stats.bytes_sent - sent < 400 + 50
    ends.client.transport.writelines([b"a" * 10_000, bytearray(b"b") * 10_000])
    await until(lambda: len(ends.server.data) == 20_400)
    assert ends.server.data == b"line" * 100 + b"a" * 10_000 + b"b" * 10_000


async def test_what_is_known(tls: Contexts, ends: Ends) -> None:
    ask = ends.client.transport.get_extra_info
    assert ask("sslcontext") is tls[1]
    assert ask("tls") == "memory"
    assert isinstance(ask("ssl_object"), ssl.SSLObject)
    assert ("DNS", "localhost") in ask("peercert")["subjectAltName"]
    assert ask("cipher") == ask("ssl_object").cipher()
    assert ask("compression", "default") is None
    assert ask("nothing", 5) == 5
    assert ends.server.transport.get_extra_info("peercert") is None
    assert not ends.client.transport.can_write_eof()
    with pytest.raises(NotImplementedError, match="close"):
        ends.client.transport.write_eof()
    assert ends.client.transport.get_protocol() is ends.client


async def test_repr_tells_what_is_below(joined: Joined) -> None:
    ends = joined()
    assert repr(ends.lower) == "<TLSTransport shaking>"
    await ends.shake()
    assert re.fullmatch(
        r"<TLSTransport open over <SocketTransport fd=\d+ open>>", repr(ends.lower)
    )
    ends.lower.abort()
    await until(ends.client.is_lost)
    assert repr(ends.lower) == "<TLSTransport closed>"
    await until(ends.server.is_lost)


# ---- who owns a buffer, and for how long --------------------------------------------


async def test_written_buffer_is_yours_once_it_is_drained(ends: Ends) -> None:
    ends.server.transport.pause_reading()
    buffer = bytearray(payload(1, BIG))
    sent = bytes(buffer)
    ends.client.transport.write(buffer)
    assert ends.client.events[-1] == "pause"
    assert ends.client.transport.get_write_buffer_size() > BIG - (1 << 20)
    with pytest.raises(BufferError):
        buffer.clear()
    drained = asyncio.ensure_future(ends.client.transport.drained())
    await quiet()
    assert not drained.done()
    ends.server.transport.resume_reading()
    await drained
    poison(buffer)
    buffer.clear()
    await until(lambda: len(ends.server.data) == BIG)
    assert_same(ends.server.data, sent)
    assert ends.client.events == ["made", "pause", "resume"]


async def test_loss_gives_buffers_back_and_says_so(ends: Ends) -> None:
    ends.server.transport.pause_reading()
    buffer = bytearray(BIG)
    ends.client.transport.write(buffer)
    drained = asyncio.ensure_future(ends.client.transport.drained())
    await quiet()
    ends.wires[0].abort()
    with pytest.raises((ConnectionResetError, BrokenPipeError)) as lost:
        await drained
    assert type(ends.client.error) is lost.type
    buffer.clear()
    with pytest.raises(lost.type):
        await ends.client.transport.drained()
    ends.client.transport.write(b"nobody gets this")


async def test_paused_reader_gets_nothing_until_it_goes_on(ends: Ends) -> None:
    ends.server.transport.pause_reading()
    assert not ends.server.transport.is_reading()
    ends.client.transport.write(payload(1, BIG))
    await quiet()
    assert ends.server.data == b""
    assert ends.client.transport.get_write_buffer_size() > 0
    for _ in range(3):  # it may change its mind
        ends.server.transport.resume_reading()
        ends.server.transport.pause_reading()
    await quiet()
    assert ends.server.data == b""
    ends.server.transport.resume_reading()
    await until(lambda: len(ends.server.data) == BIG)
    assert_same(ends.server.data, payload(1, BIG))


async def test_limits_are_those_of_the_wire(ends: Ends) -> None:
    ends.client.transport.set_write_buffer_limits(high=1000, low=10)
    assert ends.client.transport.get_write_buffer_limits() == (10, 1000)
    assert ends.wires[1].get_write_buffer_limits() == (10, 1000)
