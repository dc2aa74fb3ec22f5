"""Transports in the middle of their work, and servers, in a process that forks."""

import asyncio
import contextlib
import os
import socket
import ssl
import sys
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

import trustme
from links import fork as fork
from links import turns, until
from transports import HOST, Recorder

from aiozerocopy import transport as azt

BIG = 4 << 20
SOURCE = bytes(range(256)) * (BIG // 256)


class Told(Recorder):
    def has(self, data: bytes) -> Callable[[], bool]:
        """Expect exactly this data, once."""
        return lambda: len(self.data) >= len(data) and self.data == data


class Echo(Told):
    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class World:
    """Connections with and without TLS, and servers."""

    def __init__(self, folder: str) -> None:
        self.path = f"{folder}/{os.getpid()}"

    async def begin(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.task: Any = asyncio.current_task()
        authority = trustme.CA()
        self.trusting = ssl.create_default_context()
        authority.configure_trust(self.trusting)
        trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(trusted)
        ours, self.peer = socket.socketpair()
        self.peer.setblocking(False)
        _, self.busy = await azt.create_connection(Told, sock=ours)
        self.busy.transport.write(SOURCE)
        self.busy_socket = self.busy.transport.get_extra_info("socket")
        self.server = await azt.create_server(Echo, HOST, 0, ssl=trusted)
        self.unix_server = await azt.create_unix_server(
            Echo, self.path, cleanup_socket=True
        )
        self.tls, self.unix = await self._tls(), await self._unix()
        await asyncio.sleep(0)  # (libuv adds fds to its epoll in its next turn)
        # A client connects; the server has not accepted it when we fork.
        self.guest = socket.socket(socket.AF_UNIX)
        self.guest.connect(self.path)
        self.guest.send(b"knock")
        self.guest.setblocking(False)

    async def _tls(self) -> Told:
        options: Any = {"ssl": self.trusting, "server_hostname": "localhost"}
        address = self.server.sockets[0].getsockname()
        return (await azt.create_connection(Told, *address, **options))[1]

    async def _unix(self) -> Told:
        return (await azt.create_unix_connection(Told, self.path))[1]

    @property
    def told(self) -> list[Told]:
        return [self.busy, self.tls, self.unix]

    # -- in the parent ------------------------------------------------------------

    async def go_on(self) -> None:
        """Everything works as without a child: no byte is lost or doubled."""
        got = bytearray()
        while len(got) < BIG:
            got += await self.loop.sock_recv(self.peer, BIG)
        assert got == SOURCE
        await self.loop.sock_sendall(self.peer, b"to the parent")
        await until(self.busy.has(b"to the parent"))
        assert self.busy_socket.family == socket.AF_UNIX
        with self.guest:
            assert await self.loop.sock_recv(self.guest, 9) == b"knock"
        for told in (self.tls, self.unix):
            told.transport.write(SOURCE)
            await until(told.has(SOURCE))
        for told in (await self._tls(), await self._unix()):
            told.transport.write(b"new")
            await until(told.has(b"new"))
            told.transport.close()
            await until(told.is_lost)

    async def end(self) -> None:
        for told in self.told:
            told.transport.close()
            await until(told.is_lost)
        assert await self.loop.sock_recv(self.peer, 1) == b""
        self.peer.close()
        assert self._has_file()
        for server in (self.server, self.unix_server):
            server.close()
            await server.wait_closed()
        assert not self._has_file()

    def _has_file(self) -> bool:
        return os.path.exists(self.path)

    # -- in the child -------------------------------------------------------------

    def disturb(self) -> None:
        """Call all methods of the transports and servers."""
        for told in self.told:
            for name, *arguments in (
                *(("write", b"child"), ("writelines", [b"chi", b"ld"])),
                *(("pause_reading",), ("resume_reading",), ("write_eof",)),
                *(("get_extra_info", "socket"), ("set_write_buffer_limits", 0)),
                *(("__repr__",), ("close",), ("abort",), ("abort",)),
            ):
                with contextlib.suppress(NotImplementedError, RuntimeError, OSError):
                    getattr(told.transport, name)(*arguments)
        for server in (self.server, self.unix_server):
            server.close_clients()
            server.abort_clients()
            server.close()

    async def stay(self) -> None:
        """Run the copy of the parent's loop for some turns."""
        if sys.version_info >= (3, 14):  # in a child, no loop or task runs
            asyncio._set_running_loop(self.loop)
            asyncio.tasks._enter_task(self.loop, self.task)
        ours, mine = os.pipe()
        os.write(mine, b"mine")
        os.dup2(ours, self.busy.transport._fd)  # this fd is closed in a child
        await turns(10)
        assert os.read(ours, 9) == b"mine"

    def drop(self) -> None:
        """Drop all of our objects for the collector."""
        del self.busy, self.tls, self.unix, self.server, self.unix_server


async def live(folder: str) -> None:
    """Run a whole world, from its beginning to its end."""
    world = World(folder)
    await world.begin()
    await world.go_on()
    await world.end()


def run(main: Coroutine[Any, Any, None], loop: str) -> None:
    """Run on a new loop, even in a child whose parent's loop is running."""
    if loop == "uvloop":
        import uvloop

        uvloop.run(main)
    else:
        asyncio.run(main)


def ends_well(pid: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def attempted(*calls: Callable[[], object]) -> int:
    """Make the calls; return an exit status for a child."""
    try:
        for call in calls:
            call()
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stderr.flush()
    return 0
