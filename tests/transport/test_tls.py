"""Transports with TLS: data, the owners of buffers, beginnings and ends."""

import array
import asyncio
import io
import socket
import ssl
import sys
import weakref
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from links import others_wait, until
from oracle import assert_same, payload, poison
from renegotiation import renegotiate
from transports import Contexts, Filler, HeldFile, Recorder, both_loops

from aiozerocopy import transport as azt
from aiozerocopy.transport import TLSTransport

pytestmark = pytest.mark.anyio

BIG = 3 << 20  # more than any link holds
# Python 3.11 has a new implementation of TLS in asyncio.  The older one does not answer
# close_notify or call eof_received for it, and has no TLS inside TLS.
IS_NEW = sys.version_info >= (3, 11)
AT_THE_END = ["eof", "lost"] if IS_NEW else ["data", "lost"]


class Ends:
    """A client's and a server's protocol at the two ends of a socket pair."""

    def __init__(self, server: Recorder, client: Recorder) -> None:
        self.server = server
        self.client = client

    async def shake(
        self, contexts: Contexts, name: str = "localhost", **options: Any
    ) -> Any:
        one, other = socket.socketpair()
        await asyncio.gather(
            azt.connect_accepted_socket(lambda: self.server, one, ssl=contexts[0]),
            azt.create_connection(
                *(lambda: self.client,),
                sock=other,
                ssl=contexts[1],
                server_hostname=name,
                **options,
            ),
        )
        return self

    async def are_lost(self) -> None:
        await until(lambda: self.client.is_lost() and self.server.is_lost())


@pytest.fixture
async def ends(tls: Contexts, anyio_backend: object) -> AsyncIterator[Ends]:
    """A connected pair whose handshake is over."""
    ends = await Ends(Recorder(), Recorder()).shake(tls)
    yield ends
    await abort(ends.client, ends.server)


async def abort(*protocols: Recorder) -> None:
    for protocol in protocols:
        protocol.transport.abort()
    await others_wait()


async def quiet() -> None:
    """Return when all is done that a socket takes at once."""
    for _ in range(100):
        await asyncio.sleep(0)


# ---- data ---------------------------------------------------------------------------


def exchange(sock: ssl.SSLSocket, data: memoryview) -> bytes:
    """In a thread: send this, receive as much, and send close_notify."""
    with sock:
        sock.settimeout(10)
        sock.sendall(data)
        got = bytearray()
        while len(got) < len(data):
            got += sock.recv(1 << 16)
        if IS_NEW:
            sock.unwrap()
    return bytes(got)


@both_loops
@pytest.mark.parametrize("is_server", [True, False])
async def test_openssls_own_socket_is_the_peer(tls: Contexts, is_server: bool) -> None:
    ours, theirs = socket.socketpair()

    def peer() -> bytes:
        name = "localhost" if is_server else None
        wrapped = tls[1 if is_server else 0].wrap_socket(
            theirs, server_side=not is_server, server_hostname=name
        )
        return exchange(wrapped, payload(2, BIG))

    with ThreadPoolExecutor(1) as threads:
        loop = asyncio.get_running_loop()
        theirs_got = loop.run_in_executor(threads, peer)
        if is_server:
            made = azt.connect_accepted_socket(Recorder, ours, ssl=tls[0])
        else:
            options: Any = {"ssl": tls[1], "server_hostname": "localhost"}
            made = azt.create_connection(Recorder, sock=ours, **options)
        transport, notes = await made
        transport.write(payload(1, BIG))
        assert_same(await theirs_got, payload(1, BIG))
    await until(notes.is_lost)
    assert_same(notes.data, payload(2, BIG))
    assert notes.error is None


async def test_buffered_protocol_gets_it_in_its_own_memory(tls: Contexts) -> None:
    ends = await Ends(Filler(), Recorder()).shake(tls)
    ends.client.transport.write(payload(1, BIG))
    ends.client.transport.close()
    await ends.are_lost()
    assert_same(ends.server.data, payload(1, BIG))
    assert ends.server.events[-2:] == AT_THE_END


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


