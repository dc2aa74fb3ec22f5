"""TLSStream: cancels, counts, peers and ends; `check_stream` covers the rest."""

import contextlib
import gc
import socket
import ssl
import weakref
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from anyio.streams.tls import TLSAttribute
from anyio.streams.tls import TLSStream as AnyiosStream
from interruption import Interruption
from links import (
    attempt,
    attempting,
    cut_short,
    everything,
    meanwhile,
    others_wait,
    tls_over,
    until,
)
from oracle import assert_same, payload
from renegotiation import change_keys, renegotiate

import aiozerocopy as azc
from aiozerocopy import StreamBroken, StreamClosed
from aiozerocopy._net import tls as module
from aiozerocopy._net.foreign_streams import PIECE, whole_sender
from aiozerocopy._net.tls import Session, TLSStream, secure

pytestmark = [pytest.mark.anyio, pytest.mark.every_loop]

Contexts = tuple[ssl.SSLContext, ssl.SSLContext]
BIG = 3 << 20  # more than a socket pair holds
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


@contextlib.asynccontextmanager
async def connected(tls: Contexts) -> AsyncIterator[tuple[TLSStream, TLSStream]]:
    async with azc.socketpair() as ends, tls_over(ends, tls) as pair:
        yield pair


@contextlib.contextmanager
def only(context: ssl.SSLContext, version: str) -> Any:
    """Restrict the context to this version of TLS."""
    before, context.maximum_version = context.maximum_version, VERSIONS[version]
    yield
    context.maximum_version = before


class Peer:
    """The server's side of a client of ours: a session over a plain stream."""

    def __init__(self, stream: azc.Stream, context: ssl.SSLContext) -> None:
        self.stream = stream
        self.session = Session(context, server_side=True)

    async def shake(self) -> None:
        while not self.session.shake():
            await self.say()
            self.session.feed(await self.stream.receive())
        await self.say()

    async def say(self) -> None:
        await self.stream.send(self.session.take())

    def hear(self, data: bytes) -> bytes:
        self.session.feed(data)
        with memoryview(bytearray(len(data) + (16 << 10))) as room:
            return bytes(room[: self.session.decrypt_into(room)])


@contextlib.asynccontextmanager
async def with_peer(tls: Contexts) -> AsyncIterator[tuple[TLSStream, Peer]]:
    async with azc.socketpair() as (one, other):
        peer = Peer(other, tls[0])
        async with meanwhile(peer.shake):
            ours = await secure(one, tls[1], hostname="localhost", patience=0.2)
        yield ours, peer
        ours.abort()


# ---- cancels ------------------------------------------------------------------------


async def test_message_that_cannot_complete_is_cut_off(tls: Contexts) -> None:
    async with connected(tls) as (one, other):
        one._stream._rescue_limit = BIG // 2
        async with cut_short(one.send, payload(1, BIG)):
            await others_wait()
        for _ in range(2):
            with pytest.raises(StreamBroken, match="in the middle of a message"):
                await one.send(b"x")
        got = bytearray()
        async with meanwhile(one.aclose):
            with pytest.raises(StreamBroken, match="without TLS's close_notify"):
                while True:
                    got += await other.receive()
        assert_same(got, payload(1, BIG)[: len(got)])


# ---- counts -------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
async def test_failed_send_counts_what_arrives(tls: Contexts, version: str) -> None:
    with only(tls[1], version):
        async with (
            with_peer(tls) as (ours, peer),
            attempting(ours.send, b"x" * 100_001, payload(1, BIG)) as sending,
        ):
            await others_wait()
            peer.stream._raw_socket.shutdown(socket.SHUT_RD)
            got = b""
            with contextlib.suppress(anyio.EndOfStream):
                while True:
                    got += peer.hear(await peer.stream.receive())
            await until(lambda: sending.done)
            with pytest.raises(StreamBroken, match="the reader is gone"):
                await ours.send(b"x")
    error = sending.error
    assert isinstance(error, StreamBroken)
    assert isinstance(error.__cause__, BrokenPipeError)
    assert (error.bytes_sent, error.total) == (len(got), 100_001 + BIG)
    assert len(got) > 100_001
    assert f"{len(got):,} of {100_001 + BIG:,} bytes" in str(error)


