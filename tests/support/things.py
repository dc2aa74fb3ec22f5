"""Every public thing that holds memory, an fd, a thread, a child or a task.

A scene makes things of these classes and uses them, yields what a program would hold,
and closes that.  `slow/test_nothing_left.py` also drops everything that a scene yields,
or loses it in a cycle; this includes the other ends of connections.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import gl_scene
import numpy as np
import pytest
from ffmpegs import FOUND
from links import BIG, begun, cut_short, turns, until
from rings import opened
from transports import tls_contexts
from xserver import x_server

import aiozerocopy as azc
from aiozerocopy import capture, ffmpeg, gl, shm, transport, web
from aiozerocopy.gl import _readback

SIZE = (64, 48)
PICTURE = np.zeros((48, 64, 3), "u1")
Scene = Callable[[Path], AsyncIterator[Any]]
SCENES: dict[str, Scene] = {}
SHOWN: set[str] = set()  # the classes that have a scene
NEVER: dict[str, tuple[str, ...]] = {}  # by scene: the ends that it cannot have
WARNS: dict[str, tuple[str, ...]] = {}  # by scene: warnings if nobody closes its things

# Public classes that hold nothing, or only what a caller gave them.
HOLD_NOTHING = """
    Audio Client ClientStats Consumer Layout MemoryEnds MemoryStream Monitor PoolStats
    Published Rectangle RingStats Route Stats Status TCPBackend TLSBackend UnixBackend