@both_loops
async def test_nothing_gets_between_the_pieces_of_a_file(ends: Ends) -> None:
    transport, held = ends.client.transport, HeldFile(bytes(payload(1, BIG)))
    files = (held, io.BytesIO(payload(2, BIG)))
    sending = [asyncio.ensure_future(azt.sendfile(transport, file)) for file in files]
    await others_wait()
    for write in (transport.write, lambda it: transport.writelines([it])):
        with pytest.raises(RuntimeError, match="a file is being sent in pieces"):
            write(b"between")
    held.go.set()
    assert await asyncio.gather(*sending) == [BIG, BIG]
    transport.write(b"behind")
    transport.close()
    await ends.are_lost()
    wanted = bytes(payload(1, BIG)) + bytes(payload(2, BIG)) + b"behind"
    assert_same(ends.server.data, wanted)


async def test_a_close_ends_a_file(ends: Ends) -> None:
    transport, held = ends.client.transport, HeldFile(bytes(payload(1, BIG)))
    sending = asyncio.ensure_future(azt.sendfile(transport, held))
    await others_wait()
    transport.close()
    transport.write(b"too late, but no error")
    held.go.set()
    with pytest.raises(ConnectionAbortedError):
        await sending
    await ends.are_lost()
    assert ends.server.data == b""


# ---- the owner of a buffer, and when `drained` returns ------------------------------


@both_loops
async def test_drained_once_all_is_out(ends: Ends) -> None:
    ends.server.transport.pause_reading()
    for number in range(2):  # the second one waits in OpenSSL's memory
        buffer = bytearray(payload(number, BIG))
        ends.client.transport.write(buffer)
        poison(buffer)
        buffer.clear()
    assert ends.client.events[-1] == "pause"
    drained = asyncio.ensure_future(ends.client.transport.drained())
    await quiet()
    assert not drained.done()
    ends.server.transport.resume_reading()
    await drained
    await until(lambda: len(ends.server.data) == 2 * BIG)
    assert_same(ends.server.data, b"".join(payload(n, BIG) for n in range(2)))
    assert ends.client.events == ["made", "pause", "resume"]


@both_loops
@pytest.mark.parametrize("who", ["client", "server"])
async def test_drained_says_that_something_was_lost(ends: Ends, who: str) -> None:
    ends.server.transport.pause_reading()
    ends.client.transport.write(bytes(BIG))
    ends.client.transport.write(bytes(BIG))
    drained = asyncio.ensure_future(ends.client.transport.drained())
    await quiet()
    getattr(ends, who).transport.abort()
    for waiting in (drained, ends.client.transport.drained()):
        with pytest.raises(ConnectionError) as lost:
            await waiting
        assert (lost.type is ConnectionAbortedError) == (who == "client")
    await until(ends.client.is_lost)
    assert type(ends.client.error) is (type(None) if who == "client" else lost.type)


async def test_drained_says_that_something_came_too_late(ends: Ends) -> None:
    for _ in range(2):
        ends.client.transport.close()
    await ends.client.transport.drained()
    assert ends.client.transport.is_closing()
    ends.client.transport.write(b"too late")
    with pytest.raises(ConnectionAbortedError):
        await ends.client.transport.drained()
    await ends.are_lost()
    ends.client.transport.write(b"too late")
    with pytest.raises(ConnectionAbortedError):
        await ends.client.transport.drained()
    assert ends.server.data == b""


@pytest.mark.parametrize("is_aborted", [False, True])
async def test_renegotiation_is_heard_first(tls: Contexts, is_aborted: bool) -> None:
    """Data written meanwhile waits in a copy."""
    tls[1].maximum_version = ssl.TLSVersion.TLSv1_2
    try:
        ends = await Ends(Recorder(), Recorder()).shake(tls)
    finally:
        tls[1].maximum_version = ssl.TLSVersion.MAXIMUM_SUPPORTED
    renegotiate(ends.server.transport.get_extra_info("ssl_object"))
    ends.server.transport.write(b"x")
    ends.server.transport.pause_reading()
    await until(lambda: ends.client.data == b"x")
    buffer = bytearray(payload(1, BIG))
    ends.client.transport.write(buffer)
    poison(buffer)
    buffer.clear()
    drained = asyncio.ensure_future(ends.client.transport.drained())
    await quiet()
    assert not drained.done()
    if is_aborted:
        ends.client.transport.abort()
        with pytest.raises(ConnectionAbortedError):
            await drained
        ends.client.transport.write(buffer)
        ends.client.transport.write(b"too late")
        await abort(ends.server)
        return
    ends.server.transport.resume_reading()
    await drained
    ends.client.transport.close()
    await ends.are_lost()
    assert_same(ends.server.data, payload(1, BIG))