async def test_what_is_unknown_is_said_to_be() -> None:
    """For a cipher that pads, a record's size does not tell its content's size."""
    session = Session(
        ssl.create_default_context(), server_side=False, server_hostname="x"
    )
    record = b"\x17\x03\x03\x00\x20" + bytes(32)
    assert session.plain_in(record * 2, 20, 37) is None


# ---- negotiations -------------------------------------------------------------------


@pytest.mark.parametrize("receives", [True, False])
async def test_renegotiation_is_heard_first(tls: Contexts, receives: bool) -> None:
    """A receiving task notices it; without one, the send keeps received data."""
    with only(tls[1], "1.2"):
        async with with_peer(tls) as (ours, peer), anyio.create_task_group() as tasks:
            renegotiate(peer.session.ssl)
            peer.session.encrypt(b"x")
            await peer.say()
            assert await ours.receive() == b"x"
            sending = attempt(tasks, ours.send, b"hello", b"you")
            await others_wait()
            assert not sending.done
            receiving = attempt(tasks, ours.receive) if receives else None
            got = b""
            while not sending.done or got != b"helloyou":
                got += peer.hear(await peer.stream.receive())
                await peer.say()
                await others_wait()
            assert sending.error is None
            peer.session.encrypt(b"yes")
            await peer.say()
            if receiving is None:
                assert await ours.receive() == b"yes"
            else:
                await until(lambda: receiving.result == b"yes")


async def test_cancelled_send_waits_for_no_negotiation(tls: Contexts) -> None:
    with only(tls[1], "1.2"):
        async with with_peer(tls) as (ours, peer):
            renegotiate(peer.session.ssl)
            peer.session.encrypt(b"x")
            await peer.say()
            assert await ours.receive() == b"x"
            async with cut_short(ours.send, b"never"):
                await others_wait()
            async with attempting(ours.send, b"hello") as sending:
                got = b""
                while got != b"hello":
                    got += peer.hear(await peer.stream.receive())
                    await peer.say()
                await until(lambda: sending.done)


async def test_keys_that_change_all_the_time(tls: Contexts) -> None:
    async with with_peer(tls) as (ours, peer):
        for number in range(100):
            for _ in range(20):
                change_keys(peer.session.ssl)
            peer.session.encrypt(b"%d" % number)
            await peer.say()
            assert await ours.receive() == b"%d" % number
            assert ours.session.sealed.pending == 0
            await ours.send(b"%d" % number)
            assert peer.hear(await peer.stream.receive()) == b"%d" % number


# ---- ends ---------------------------------------------------------------------------


async def test_half_of_it_can_be_closed(tls: Contexts) -> None:
    async with connected(tls) as (one, other):
        await one.send(b"question")
        await one.send_eof()
        await one.send_eof()
        with pytest.raises(StreamClosed, match="send_eof"):
            await one.send(b"more")
        assert await other.receive() == b"question"
        for _ in range(2):
            with pytest.raises(anyio.EndOfStream):
                await other.receive()
        await other.send(payload(1, 50_000))
        await other.aclose()
        got = bytearray(50_000)
        await one.receive_exactly(got)
        assert_same(got, payload(1, 50_000))
        with pytest.raises(anyio.EndOfStream):
            await one.receive_exactly(got)


async def test_half_is_closed_beside_what_has_arrived(tls: Contexts) -> None:
    """The stream keeps bytes that OpenSSL would lose."""
    async with connected(tls) as (one, other):
        await other.send(payload(1, 50_000))
        assert await one.receive(10) == payload(1, 10)[:10]
        await one.send_eof()
        got = bytearray(49_990)
        await one.receive_exactly(got)
        assert_same(got, payload(1, 50_000)[10:])


async def test_an_exception_between_decryption_and_store_is_told(tls: Contexts) -> None:
    """Not by a gap in what is received."""
    async with connected(tls) as (client, server):
        await server.send(bytes(100))
        await server.send(bytes(100))
        assert await client.receive(1) == b"\0"
        decrypt: Any = client.session.decrypt_into

        def interrupted(*args: Any) -> int:
            assert decrypt(*args) > 0
            raise Interruption

        session: Any = client.session
        session.decrypt_into = interrupted
        await until(client._has_unread)
        with pytest.raises(Interruption):
            client._keep_arrived()
        with pytest.raises(azc.StreamBroken, match="bytes are lost"):
            await client.receive()