"""


def scene(
    *classes: str, never: tuple[str, ...] = (), warns: tuple[str, ...] = ()
) -> Callable[[Scene], Scene]:
    def keep(function: Scene) -> Scene:
        name = function.__name__
        SCENES[name], NEVER[name], WARNS[name] = function, never, warns
        SHOWN.update(classes)
        return function

    return keep


async def echo(stream: azc.Stream) -> None:
    async for data in stream:
        await stream.send(data)


# ---- memory -------------------------------------------------------------------------


@scene("FramePool", "Frame")
async def pool(_: Path) -> AsyncIterator[Any]:
    pool = azc.FramePool(100, slots=2)
    held, frame = await pool.acquire(), pool.acquire_nowait()
    frame.view[:] = b"x" * 100
    yield pool, held, frame.view[10:20], np.asarray(frame.view)
    held.release()
    frame.release()
    pool.close()


@scene()
async def finalizing_buffer(_: Path) -> AsyncIterator[Any]:
    memory = bytearray(b"x" * 100)
    yield azc.finalizing_buffer(memory, memory.clear)


# ---- streams ------------------------------------------------------------------------


@scene(
    "SendStream",
    "ReceiveStream",
    "Ticket",
    warns=("unclosed <SendStream", "unclosed <ReceiveStream"),
)
async def pipe(_: Path) -> AsyncIterator[Any]:
    reader, writer = azc.pipe()
    pool = azc.FramePool(BIG, slots=1)
    tickets = [await writer.put(bytes(BIG)), await writer.put(await pool.acquire())]
    await begun(writer)
    await reader.receive_exactly(bytearray(1000))
    yield reader, writer, pool, tickets
    reader.abort()
    writer.abort()


@scene("Stream", "UnixStream", warns=("unclosed <UnixStream",))
async def sockets(_: Path) -> AsyncIterator[Any]:
    one, other = azc.socketpair()
    await one.send_fds(b"with a file", [0])
    await one.put(bytearray(BIG))
    calls = [one.send_fds(b"never", [0]), one.receive_fds(100, 1)]
    for call in calls:
        call.send(None)
    await other.send_fds(b"not yet taken", [0])
    await until(lambda: one.stats.bytes_received)
    yield one, other, await one.put(b"behind"), calls
    for call in calls:
        call.close()
    await one.aclose(linger=0)
    await other.aclose()


@scene()
async def a_receive_that_was_cancelled(_: Path) -> AsyncIterator[Any]:
    one, other = azc.socketpair()
    with anyio.move_on_after(0.001):
        await one.receive_exactly(bytearray(1000))
    await other.send(b"x")
    yield one, other
    one.abort()
    other.abort()


@scene("Server", "WebServer")
async def server(folder: Path) -> AsyncIterator[Any]:
    async with azc.serve_tcp(echo, "127.0.0.1", 0) as over_tcp:
        tcp = await azc.connect_tcp("127.0.0.1", over_tcp.port)
        async with azc.serve_unix(echo, folder / "socket"):
            unix = await azc.connect_unix(folder / "socket")
            for stream in (tcp, unix):
                await stream.send(b"hello")
                assert await stream.receive() == b"hello"
            yield tcp, unix
            await tcp.aclose()
            await unix.aclose()


@scene("Relay")
async def relay(_: Path) -> AsyncIterator[Any]:
    (source, feed), (far, sink) = azc.pipe(), azc.pipe()
    await feed.send(b"x" * 1000)
    relay = azc.relay(source, sink, 500)
    await relay
    with anyio.move_on_after(0.001):
        await azc.relay(source, sink)
    yield relay, source, feed, sink, far
    for stream in (source, feed, sink, far):
        stream.abort()


@scene("Process", warns=("unclosed <Process",))
async def process(_: Path) -> AsyncIterator[Any]:
    process = await azc.open_process(["cat"], stdin=True, stdout=True)
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdin.send(b"hello")
    assert await process.stdout.receive() == b"hello"
    yield (process,)
    await process.stdin.aclose()
    assert await process.wait() == 0
    await process.aclose()


# ---- frames -------------------------------------------------------------------------


@scene("FrameSender", "FrameReceiver")
async def frames(_: Path) -> AsyncIterator[Any]:
    one, other = azc.socketpair()
    pool = azc.FramePool(100, slots=2)
    sender, receiver = azc.FrameSender(one), azc.FrameReceiver(other, pool=pool)
    await sender.send(np.ones(100, "u1"))
    await sender.send(np.ones(100, "u1"))
    frame = await receiver.receive()
    yield sender, receiver, one, other, pool, frame
    one.abort()
    other.abort()
    frame.release()


@scene("FrameClient")
async def frame_client(folder: Path) -> AsyncIterator[Any]:
    async def send(stream: azc.Stream) -> None:
        sender = azc.FrameSender(stream)
        while True:
            await sender.send(np.ones(100, "u1"))

    async with azc.serve_unix(send, folder / "socket"):
        pool = azc.FramePool(100, slots=2)
        client = azc.FrameClient(lambda: azc.connect_unix(folder / "socket"), pool=pool)
        yield client, pool, await client.receive()
        await client.aclose()


@scene("Broadcast")
async def broadcast(_: Path) -> AsyncIterator[Any]:
    near, far = azc.socketpair()
    async with azc.Broadcast() as hub:
        client = hub.attach(near)
        for _n in range(4):
            await hub.publish(np.ones(BIG, "u1"))
        yield client, near, far
        far.abort()
        near.abort()


@scene("Broadcast")
async def broadcast_without_a_block(_: Path) -> AsyncIterator[Any]:
    near, far = azc.socketpair()
    hub = azc.Broadcast()
    client = hub.attach(near)
    await hub.publish(np.ones(BIG, "u1"))
    yield hub, client, near, far
    await hub.aclose(0)
    far.abort()
    near.abort()


# ---- rings --------------------------------------------------------------------------


@scene(
    "Ring",
    "Record",
    "Batch",
    "Slot",
    warns=("unclosed <Ring sends", "unclosed <Ring receives"),
)
async def ring(folder: Path) -> AsyncIterator[Any]:
    producer, consumer = await opened(folder)
    for _n in range(3):
        await producer.send(b"x" * 100)
    slot = await producer.reserve(100)
    record, batch = await consumer.receive(), await consumer.receive_batch()
    yield producer, consumer, record, batch, slot, record.view[1:], batch[0].view
    slot.rollback()
    record.release()
    batch.release()
    await producer.aclose()
    await consumer.aclose()


@scene("FanOut")
async def fanout(folder: Path) -> AsyncIterator[Any]:
    producer, consumer = await opened(folder)
    fanout = shm.FanOut()
    fanout.attach(producer)
    await fanout.send(b"x")
    yield fanout, producer, consumer
    await fanout.aclose()
    await producer.aclose()
    await consumer.aclose()


@scene("Rpc", "Request", never=("drop",))  # (a cancelled task group is a cycle)
async def rpc(folder: Path) -> AsyncIterator[Any]:
    async def answer(request: shm.Request) -> bytes:
        return bytes(request)

    (folder / "there").mkdir()
    (folder / "back").mkdir()
    (out, requests), (replies, back) = (
        await opened(folder / "there"),
        await opened(folder / "back"),
    )
    rpc, server = shm.Rpc(out, back), shm.Rpc(requests, replies)
    async with cut_short(server.serve, answer):
        with await rpc.call(1, b"x") as reply:
            assert bytes(reply) == b"x"
    yield rpc, server
    await rpc.aclose()
    await server.aclose()


# ---- transports: the loop keeps them until they are closed, or the peer leaves ------


@scene("SocketTransport")
async def socket_transport(_: Path) -> AsyncIterator[Any]:
    ours, peer = socket.socketpair()
    made, protocol = await transport.create_connection(asyncio.Protocol, sock=ours)
    made.write(bytes(BIG))
    yield made, protocol, peer
    made.abort()
    peer.close()
    await turns()


@scene("TLSTransport", never=("drop", "lose"))
async def tls_transport(_: Path) -> AsyncIterator[Any]:
    server, client = tls_contexts()
    one, other = socket.socketpair()
    with contextlib.ExitStack() as stack:

        async def connect(call: Any) -> None:
            made, _protocol = await call
            stack.callback(made.abort)
            made.write(bytes(1000))

        async with anyio.create_task_group() as tasks:
            accepted = transport.connect_accepted_socket
            tasks.start_soon(connect, accepted(asyncio.Protocol, one, ssl=server))
            connected = transport.create_connection(
                asyncio.Protocol, sock=other, ssl=client, server_hostname="localhost"
            )
            tasks.start_soon(connect, connected)
        yield (stack,)
    await turns()


@scene("Server", never=("drop", "lose"))
async def transport_server(_: Path) -> AsyncIterator[Any]:
    server = await transport.create_server(asyncio.Protocol, "127.0.0.1", 0)
    with contextlib.ExitStack() as stack:
        stack.callback(server.abort_clients)
        for _again in range(2):  # (the first may be interrupted)
            stack.callback(server.close)
        address = server.sockets[0].getsockname()
        made, protocol = await transport.create_connection(asyncio.Protocol, *address)
        stack.callback(made.abort)
        await turns()
        yield server, made, protocol
    await server.wait_closed()
    await turns()


@scene("EventLoop", never=("drop",))  # (every loop of asyncio is a cycle)
async def event_loop(_: Path) -> AsyncIterator[Any]:
    loop = transport.new_event_loop()
    yield (loop,)
    loop.close()


@scene()
async def dask_comms(_: Path) -> AsyncIterator[Any]:
    pytest.importorskip("distributed")
    from distributed.comm.core import connect, listen
    from distributed.protocol.serialize import to_serialize

    comms: list[Any] = []

    async def serve(comm: Any) -> None:
        comms.append(comm)
        try:
            await comm.write({"x": to_serialize(PICTURE)})
        except BaseException:
            comm.abort()
            raise

    server, client = tls_contexts()
    theirs = {"ssl_context": client, "server_hostname": "localhost"}
    for place in ("azc://127.0.0.1:0", "azc+tls://127.0.0.1:0", "azc+unix://"):
        async with listen(place, serve, ssl_context=server) as listener:
            one = await connect(listener.contact_address, **theirs)
            got = await one.read()
            yield one, comms.pop(), got
            await one.close()


# ---- FFmpeg, screens, pictures ------------------------------------------------------


def need_ffmpeg() -> None:
    if not any(FOUND.values()):
        pytest.skip("no FFmpeg")


@scene("Writer", warns=("unclosed <Writer 64x48 rgb24, running>",))
async def ffmpeg_writer(folder: Path) -> AsyncIterator[Any]:
    need_ffmpeg()
    writer = await ffmpeg.Writer(folder / "film.mp4", SIZE)
    await writer.send(PICTURE)
    yield (writer,)
    await writer.aclose()


@scene("Encoder", "Clients", "Subscription", warns=("unclosed <Encoder",))
async def ffmpeg_encoder(_: Path) -> AsyncIterator[Any]:
    need_ffmpeg()
    encoder = await ffmpeg.Encoder(SIZE)
    async with encoder.clients() as clients:
        subscription = clients.subscribe()
        await encoder.send(PICTURE)
        yield encoder, clients, subscription
        await encoder.aclose()


@scene("Reader", warns=("unclosed <Process",))
async def ffmpeg_reader(_: Path) -> AsyncIterator[Any]:
    need_ffmpeg()
    source = ["-f", "lavfi", "-i", "color=size=64x48:rate=25"]
    reader = await ffmpeg.Reader(source)
    frame = await anext(reader)
    yield reader, frame, frame.view[5:]
    frame.release()
    await reader.aclose()


@scene("X11Screen", "Screenshot", warns=("was not closed",))
async def screen(_: Path) -> AsyncIterator[Any]:
    with x_server() as server:
        screen = await capture.X11Screen(server.name)
        picture = await screen.grab()
        yield screen, picture, picture.view[5:]
        picture.release()
        await screen.aclose()


@scene("Readback", "Picture", warns=("was not closed",))
async def readback(_: Path) -> AsyncIterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        of_gl = gl_scene.install(patch, _readback)
        context = gl_scene.slow_context()
        readback = gl.Readback(context, SIZE, "rgba")
        readback.submit(gl_scene.slow_framebuffer(context, SIZE))
        of_gl().finish()
        picture = await readback.next()
        yield readback, picture, picture.view[5:]
        picture.release()
        readback.close()


@scene("WebServer", "WebApp")
async def page(_: Path) -> AsyncIterator[Any]:
    async with azc.Broadcast() as hub, web.serve(hub) as server:
        await hub.publish(PICTURE)
        stream = await azc.connect_tcp("127.0.0.1", server.port)
        await stream.send(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert (await stream.receive()).startswith(b"HTTP/1.1")
        yield server, stream
        await stream.aclose()