# ---- the end ------------------------------------------------------------------------


@pytest.mark.parametrize("still_sends", [False, True])
async def test_close_sends_what_was_written_to_who_reads_late(
    ends: Ends, still_sends: bool
) -> None:
    if still_sends and not IS_NEW:
        pytest.skip("asyncio's older TLS takes that for an error")
    ends.server.transport.pause_reading()
    ends.client.transport.write(payload(1, BIG))
    if still_sends:
        ends.server.transport.write(bytes(BIG))
    ends.client.transport.close()
    await quiet()
    assert not ends.client.is_lost()
    ends.server.transport.resume_reading()
    await ends.are_lost()
    assert_same(ends.server.data, payload(1, BIG))
    assert ends.server.events[-2:] == AT_THE_END
    assert (ends.client.error, ends.server.error) == (None, None)


@pytest.mark.skipif(not IS_NEW, reason="needs ssl_shutdown_timeout (Python 3.11)")
async def test_peer_that_never_says_goodbye_is_left(tls: Contexts) -> None:
    ends = Ends(Recorder(), Recorder())
    await ends.shake(tls, ssl_shutdown_timeout=0.05)
    ends.server.transport.pause_reading()
    ends.client.transport.write(bytes(BIG))
    ends.client.transport.close()
    await until(ends.client.is_lost)
    assert isinstance(ends.client.error, TimeoutError)
    with pytest.raises(TimeoutError, match="SSL shutdown timed out"):
        await ends.client.transport.drained()
    await abort(ends.server)


@pytest.mark.parametrize("name", ["write", "close", "resume"])
async def test_what_is_interrupted_ends_the_connection(ends: Ends, name: str) -> None:
    """A signal's handler interrupts when encrypted data is not yet at the socket."""
    if name == "resume" and not IS_NEW:
        pytest.skip("only asyncio's newer TLS holds what it has encrypted")
    is_told = name == "resume"  # the transport below reports an Exception to the loop
    error = TimeoutError("slow") if is_told else KeyboardInterrupt()

    def hit(data: object) -> None:
        raise error

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    client = ends.client.transport
    if is_told:
        ends.server.transport.pause_reading()
        for _ in range(2):
            client.write(bytes(BIG))
    client._ssl_protocol._wire.write = hit
    if is_told:
        ends.server.transport.resume_reading()
    else:
        with pytest.raises(KeyboardInterrupt):
            getattr(client, name)(*[b"lost"][: name == "write"])
    with pytest.raises(ConnectionAbortedError):
        await client.drained()
    await ends.are_lost()


# ---- the handshake ------------------------------------------------------------------


async def test_name_of_the_server_must_be_its_own(tls: Contexts) -> None:
    ends = Ends(Recorder(), Recorder())
    with pytest.raises(ssl.SSLCertVerificationError, match="elsewhere"):
        await ends.shake(tls, "elsewhere")
    await others_wait()
    assert (ends.server.events, ends.client.events) == ([], [])


async def test_empty_name_is_not_checked(tls: Contexts) -> None:
    tls[1].check_hostname = False
    try:
        ends = await Ends(Recorder(), Recorder()).shake(tls, "")
    finally:
        tls[1].check_hostname = True
    assert ends.client.transport.get_extra_info("ssl_object").server_hostname is None
    await abort(ends.client, ends.server)


@both_loops
@pytest.mark.parametrize("leaves", [False, True])
async def test_peer_that_does_not_shake_hands(tls: Contexts, leaves: bool) -> None:
    ours, peer = socket.socketpair()
    options: Any = {"server_hostname": "localhost", "ssl_handshake_timeout": 0.05}
    protocols: weakref.WeakSet[Recorder] = weakref.WeakSet()

    def factory() -> Recorder:
        protocol = Recorder()
        protocols.add(protocol)
        return protocol

    with peer:
        made = azt.create_connection(factory, sock=ours, ssl=tls[1], **options)
        connecting = asyncio.ensure_future(made)
        await others_wait()
        if leaves:
            peer.close()
        with pytest.raises(ConnectionResetError if leaves else ConnectionAbortedError):
            await connecting
    del made, connecting
    await until(lambda: not protocols)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: azt.create_connection(Recorder, ssl=True), "must set server_hostname"),
        (
            lambda: azt.create_unix_connection(Recorder, "x", server_hostname="h"),
            "server_hostname is only",
        ),
        (
            lambda: azt.create_server(Recorder, port=0, ssl_shutdown_timeout=1),
            "ssl_shutdown_timeout is only",
        ),
        (lambda: azt.create_server(Recorder, ssl=True), "must be an SSLContext"),  # type: ignore[arg-type]
    ],
)
async def test_contradictions_are_refused(call: Callable[[], Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError), match=said):
        await call()