async def test_close_waits_for_the_peer_to_have_all(tls: Contexts) -> None:
    """The peer sent data that nobody received: a plain close would be a reset."""
    async with azc.serve_tcp(_greet_and_collect, ssl_context=tls[0]) as server:
        tcp = await azc.connect_tcp("127.0.0.1", server.port)
        client = await secure(tcp, tls[1], hostname="localhost")
        async with client:
            await client.send(payload(1, BIG))
        assert_same(_collected, payload(1, BIG))


_collected = bytearray()


async def _greet_and_collect(stream: TLSStream) -> None:
    _collected.clear()
    await stream.send(b"hello")
    async for piece in stream:
        _collected.extend(piece)


async def test_close_beside_a_receiver_waits_for_the_peer(tls: Contexts) -> None:
    """Otherwise the peer's next bytes reset the connection, which may lose ours."""
    async with connected(tls) as (one, other):
        one._patience = 1000
        async with attempting(everything, one) as receiver:
            await others_wait()
            async with meanwhile(one.aclose):
                with pytest.raises(anyio.EndOfStream):
                    await other.receive()
                await other.send(b"late")
                await others_wait()
                assert one.fileno() >= 0
                await other.aclose()
        assert one.fileno() == -1
        assert receiver.result == b"late"


async def test_close_takes_the_place_of_a_cancelled_receiver(tls: Contexts) -> None:
    async with connected(tls) as (one, other), anyio.create_task_group() as tasks:
        one._patience = 1000
        async with cut_short(one.receive):
            await others_wait()
            tasks.start_soon(one.aclose)
            with pytest.raises(anyio.EndOfStream):
                await other.receive()
        await others_wait()
        with pytest.raises(StreamClosed, match="being closed"):
            await one.receive()
        await other.send(bytes(BIG))  # somebody reads it
        assert one.fileno() >= 0
        await other.aclose()


async def test_close_beside_a_receiver_is_cancelled(tls: Contexts) -> None:
    async with connected(tls) as (one, other), attempting(one.receive) as receiver:
        one._patience = 1000
        await others_wait()
        async with cut_short(one.aclose):
            with pytest.raises(anyio.EndOfStream):
                await other.receive()
            await others_wait()
        assert one.fileno() == -1
    assert isinstance(receiver.error, StreamClosed)


async def test_block_that_fails_does_not_hang(
    tls: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LINGER", 0.01)
    async with connected(tls) as (one, _):
        one._patience = 1000
        with pytest.raises(ZeroDivisionError):
            async with one:
                1 / 0  # noqa: B018
        assert one.fileno() == -1


CUTS = [0, 1, 4, 5, 6, 100, -1, -5, -24, -25, -40]


@pytest.mark.parametrize("at", CUTS)
async def test_end_that_came_too_soon(tls: Contexts, at: int) -> None:
    """An end before the last byte of close_notify is an error."""
    async with with_peer(tls) as (ours, peer):
        peer.session.encrypt(payload(1, 20_000))
        peer.session.say_goodbye()
        said = peer.session.take()
        await peer.stream.send(said[:at])
        await peer.stream.send_eof()
        got = bytearray()
        with pytest.raises(StreamBroken, match="close_notify"):
            while True:
                got += await ours.receive()
        assert_same(got, payload(1, 20_000)[: len(got)])
        with pytest.raises(StreamBroken, match="close_notify"):
            await ours.receive_into(bytearray(9))


@pytest.mark.parametrize(
    "rubbish",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x17\x03\x03\xff\xff" + bytes(70_000),  # a record that is too large
        b"\x17\x03\x03\x00\x40" + bytes(64),  # a wrong authentication tag
        b"\x15\x03\x03\x00\x02\x02\x50",  # an alert without a tag
    ],
)
async def test_rubbish_ends_it_after_the_good(tls: Contexts, rubbish: bytes) -> None:
    async with with_peer(tls) as (ours, peer):
        peer.session.encrypt(b"good")
        await peer.stream.send(peer.session.take() + rubbish)
        assert await ours.receive() == b"good"
        errors = []
        for _ in range(2):
            with pytest.raises(StreamBroken, match="TLS: ") as caught:
                await ours.receive()
            errors.append(caught.value)
        assert str(errors[0]) == str(errors[1])
        assert isinstance(errors[0].__cause__, ssl.SSLError)
        with pytest.raises(StreamBroken):
            await ours.send(b"x")


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01", b"rubbish" * 10])
async def test_handshake_that_never_ends(tls: Contexts, said: bytes) -> None:
    async with azc.socketpair() as (one, other):
        await other.send(said)
        await other.send_eof()
        with pytest.raises((StreamBroken, ssl.SSLError)):
            await secure(one, tls[0], server_side=True)


