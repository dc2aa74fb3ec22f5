"""A transport of ours at one end of a connection, for tests."""

import asyncio
import contextlib
import io
import socket
import ssl
import struct
import threading
from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Any, TypeVar

import pytest
from links import others_wait

from aiozerocopy import transport as azt

HOST = "127.0.0.1"
Contexts = tuple[ssl.SSLContext, ssl.SSLContext]  # of a server and of a client


@cache
def tls_contexts() -> Contexts:
    """TLS contexts of a local server, by name or address, and of a trusting client."""
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


# Transports need asyncio: not for trio.
both_loops = pytest.mark.parametrize(
    "anyio_backend", ["asyncio", "uvloop"], indirect=True
)


class Recorder(asyncio.Protocol):
    """A protocol that notes its calls."""

    def __init__(self, keep_open: bool = False) -> None:
        self.events: list[str] = []
        self.data = bytearray()
        self.transport: Any = None
        self.lost: asyncio.Future[BaseException | None] = (
            asyncio.get_running_loop().create_future()
        )
        self._keep_open = keep_open

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        assert type(data) is bytes
        self._take(data)

    def _take(self, data: bytes | bytearray) -> None:
        self.data += data
        if self.events[-1:] != ["data"]:
            self.events.append("data")

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self._keep_open

    def connection_lost(self, exc: BaseException | None) -> None:
        self.events.append("lost")
        self.lost.set_result(exc)

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def is_lost(self) -> bool:
        return self.lost.done()

    @property
    def error(self) -> BaseException | None:
        """Return the error of the lost connection, if any."""
        return self.lost.result()


class Echo(Recorder):
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.transport.write(data)


Protocol = TypeVar("Protocol", bound=Recorder)


def kept(kind: Callable[[], Protocol]) -> tuple[list[Protocol], Callable[[], Protocol]]:
    """Return a factory, and the list of everything that it makes."""
    made: list[Protocol] = []

    def factory() -> Protocol:
        made.append(kind())
        return made[-1]

    return made, factory


class Filler(Recorder, asyncio.BufferedProtocol):
    """Receives into memory of its own, new memory each time."""

    def __init__(self, size: int = 1009) -> None:
        super().__init__()
        self._room = bytearray(size)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self._take(self._room[:nbytes])
        self._room = bytearray(len(self._room))


class HeldFile(io.BytesIO):
    """Its reads wait for `go`, in their thread."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.go = threading.Event()

    def read(self, size: int | None = -1) -> bytes:
        assert self.go.wait(10)
        return super().read(size)


class End:
    """A transport of ours at one end of a connection, and a plain socket with small
    buffers at the other."""

    def __init__(self, transport: Any, protocol: Any, peer: socket.socket) -> None:
        self.transport: azt.SocketTransport = transport
        self.protocol: Any = protocol
        self.peer = peer

    async def read(self, n: int) -> bytes:
        data = bytearray()
        while len(data) < n:
            loop = asyncio.get_running_loop()
            piece = await loop.sock_recv(self.peer, n - len(data))
            if not piece:
                break
            data += piece
        return bytes(data)

    async def read_all(self) -> bytes:
        return await self.read(1 << 30)

    def reset(self) -> None:
        """Reset the connection, as a crashing peer does."""
        linger = struct.pack("ii", 1, 0)
        self.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.peer.close()


@contextlib.asynccontextmanager
async def opened(
    factory: Callable[[], Any] = Recorder, *, tcp: bool = False
) -> AsyncIterator[End]:
    if tcp:
        with socket.create_server((HOST, 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            peer, _ = listener.accept()
    else:
        ours, peer = socket.socketpair()
    peer.setblocking(False)
    with peer:
        transport, protocol = await azt.create_connection(factory, sock=ours)
        try:
            yield End(transport, protocol, peer)
        finally:
            transport.abort()
            await others_wait()