# ---- start_tls ----------------------------------------------------------------------


async def plain_pair() -> Ends:
    left, right = socket.socketpair()
    _, server = await azt.create_connection(Recorder, sock=left)
    _, client = await azt.create_connection(Recorder, sock=right)
    return Ends(server, client)


async def start(ends: Ends, tls: Contexts) -> None:
    ends.server.transport, ends.client.transport = await asyncio.gather(
        azt.start_tls(ends.server.transport, ends.server, tls[0], server_side=True),
        azt.start_tls(
            ends.client.transport, ends.client, tls[1], server_hostname="localhost"
        ),
    )


@both_loops
@pytest.mark.parametrize("times", [1, 2])
async def test_start_tls_at_both_ends(tls: Contexts, times: int) -> None:
    if times > 1 and not IS_NEW:
        pytest.skip("asyncio has TLS inside TLS from Python 3.11 on")
    ends = await plain_pair()
    ends.client.transport.write(b"STARTTLS")
    await until(lambda: ends.server.data == b"STARTTLS")
    for _ in range(times):
        await start(ends, tls)
    assert type(ends.client.transport) is TLSTransport
    assert (ends.server.events, ends.client.events) == (["made", "data"], ["made"])
    ends.client.transport.write(payload(1, BIG))
    ends.client.transport.close()
    await ends.are_lost()
    assert_same(ends.server.data[8:], payload(1, BIG))
    assert (ends.client.error, ends.server.error) == (None, None)


async def test_start_tls_while_writing_is_paused(tls: Contexts) -> None:
    """Data written before start_tls is sent first, without TLS."""
    ends = await plain_pair()
    ends.server.transport.pause_reading()
    ends.client.transport.write(bytearray(BIG))
    assert ends.client.events == ["made", "pause"]
    client = azt.start_tls(
        ends.client.transport, ends.client, tls[1], server_hostname="localhost"
    )
    starting = asyncio.ensure_future(client)
    await others_wait()
    ends.server.transport.resume_reading()
    await until(lambda: len(ends.server.data) >= BIG)
    ends.server.transport.abort()
    with pytest.raises(ConnectionError):
        await starting
    assert_same(ends.server.data[:BIG], bytes(BIG))
    await until(ends.server.is_lost)


async def test_who_was_paused_before_start_tls_is_resumed(tls: Contexts) -> None:
    ends = await plain_pair()
    ends.server.transport.pause_reading()
    ends.client.transport.write(bytearray(BIG))
    options: Any = {"sslcontext": tls[0], "server_side": True}
    starting = asyncio.ensure_future(
        azt.start_tls(ends.client.transport, ends.client, **options)
    )
    await others_wait()
    assert ends.client.events == ["made", "pause"]
    ends.server.transport.resume_reading()
    await until(lambda: len(ends.server.data) == BIG)
    options = {"sslcontext": tls[1], "server_hostname": "localhost"}
    await azt.start_tls(ends.server.transport, ends.server, **options)
    ends.client.transport = await starting
    assert ends.client.events == ["made", "pause", "resume"]
    await abort(ends.client, ends.server)


async def test_start_tls_that_is_cancelled_ends_the_connection(tls: Contexts) -> None:
    ends = await plain_pair()
    client = ends.client.transport
    over = azt.start_tls(client, ends.client, tls[1], server_hostname="localhost")
    starting = asyncio.ensure_future(over)
    await until(lambda: ends.server.data)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until(ends.server.is_lost)
    with pytest.raises(ConnectionResetError, match="was closed"):
        await azt.start_tls(client, ends.client, tls[1])


async def test_start_tls_wants_a_context_and_a_transport(tls: Contexts) -> None:
    ends = await plain_pair()
    client = ends.client.transport
    with pytest.raises(TypeError, match="SSLContext"):
        await azt.start_tls(client, ends.client, True)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'x' is not supported"):
        await azt.start_tls("x", ends.client, tls[1])  # type: ignore[arg-type]
    await abort(ends.client, ends.server)
