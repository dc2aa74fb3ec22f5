"""TLS over sockets: OpenSSL's own at the other end, and `start_tls`."""

import asyncio
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor

import pytest
from links import until
from oracle import assert_same, payload
from tls_ends import Contexts, client, quiet, server
from transports import Recorder, both_loops

from aiozerocopy._net.tls_session import Session
from aiozerocopy.transport.connections import start_tls
from aiozerocopy.transport.tls import TLSTransport

pytestmark = [pytest.mark.anyio, both_loops]

BIG = 4 << 20


async def over(sock: socket.socket, upper: TLSTransport) -> asyncio.Transport:
    """A connection of the loop's own, under TLS."""
    loop = asyncio.get_running_loop()
    wire, _ = await loop.create_connection(lambda: upper, sock=sock)
    return wire


def exchange(sock: ssl.SSLSocket, data: memoryview, size: int) -> bytes:
    """In a thread: send this, get so much, and say goodbye."""
    with sock:
        sock.settimeout(10)
        sock.sendall(data)
        got = bytearray()
        while len(got) < size:
            got += sock.recv(1 << 16)
        sock.unwrap().close()
    return bytes(got)


@pytest.mark.parametrize("is_server", [True, False])
async def test_openssls_own_socket_is_the_peer(tls: Contexts, is_server: bool) -> None:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    notes, ready = Recorder(), loop.create_future()
    upper = (server if is_server else client)(tls, notes, ready)

    def peer() -> bytes:
        name = "localhost" if is_server else None
        wrapped = tls[1 if is_server else 0].wrap_socket(
            theirs, server_side=not is_server, server_hostname=name
        )
        return exchange(wrapped, payload(2, BIG), BIG)

    with ThreadPoolExecutor(1) as threads:
        theirs_got = loop.run_in_executor(threads, peer)
        await over(ours, upper)
        await ready
        notes.transport.write(payload(1, BIG))
        assert_same(await theirs_got, payload(1, BIG))
    await until(notes.is_lost)
    assert_same(notes.data, payload(2, BIG))
    assert (notes.events[-2:], notes.error) == (["eof", "lost"], None)


# ---- start_tls ----------------------------------------------------------------------


async def plain_pair() -> tuple[Recorder, Recorder]:
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    _, one = await loop.create_connection(Recorder, sock=left)
    _, other = await loop.create_connection(Recorder, sock=right)
    return one, other


async def test_start_tls_at_both_ends(tls: Contexts) -> None:
    above, below = await plain_pair()
    below.transport.write(b"STARTTLS")
    await until(lambda: above.data == b"STARTTLS")
    above.transport.write(b"go")
    await until(lambda: below.data == b"go")
    upper, lower = await asyncio.gather(
        start_tls(above.transport, above, tls[0], server_side=True),
        start_tls(below.transport, below, tls[1], server_hostname="localhost"),
    )
    assert above.events == below.events == ["made", "data"]
    lower.write(payload(1, BIG))
    upper.write(b", please")
    await until(lambda: len(above.data) == 8 + BIG and len(below.data) == 10)
    assert_same(above.data[8:], payload(1, BIG))
    assert below.data == b"go, please"
    lower.close()
    await until(lambda: above.is_lost() and below.is_lost())
    assert (above.error, below.error) == (None, None)


async def test_first_data_comes_after_start_tls_has_returned(tls: Contexts) -> None:
    """Though it came with the handshake: who answers needs the transport."""
    loop = asyncio.get_running_loop()
    left, right = socket.socketpair()
    right.setblocking(False)
    _, above = await loop.create_connection(Recorder, sock=left)
    returned: list[bool] = []

    async def start() -> None:
        above.transport = await start_tls(
            above.transport, above, tls[0], server_side=True
        )
        returned.append(bool(above.data))

    starting = loop.create_task(start())
    await quiet()
    peer = Session(tls[1], server_side=False, server_hostname="localhost")
    with right:
        while not peer.shake():
            await loop.sock_sendall(right, peer.take())
            answer = await loop.sock_recv(right, 1 << 16)
            assert answer
            peer.feed(answer)
        peer.encrypt(b"hello")
        await loop.sock_sendall(right, peer.take())
        await until(lambda: above.data == b"hello")
        assert returned == [False]
        await starting
        above.transport.abort()
    await until(above.is_lost)


async def test_tls_goes_through_tls(tls: Contexts) -> None:
    above, below = await plain_pair()
    for _ in range(2):
        upper, lower = await asyncio.gather(
            start_tls(above.transport, above, tls[0], server_side=True),
            start_tls(below.transport, below, tls[1], server_hostname="localhost"),
        )
        above.transport, below.transport = upper, lower
    lower.write(payload(1, BIG))
    lower.close()
    await until(lambda: above.is_lost() and below.is_lost())
    assert_same(above.data, payload(1, BIG))
    assert (above.error, below.error) == (None, None)


async def test_start_tls_that_is_cancelled_ends_the_connection(tls: Contexts) -> None:
    above, below = await plain_pair()
    starting = asyncio.ensure_future(
        start_tls(below.transport, below, tls[1], server_hostname="localhost")
    )
    await until(lambda: above.data)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until(lambda: above.is_lost() and below.is_lost())
    with pytest.raises(ConnectionResetError, match="was closed"):
        await start_tls(below.transport, below, tls[1], server_hostname="localhost")


async def test_start_tls_wants_a_context_and_a_transport(tls: Contexts) -> None:
    above, below = await plain_pair()
    with pytest.raises(TypeError, match="SSLContext"):
        await start_tls(below.transport, below, True)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'x' is not supported"):
        await start_tls("x", below, tls[1])  # type: ignore[arg-type]
    below.transport.close()
    await until(lambda: above.is_lost() and below.is_lost())
