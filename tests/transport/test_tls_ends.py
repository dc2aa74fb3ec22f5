"""How a TLS connection begins, and how it ends."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any

import pytest
from links import until
from oracle import assert_same, payload
from renegotiation import renegotiate
from tls_ends import Contexts, Ends, Joined, Silent, client, narrow, pair, quiet, server
from transports import Recorder

from aiozerocopy.transport.tls import TLSOptions, for_client, for_server

pytestmark = pytest.mark.anyio

BIG = 3 << 20  # more than any wire holds


# ---- the end ------------------------------------------------------------------------


async def test_close_sends_what_was_written_to_who_reads_late(ends: Ends) -> None:
    ends.server.transport.pause_reading()
    ends.client.transport.write(payload(1, BIG))
    ends.client.transport.close()
    assert ends.client.transport.is_closing()
    ends.client.transport.write(b"too late")
    await quiet()
    assert not ends.client.is_lost()
    ends.server.transport.resume_reading()
    await until(lambda: ends.server.is_lost() and ends.client.is_lost())
    assert_same(ends.server.data, payload(1, BIG))
    assert ends.server.events == ["made", "data", "eof", "lost"]
    assert (ends.client.error, ends.server.error) == (None, None)


async def test_protocol_may_close_when_it_is_paused(ends: Ends) -> None:
    """Inside of its write: the piece that has filled the wire is on its way."""
    await quiet()
    ends.server.transport.pause_reading()
    narrow(ends.wires[1])
    ends.client.pause_writing = ends.lower.close
    ends.client.transport.write(payload(1, 100_000))
    assert ends.lower.is_closing()
    ends.server.transport.resume_reading()
    await until(lambda: ends.server.is_lost() and ends.client.is_lost())
    assert_same(ends.server.data, payload(1, 100_000))
    assert (ends.client.error, ends.server.error) == (None, None)


async def test_reader_that_pauses_still_gets_all_after_the_peers_end(
    ends: Ends,
) -> None:
    ends.server.transport.write(payload(1, 100_000))
    ends.client.transport.pause_reading()
    ends.server.transport.close()
    await quiet()
    assert ends.client.data == b""
    ends.client.transport.resume_reading()
    await until(ends.client.is_lost)
    assert_same(ends.client.data, payload(1, 100_000))
    assert ends.client.events == ["made", "data", "eof", "lost"]


async def test_close_right_after_reading_was_resumed(ends: Ends) -> None:
    ends.client.transport.pause_reading()
    ends.client.transport.resume_reading()
    ends.client.transport.close()
    await until(lambda: ends.server.is_lost() and ends.client.is_lost())
    assert (ends.client.error, ends.server.error) == (None, None)


async def test_close_while_the_peer_goes_on_sending(ends: Ends) -> None:
    """What it still sends is dropped; it is no error at either side."""
    ends.client.transport.pause_reading()
    ends.server.transport.write(payload(1, BIG))
    await quiet()
    ends.client.transport.close()
    await until(lambda: ends.server.is_lost() and ends.client.is_lost())
    assert (ends.client.error, ends.server.error) == (None, None)
    assert ends.client.data == b""


async def test_protocol_that_keeps_it_open_may_write_on(joined: Joined) -> None:
    above = Recorder(keep_open=True)
    ends = await joined(above=above).shake()
    goodbye = ends.lower._session
    goodbye.say_goodbye()
    ends.wires[1].write(goodbye.take())
    await until(lambda: "eof" in above.events)
    above.transport.write(b"the answer")
    await until(lambda: ends.client.data == b"the answer")
    assert not above.is_lost()
    above.transport.close()
    await until(lambda: above.is_lost() and ends.client.is_lost())
    assert above.events == ["made", "eof", "lost"]


async def test_end_without_a_goodbye_is_an_end(ends: Ends) -> None:
    ends.client.transport.write(b"all of it")
    await quiet()
    ends.wires[1].get_extra_info("socket").shutdown(socket.SHUT_WR)
    await until(ends.server.is_lost)
    assert (ends.server.data, ends.server.error) == (b"all of it", None)
    assert ends.server.events == ["made", "data", "eof", "lost"]


async def test_abort_drops_what_was_written(ends: Ends) -> None:
    ends.server.transport.pause_reading()
    buffer = bytearray(BIG)
    ends.client.transport.write(buffer)
    ends.client.transport.abort()
    await until(ends.client.is_lost)
    assert ends.client.error is None
    buffer.clear()
    with pytest.raises(ConnectionAbortedError):
        await ends.client.transport.drained()


async def test_peer_that_never_says_goodbye_is_left(joined: Joined) -> None:
    ends = await joined(shutdown_timeout=0.05).shake()
    ends.wires[0].pause_reading()  # not even the goodbye arrives
    ends.client.transport.close()
    await until(ends.client.is_lost)
    assert isinstance(ends.client.error, TimeoutError)
    assert str(ends.client.error) == "SSL shutdown timed out"


async def test_what_was_changed_on_the_way_is_an_error(ends: Ends) -> None:
    await quiet()
    session = ends.lower._session
    session.encrypt(b"good")
    good = session.take()
    session.encrypt(b"bad")
    bad = bytearray(session.take())
    bad[-1] ^= 1
    ends.wires[1].write(good + bad)
    await until(ends.server.is_lost)
    assert ends.server.data == b"good"
    assert isinstance(ends.server.error, ssl.SSLError)
    await until(ends.client.is_lost)  # it was told by an alert
    assert isinstance(ends.client.error, ssl.SSLError)
    assert "bad record mac" in str(ends.client.error)


async def test_protocol_that_raises_loses_its_connection(ends: Ends) -> None:
    complaints: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context))

    def data_received(data: bytes) -> None:
        raise ValueError("its own")

    ends.server.data_received = data_received
    ends.client.transport.write(b"x")
    await until(lambda: ends.server.is_lost() and ends.client.is_lost())
    assert str(ends.server.error) == "its own"
    assert [str(context["exception"]) for context in complaints] == ["its own"]


async def test_peer_that_negotiates_anew_is_heard_first(
    tls: Contexts, joined: Joined
) -> None:
    """Until then what is written waits, as if the wire was full."""
    tls[1].maximum_version = ssl.TLSVersion.TLSv1_2
    try:
        ends = await joined(tls).shake()
    finally:
        tls[1].maximum_version = ssl.TLSVersion.MAXIMUM_SUPPORTED
    renegotiate(ends.upper._session.ssl)
    ends.server.transport.write(b"x")
    ends.server.transport.pause_reading()
    await until(lambda: ends.client.data == b"x")
    buffer = bytearray(payload(1, BIG))
    ends.client.transport.write(buffer)
    assert ends.client.events == ["made", "data", "pause"]
    ends.client.transport.close()
    await quiet()
    assert ends.client.transport.get_write_buffer_size() >= BIG
    ends.server.transport.resume_reading()
    await until(lambda: ends.client.is_lost() and ends.server.is_lost())
    assert_same(ends.server.data, payload(1, BIG))
    assert (ends.client.error, ends.server.error) == (None, None)


# ---- the handshake ------------------------------------------------------------------


async def test_client_that_does_not_trust_tells_the_server(
    tls: Contexts, joined: Joined
) -> None:
    ends = joined((tls[0], ssl.create_default_context()))
    with pytest.raises(ssl.SSLCertVerificationError):
        await ends.ready
    await until(lambda: ends.upper.is_closing())
    await quiet()
    assert (ends.server.events, ends.client.events) == ([], [])
    assert ends.upper._failure is not None
    assert "unknown ca" in str(ends.upper._failure.again())


async def test_name_of_the_server_must_be_its_own(tls: Contexts) -> None:
    ready = asyncio.get_running_loop().create_future()
    upper = server(tls, Recorder())
    pair(upper, client(tls, Recorder(), ready, server_hostname="elsewhere"))
    with pytest.raises(ssl.SSLCertVerificationError, match="elsewhere"):
        await ready
    await until(upper.is_closing)


async def test_peer_that_is_silent_is_left(tls: Contexts) -> None:
    ready = asyncio.get_running_loop().create_future()
    pair(client(tls, Recorder(), ready, handshake_timeout=0.05), Silent())
    with pytest.raises(ConnectionAbortedError, match=r"longer than 0\.05 s"):
        await ready


async def test_peer_that_leaves_before_it_answers(tls: Contexts) -> None:
    ready = asyncio.get_running_loop().create_future()
    upper = client(tls, Recorder(), ready)
    _, peer = pair(upper, Silent())
    await quiet()
    peer.close()
    with pytest.raises(ConnectionResetError, match="handshake"):
        await ready


async def test_peer_that_speaks_no_tls(joined: Joined) -> None:
    ends = joined()
    ends.wires[1].write(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await ends.ready
    await until(lambda: ends.upper.is_closing())
    assert ends.upper._failure is not None
    assert isinstance(ends.upper._failure.again(), ssl.SSLError)


@pytest.mark.parametrize("name", ["handshake_timeout", "shutdown_timeout"])
def test_timeouts_are_positive(tls: Contexts, name: str) -> None:
    options: dict[str, Any] = {name: 0}
    with pytest.raises(ValueError, match=f"ssl_{name} should be a positive number"):
        TLSOptions(tls[1], **options)


def test_true_is_a_context_for_clients_alone() -> None:
    by_host = for_client(True, "host", None, None, None)
    assert by_host is not None
    assert by_host.server_hostname == "host"
    assert by_host.context.check_hostname
    unchecked = for_client(True, "host", "", None, None)
    assert unchecked is not None
    assert not unchecked.context.check_hostname
    assert unchecked.session().ssl.server_hostname is None
    assert for_client(None, "host", None, None, None) is None
    with pytest.raises(TypeError, match="SSLContext, got True"):
        for_server(True, None, None)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: for_client(None, "h", "h", None, None), "server_hostname is only"),
        (lambda: for_client(None, "h", None, 1, None), "ssl_handshake_timeout is only"),
        (lambda: for_client(True, None, None, None, None), "must set server_hostname"),
        (lambda: for_server(None, None, 1), "ssl_shutdown_timeout is only"),
    ],
)
def test_contradictions_are_refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        call()
