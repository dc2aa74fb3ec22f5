"""Transports, with signals' exceptions at every line, collections, and dead loops.

As in core/test_interruptions.py, each scene is played once to note its lines, and then
once for each line, with an exception there.  However the connection ends, the peer gets
whole messages and at most the beginning of one more; afterwards no buffer is borrowed,
no fd is left, and connection_lost was called.
"""

import asyncio
import contextlib
import gc
import io
import socket
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import pytest
from interruption import (
    LOOPS,
    Interruption,
    Lines,
    Place,
    hit_after_each_call,
    hit_each_line,
    is_exported,
    keeps_a_borrow,
    open_fds,
    run_on,
)
from links import BIG, linux_only, turns, until
from oracle import HEADER, Checker, message, poison
from transports import Filler, Recorder

from aiozerocopy import transport as azt
from aiozerocopy.transport.socket_transport import transport_over

pytestmark = linux_only

ROOMS = ("transport",)
PATIENCE = 5.0  # seconds for something that happens at once or never


class Scene:
    """A transport, its peer, and complaints."""

    protocol_kind: type[Recorder] = Recorder

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.complaints: list[str] = []
        self.checker = Checker()
        self.buffers: list[bytearray] = []
        self.views: list[memoryview] = []  # of the buffers
        self.raised: list[BaseException] = []
        self.written = 0

    async def play(self, call: Callable[[Any], Awaitable[object]]) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self.in_the_loop)
        ours, self.peer = socket.socketpair()
        self.peer.setblocking(False)
        with self.peer:
            self.transport, self.protocol = await azt.create_connection(
                self.protocol_kind, sock=ours
            )
            with self.lines:
                task = asyncio.ensure_future(self.judged(call))
                await turns()
                reading = asyncio.ensure_future(self.read())
                await asyncio.wait({task}, timeout=PATIENCE)
            if not task.done():
                self.complaints.append("the call hangs")
                task.cancel()
            await self.finish()
            await asyncio.wait({reading}, timeout=PATIENCE)
            if not reading.done():
                self.complaints.append("the peer sees no end")
                reading.cancel()
            elif error := reading.exception():
                self.complaints.append(str(error))
        if keeps_a_borrow(self.raised, self.views, self.buffers):
            self.complaints.append("a traceback keeps a borrow")
        if any(map(is_exported, self.buffers)):
            gc.collect()
            if any(map(is_exported, self.buffers)):
                self.complaints.append("a buffer is still borrowed")

    async def judged(self, call: Callable[[Any], Awaitable[object]]) -> None:
        try:
            await call(self)
        except (Interruption, OSError) as error:
            self.raised.append(error)
        except BaseException as error:
            self.complaints.append(f"it raised {error!r}")

    def in_the_loop(self, _: object, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), (Interruption, OSError)):
            self.complaints.append(f"in the loop: {context}")

    def new(self, size: int) -> memoryview:
        self.buffers.append(message(self.written, 0, size))
        self.views.append(memoryview(self.buffers[-1]))
        self.written += 1
        return self.views[-1]

    async def read(self) -> None:
        """Read to the end; check that the peer gets well-formed messages."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while data := await loop.sock_recv(self.peer, 1 << 20):
                self.checker.feed(data)

    async def finish(self) -> None:
        """Write once more, close, and wait for the end."""
        with contextlib.suppress(RuntimeError):  # after write_eof
            self.transport.write(self.new(1000))
        self.transport.close()
        with anyio.move_on_after(PATIENCE):
            await until(self.protocol.is_lost)
        if not self.protocol.is_lost():
            self.complaints.append("connection_lost was not called")
            self.transport.abort()
        with contextlib.suppress(OSError):
            await self.transport.drained()
        for buffer in self.buffers:
            poison(buffer)
        await turns()

    # -- the calls ----------------------------------------------------------------

    async def write(self, size: int) -> None:
        self.transport.write(self.new(size))
        await self.transport.drained()
        for buffer in self.buffers:
            poison(buffer)

    async def write_two(self) -> None:
        self.transport.write(self.new(BIG))
        await self.write(BIG)

    async def write_bytes(self) -> None:
        self.transport.write(bytes(self.new(BIG)))
        await self.transport.drained()

    async def send_files(self) -> None:
        """Send two files in pieces, one of them in turn after the other."""
        files = [io.BytesIO(self.new(100_000)) for _ in range(2)]
        sending = [
            asyncio.ensure_future(azt.sendfile(self.transport, f)) for f in files
        ]
        try:
            await asyncio.gather(*sending)
        finally:
            await asyncio.wait(sending)

    async def writelines(self, size: int) -> None:
        data = self.new(size)
        self.views += data[: HEADER.size], data[HEADER.size :]
        self.transport.writelines(self.views[-2:])
        await self.transport.drained()

    async def write_and_close(self) -> None:
        self.transport.write(self.new(BIG))
        self.transport.close()
        await self.transport.drained()

    async def write_and_eof(self) -> None:
        self.transport.write(self.new(BIG))
        self.transport.write_eof()
        await self.transport.drained()

    async def write_and_abort(self) -> None:
        self.transport.write(self.new(BIG))
        await asyncio.sleep(0)
        self.transport.abort()
        await self.transport.drained()

    async def pause_and_resume(self) -> None:
        self.transport.pause_reading()
        await asyncio.sleep(0)
        self.transport.resume_reading()


class Receiving(Scene):
    """The peer sends, and the protocol gets data without gaps."""

    async def receive(self) -> None:
        sent = bytes(message(99, 0, 200_000))
        loop = asyncio.get_running_loop()
        sending = asyncio.ensure_future(loop.sock_sendall(self.peer, sent))
        protocol = self.protocol
        with contextlib.suppress(ConnectionError), anyio.move_on_after(PATIENCE) as end:
            await until(lambda: len(protocol.data) == len(sent) or protocol.is_lost())
        if end.cancelled_caught:
            self.complaints.append("neither received nor lost")
        sending.cancel()
        await asyncio.wait({sending})
        if not sent.startswith(protocol.data):
            self.complaints.append("there is a gap in what came")

    async def receive_to_the_end(self) -> None:
        await self.receive()
        self.peer.shutdown(socket.SHUT_WR)
        with anyio.move_on_after(PATIENCE):
            await until(self.protocol.is_lost)


class Filling(Receiving):
    protocol_kind = Filler


class Connecting(Scene):
    """Make a server and a client, and close them."""

    async def play(self, call: Callable[[Any], Awaitable[object]]) -> None:
        asyncio.get_running_loop().set_exception_handler(self.in_the_loop)
        self.servers: list[azt.Server] = []
        self.told: list[Recorder] = []
        self.transports: list[Any] = []
        with self.lines:
            task = asyncio.ensure_future(self.judged(call))
            await asyncio.wait({task}, timeout=PATIENCE)
        if not task.done():
            self.complaints.append("the call hangs")
            task.cancel()
        self.raised.clear()
        for server in self.servers:
            server.close()
            server.abort_clients()
        for transport in self.transports:
            transport.abort()
        await turns()
        if any("made" in told.events and not told.is_lost() for told in self.told):
            self.complaints.append("connection_lost was not called")

    def protocol_of_server(self) -> Recorder:
        self.told.append(Recorder())
        return self.told[-1]

    async def connect(self) -> None:
        server = await azt.create_server(self.protocol_of_server, "127.0.0.1", 0)
        self.servers.append(server)
        address = server.sockets[0].getsockname()
        transport, protocol = await azt.create_connection(Recorder, *address)
        self.transports.append(transport)
        self.told.append(protocol)
        with anyio.move_on_after(0.02):
            await until(lambda: len(self.told) == 2)
        transport.close()
        server.close()
        with anyio.move_on_after(0.02):
            await server.wait_closed()


SCENES: dict[str, tuple[type[Scene], Callable[[Any], Awaitable[object]]]] = {
    "write": (Scene, partial(Scene.write, size=BIG)),
    "write of little": (Scene, partial(Scene.write, size=2000)),
    "write of what is pinned": (Scene, partial(Scene.write, size=10_000)),
    "write of bytes": (Scene, Scene.write_bytes),
    "two writes": (Scene, Scene.write_two),
    "files in pieces": (Scene, Scene.send_files),
    "writelines": (Scene, partial(Scene.writelines, size=BIG)),
    "writelines of little": (Scene, partial(Scene.writelines, size=1000)),
    "close": (Scene, Scene.write_and_close),
    "write_eof": (Scene, Scene.write_and_eof),
    "abort": (Scene, Scene.write_and_abort),
    "pause and resume": (Scene, Scene.pause_and_resume),
    "receive": (Receiving, Receiving.receive),
    "receive to the end": (Receiving, Receiving.receive_to_the_end),
    "receive into": (Filling, Receiving.receive_to_the_end),
    "connect": (Connecting, Connecting.connect),
}


async def be_hit(name: str, lines: Lines) -> list[str]:
    before = open_fds()
    kind, call = SCENES[name]
    scene = kind(lines)
    await scene.play(call)

    def are_gone() -> bool:
        gc.collect()
        return open_fds() <= before

    with anyio.move_on_after(PATIENCE):
        await until(are_gone)
    if not are_gone():
        scene.complaints.append("fds are left")
    return scene.complaints


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.filterwarnings("ignore:unclosed")
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", SCENES)
def test_one_line_after_the_other(
    name: str, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)

    def some(places: list[Place]) -> list[Place]:
        return [place for place in places if place[2] <= (name != "connect") + 1]

    play = partial(be_hit, name)
    run_on(loop, partial(hit_each_line, play, ROOMS, some, calls=True))


@pytest.mark.filterwarnings("ignore:unclosed")
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("is_given", [False, True])
def test_socket_is_taken_over(loop: str, is_given: bool) -> None:
    async def take_over() -> None:
        ours, peer = socket.socketpair()
        with ours, peer:
            transport_over(ours, asyncio.Protocol(), is_given=is_given).abort()

    rooms = ("transport.socket_transport", "_core.channel")
    run_on(loop, partial(hit_after_each_call, take_over, *rooms))


@pytest.mark.filterwarnings("ignore:unclosed")
def test_loop_closed_before_all_is_out(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    ours, peer = socket.socketpair()
    with peer:
        connecting = azt.create_connection(asyncio.Protocol, sock=ours)
        transport, _ = loop.run_until_complete(connecting)
        transport.write(bytes(BIG))
        loop.close()
        del transport, loop, connecting
        gc.collect()
    assert not caplog.records