# ---- cycles -------------------------------------------------------------------------


async def test_nothing_is_kept_in_a_cycle(tls: Contexts) -> None:
    """This holds after a close, after a failure, and for a dropped stream."""
    buffer = bytearray(BIG)
    gc.collect()
    gc.disable()
    try:
        for how in ("close", "fail", "drop"):
            async with with_peer(tls) as (ours, peer):
                left = weakref.ref(ours.session)
                if how == "fail":
                    async with attempting(ours.send, buffer) as sending:
                        await others_wait()
                        peer.stream.abort()
                    buffer.clear()  # although the error's traceback is alive
                    buffer.extend(bytes(BIG))
                    with pytest.raises(StreamBroken):
                        await ours.receive()
                    assert isinstance(sending.error, StreamBroken)
                    sending.error = None  # (a frame of its traceback refers to it)
                if how == "close":
                    await ours.aclose()
            del ours, peer
            await others_wait()
            assert left() is None, how
    finally:
        gc.enable()


async def test_wrong_calls(tls: Contexts) -> None:
    async with connected(tls) as (one, other):
        with pytest.raises(TypeError):
            await one.send(b"fine", "text")  # type: ignore[arg-type]
        with pytest.raises(BufferError):
            await one.send(memoryview(bytes(10))[::2])
        with pytest.raises(BufferError):
            await one.receive_into(b"read-only")
        with pytest.raises(ValueError, match="max_bytes"):
            await one.receive(0)
        await other.send()
        await other.send(b"", memoryview(bytearray()))
        assert await one.receive_into(bytearray()) == 0
        async with meanwhile(one.receive):
            await others_wait()
            with pytest.raises(anyio.BusyResourceError):
                await one.receive()
            await other.send(b"x")
        await one.aclose()
        for call in (one.send, one.send_eof, one.receive):
            with pytest.raises(StreamClosed):
                await call()


async def test_what_can_be_asked(tls: Contexts) -> None:
    async with connected(tls) as (server, client):
        ask: Any = client.extra
        assert ask(TLSAttribute.tls_version) == "TLSv1.3"
        assert ("DNS", "localhost") in ask(TLSAttribute.peer_certificate)[
            "subjectAltName"
        ]
        assert ask(TLSAttribute.peer_certificate_binary)
        assert (ask(TLSAttribute.server_side), ask(TLSAttribute.alpn_protocol)) == (
            False,
            None,
        )
        assert server.extra(TLSAttribute.server_side)
        assert ask(anyio.abc.SocketAttribute.raw_socket).fileno() == client.fileno()


async def test_sends_that_must_be_alone(tls: Contexts) -> None:
    one, other = map(azc.wrap_socket, socket.socketpair())
    one._is_exclusive = True
    async with one, other, tls_over((one, other), tls) as (ours, _):
        async with cut_short(ours.send, payload(1, BIG)):
            await others_wait()
            with pytest.raises(anyio.BusyResourceError):
                await ours.send(b"x")


async def test_counts_over_a_stream_that_is_not_ours(tls: Contexts) -> None:
    """Bytes are counted before anyio's TLS encrypts them: after that, they are more."""
    async with azc.socketpair() as (one, other), anyio.create_task_group() as tasks:
        options: Any = {"server_side": True, "ssl_context": tls[0]}
        server = attempt(tasks, partial(AnyiosStream.wrap, other, **options))
        options = {"hostname": "localhost", "ssl_context": tls[1]}
        client = await AnyiosStream.wrap(one, **options)
        await until(lambda: server.done)
        sending = attempt(tasks, whole_sender(client).send, payload(1, BIG), b"end")
        await others_wait()
        other.abort()
        await until(lambda: sending.done)
        error = sending.error
        assert isinstance(error, StreamBroken)
        assert (error.bytes_sent % PIECE, error.total) == (0, BIG + 3)
        assert f"at least {error.bytes_sent:,} of {BIG + 3:,} bytes" in str(error)
