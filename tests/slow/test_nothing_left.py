"""Public things leave nothing behind: closed, dropped, cancelled, or after a fork.

Left behind means memory, fds, threads, children, tasks, and entries in the selector.
The garbage collector is off, except for one collection that finds a cycle.  Smaller or
unknown remains show when things are made again and again.

The lists come from the package itself: a test fails if a class has no scene in
support/things.py, or a coroutine has no case here.  A case prepares a call, yields it,
and then checks what arrived; the test cancels the call at each of its awaits.  After a
cancel, the caller owns the buffers again, and the objects stay usable.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import inspect
import itertools
import logging
import os
import pkgutil
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import anyio.lowlevel
import figures
import fork_world
import gl_scene
import pytest
from interruption import Interruption, Lines, Place, hit_each_line, run_on
from inventory import memory_in_use, nothing_left
from links import BIG, cancelled_at, linux_only
from part import part
from rings import SMALL, connected, filled, opened, ring_pair
from things import HOLD_NOTHING, NEVER, PICTURE, SCENES, SHOWN, WARNS, need_ffmpeg
from things import SIZE as SHAPE
from xserver import x_server

import aiozerocopy as azc
from aiozerocopy import capture, ffmpeg, gl, shm, testing
from aiozerocopy._core import borrows
from aiozerocopy._core.binding import ffi, lib
from aiozerocopy.ffmpeg import binary
from aiozerocopy.gl import _readback

np = pytest.importorskip("numpy")
pytestmark = [linux_only, pytest.mark.anyio]

SIZE = 200_000  # more than a small link holds
MOST = 200  # awaits: more than any case has
CASES: dict[str, Callable[[Path], AsyncIterator[Any]]] = {}

# Coroutines whose cases are elsewhere: on every link, or in a program of their own.
ELSEWHERE = {
    "SendStream": "contract/test_cancellation.py",
    "Stream": "contract/test_cancellation.py",
    "ReceiveStream.receive": "contract/test_receiving.py",
    "ReceiveStream.receive_exactly": "contract/test_receiving.py",
    "ReceiveStream.receive_into": "contract/test_receiving.py",
    "FrameClient": "net/test_client.py",
    "Rpc": "shm/test_rpc.py",
    "Service": "it serves until it is cancelled: net/test_serving.py",
    "WebApp": "web/test_interruptions.py",
    "WebServer": "web/test_interruptions.py",
    "MemoryStream": "contract/test_memory_pair.py",
    "check_stream": "contract/test_check_stream.py",
    "monitors": "it opens and closes a connection, as X11Screen does",
}
_TRANSPORTS = """
    SocketTransport TLSTransport Server _WithTransports connect_accepted_socket
    create_connection create_server create_unix_connection create_unix_server
    open_connection open_unix_connection sendfile start_server start_tls
    start_unix_server
"""
ELSEWHERE |= dict.fromkeys(_TRANSPORTS.split(), "transport/test_interruptions.py")
_SERVER = ("connect_tcp", "serve_tcp", "connect_unix", "serve_unix")
ELSEWHERE |= dict.fromkeys((*_SERVER, "relay"), "support/things.py")
ELSEWHERE |= dict.fromkeys(("open_process", "Process"), "support/things.py")


def case(*names: str) -> Callable[[Any], Any]:
    """Register a case for these coroutines."""

    def keep(function: Any) -> Any:
        CASES.update(dict.fromkeys(names, function))
        return function

    return keep


# ---- sending ------------------------------------------------------------------------


@case("UnixStream.send_fds", "UnixStream.receive_fds")
@case("_Ends.__aenter__", "_Ends.__aexit__")
async def _(_folder: Path) -> AsyncIterator[Any]:
    async with azc.socketpair() as (one, other):
        got: list[int] = []

        async def pass_on() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(receive)
                await one.send_fds(b"x" * 10, [2])

        async def receive() -> None:
            data = b""
            while len(data) < 10:
                more, fds = await other.receive_fds(10, 1)
                got.extend(fds)
                data += more

        yield pass_on
        for fd in got:
            os.close(fd)


@case("ReceiveStream.aclose")
async def _(_folder: Path) -> AsyncIterator[Any]:
    reader, writer = azc.pipe()
    yield reader.aclose
    assert reader.fileno() == -1
    with pytest.raises(azc.StreamBroken):
        await writer.send(b"x")
    writer.abort()


# ---- frames -------------------------------------------------------------------------


@case("FramePool.acquire", "FramePool.aclose")
@case("Lent.__aenter__", "Lent.__aexit__")
async def _(_folder: Path) -> AsyncIterator[Any]:
    pool = azc.FramePool(100, slots=1)

    async def use() -> None:
        async with pool:
            held = pool.acquire_nowait()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(give_back, held)
                async with await pool.acquire() as frame:
                    frame.view[:] = b"x" * 100

    async def give_back(held: azc.Frame) -> None:
        try:
            await anyio.lowlevel.checkpoint()
        finally:
            held.release()

    yield use
    assert pool.stats.waiting == 0


@case("FrameSender.send", "FrameReceiver.receive", "Receives.__anext__")
async def _(_folder: Path) -> AsyncIterator[Any]:
    """A frame is sent whole or not at all; a receiver continues where it was."""
    async with azc.socketpair() as (one, other):
        sender, receiver = azc.FrameSender(one), azc.FrameReceiver(other)
        picture = np.full(SIZE, 7, "u1")

        async def exchange() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(sender.send, picture)
                frame = await receiver.receive()
                assert frame.array.min() == 7

        yield exchange


@case("Block.__aenter__", "Block.__aexit__")
@case("Broadcast.publish", "Broadcast.aclose", "Client.wait_closed")
async def _(_folder: Path) -> AsyncIterator[Any]:
    async with azc.socketpair() as (near, far):

        async def publish() -> None:
            async with azc.Broadcast() as hub, anyio.create_task_group() as tasks:
                client = hub.attach(near, policy="block")
                tasks.start_soon(drain)
                for number in range(4):
                    await hub.publish(np.full(SIZE, number, "u1"))
                await hub.aclose(5)
                await client.wait_closed()
                await near.aclose()

        async def drain() -> None:
            with pytest.raises((anyio.EndOfStream, azc.StreamClosed)):
                while True:
                    await far.receive()

        yield publish
        near.abort()  # the far end may have been closed first


# ---- rings --------------------------------------------------------------------------


@case("connect_ring", "listen_ring")
@case("Ring.aclose")
async def _(folder: Path) -> AsyncIterator[Any]:
    yield lambda: open_and_close(folder)
    assert not (folder / "ring").exists()


async def open_and_close(folder: Path) -> None:
    async def connect() -> None:
        while not path.exists():
            await anyio.lowlevel.checkpoint()
        async with await connected(path) as producer:
            await producer.send(b"x")

    path = folder / "ring"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connect)
        async with shm.listen_ring(path, SMALL) as consumer:
            (await consumer.receive()).release()


@case("Ring.send", "Ring.receive", "Receives.__anext__", "Ring.receive_batch")
@case("Slot.__aenter__", "Slot.__aexit__")
async def _(folder: Path) -> AsyncIterator[Any]:
    """A record is sent whole or not at all; no record is lost before it is taken."""
    async with ring_pair(folder) as (producer, consumer):
        before = await filled(producer, b"f" * 1000)
        taken = 0

        async def take() -> None:
            nonlocal taken
            for _ in range(before):
                (await consumer.receive()).release()
                taken += 1
            batch = await consumer.receive_batch()
            taken += len(batch)
            batch.release()

        async def exchange() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(take)
                async with producer.reserve(500) as slot:
                    slot.view[:] = b"s" * 500
                    slot.commit(500)
                await producer.send(b"r" * 500)

        yield exchange
        await producer.aclose()
        rest = 0
        async for record in consumer:
            assert set(bytes(record)) <= {*b"fsr"}
            rest += 1
            record.release()
        assert before <= taken + rest <= before + 2


@case("Route.receive", "Receives.__anext__")
async def _(folder: Path) -> AsyncIterator[Any]:
    async with ring_pair(folder) as (producer, consumer):
        route = consumer.route(7)

        async def receive() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send)
                (await route.receive()).release()

        async def send() -> None:
            await anyio.lowlevel.checkpoint()
            await producer.send(b"x", type_id=7)

        yield receive


@case("FanOut.send", "FanOut.aclose")
async def _(folder: Path) -> AsyncIterator[Any]:
    producer, consumer = await opened(folder, SMALL)
    fanout = shm.FanOut()
    fanout.attach(producer)

    async def send() -> None:
        async with fanout, anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            for _ in range(200):
                await fanout.send(b"x" * 1000)

    async def take() -> None:
        async for record in consumer:
            record.release()
            if consumer.stats.records >= 200:
                return

    yield send
    await fanout.aclose()
    await consumer.aclose()


# ---- FFmpeg, screens, pictures ------------------------------------------------------


@case("Writer.send", "Writer.put", "Writer.close_video")
@case("Writer.send_audio", "Writer.close_audio")
@case("Writer.aclose", "Writer.__aexit__", "Video.__aenter__")
async def _(folder: Path) -> AsyncIterator[Any]:
    need_ffmpeg()

    async def write() -> None:
        sound = ffmpeg.Audio()
        async with ffmpeg.Writer(folder / "a.mkv", SHAPE, audio=sound) as writer:
            await writer.send(PICTURE)
            await (await writer.put(PICTURE))
            await writer.send_audio(bytes(sound.rate // 5))
            await writer.close_audio()
            await writer.send(PICTURE)
            await writer.close_video()

    yield write


@case("Encoder.receive", "Encoder.finish", "Encoder.wait", "Encoder.aclose")
@case("Clients.aclose", "Subscription.receive", "Subscription.aclose")
async def _(_folder: Path) -> AsyncIterator[Any]:
    need_ffmpeg()

    async def encode() -> None:
        async with ffmpeg.Encoder(SHAPE) as encoder, encoder.clients() as clients:
            subscription = clients.subscribe()
            await encoder.send(PICTURE)
            await encoder.finish()
            await subscription.receive()
            await subscription.aclose()
        async with ffmpeg.Encoder(SHAPE) as encoder:
            await encoder.send(PICTURE)
            await encoder.finish()
            await encoder.receive()
            await encoder.aclose()
            with contextlib.suppress(azc.StreamBroken, azc.StreamClosed):
                await encoder.wait()

    yield encode


@case("Reader.receive", "Reader.aclose")
async def _(_folder: Path) -> AsyncIterator[Any]:
    need_ffmpeg()

    async def read() -> None:
        source = ["-f", "lavfi", "-i", "color=size=64x48:rate=25"]
        async with ffmpeg.Reader(source) as reader:
            (await reader.receive()).release()

    yield read


@case("X11Screen.grab", "X11Screen.aclose")
@case("X11Screen.__aenter__", "X11Screen.__aexit__")
async def _(_folder: Path) -> AsyncIterator[Any]:
    with x_server() as server:

        async def grab() -> None:
            async with capture.X11Screen(server.name) as screen:
                (await screen.grab()).release()

        yield grab
        await grab()


@case("Readback.next", "Readback.put", "Readback.read", "Readback.wait_room")
@case("Readback.__aenter__", "Readback.__aexit__")
async def _(_folder: Path) -> AsyncIterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        of_gl = gl_scene.install(patch, _readback)
        context = gl_scene.slow_context()
        picture = gl_scene.slow_framebuffer(context, SHAPE)

        async def read() -> None:
            async with gl.Readback(context, SHAPE, "rgba") as readback:
                await readback.put(picture)
                await readback.wait_room()
                of_gl().finish()
                (await readback.next()).release()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(finish)
                    (await readback.read(picture)).release()
                    tasks.cancel_scope.cancel()

        async def finish() -> None:
            while True:
                of_gl().finish()
                await anyio.lowlevel.checkpoint()

        yield read


# ---- all cases and scenes ------------------------------------------------------------


def rooms() -> list[ModuleType]:
    return [
        importlib.import_module(f"aiozerocopy.{room.name}")
        for room in pkgutil.iter_modules(azc.__path__)
        if room.ispkg and not room.name.startswith("_") and room.name != "commands"
    ]


def found() -> set[str]:
    """Find all coroutines of public classes, by qualified name, and public functions
    whose result is awaited."""
    names = set()
    for module in (azc, testing, *rooms()):
        for name in dir(module):
            thing = getattr(module, name)
            if name.startswith("_") or not is_ours(thing):
                continue
            if inspect.isclass(thing):
                names |= {method.__qualname__ for method in coroutines(thing)}
            elif is_awaited(thing):
                names.add(name)
    return names


def coroutines(kind: type) -> list[Any]:
    members = [inspect.getattr_static(kind, name) for name in dir(kind)]
    return [
        member
        for member in members
        if inspect.iscoroutinefunction(member)
        and is_ours(member)
        and (not member.__name__.startswith("_") or member.__name__.startswith("__"))
    ]


def is_ours(thing: object) -> bool:
    return getattr(thing, "__module__", "").startswith("aiozerocopy")


def is_awaited(thing: Any) -> bool:
    answer = str(getattr(thing, "__annotations__", {}).get("return", ""))
    awaited = ("Opening", "Relay", "Server")
    return inspect.iscoroutinefunction(thing) or answer.startswith(awaited)


def test_every_coroutine_has_a_case() -> None:
    names = {
        name
        for name in found()
        if ELSEWHERE.keys().isdisjoint((name, name.partition(".")[0]))
    }
    assert names == set(CASES)


ONE_NAME_A_CASE = {function: name for name, function in CASES.items()}
_OF_ROOMS = ("Writer", "Encoder", "Clients", "Reader", "X11Screen", "Readback")
OF_ROOMS = [n for n in ONE_NAME_A_CASE.values() if n.startswith(_OF_ROOMS)]


@pytest.mark.parametrize("name", ONE_NAME_A_CASE.values())
async def test_cancelled_at_every_await(name: str, tmp_path: Path) -> None:
    async def play(folder: Path, n: int) -> bool:
        async with asynccontextmanager(CASES[name])(folder) as call:
            return (await cancelled_at(as_coroutine(call), n))[0]

    await cancelled_everywhere(play, tmp_path)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore:unclosed")
@pytest.mark.parametrize("name", [name for name in SCENES if "lose" not in NEVER[name]])
async def test_scene_is_cancelled_at_every_await(name: str, tmp_path: Path) -> None:
    """Objects made before the cancel are dropped with their frames."""

    async def play(folder: Path, n: int) -> bool:
        cancelled, _ = await cancelled_at(close(SCENES[name](folder), []), n)
        if "drop" in NEVER[name]:
            gc.collect()
        return cancelled

    await cancelled_everywhere(play, tmp_path)


# Scenes that are interrupted, as cases are, at every line of the modules in ROOMS;
# core/test_interruptions.py interrupts the other modules of _core.
HIT = """
    pool finalizing_buffer pipe relay process frames readback screen
    ffmpeg_writer ffmpeg_encoder ffmpeg_reader
    sockets server frame_client broadcast broadcast_without_a_block ring fanout rpc
    socket_transport tls_transport transport_server page dask_comms
"""
ROOMS = """
    ffmpeg capture gl process _process opening pool frames framing relays
    client _net broadcast shm transport web streams dask
    _core.memory _core.channel _core.fds
"""
OTHERS = (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError)
MAY_BE = (Interruption, asyncio.CancelledError, *OTHERS)


@pytest.fixture
def unseen() -> Iterator[None]:
    """Keep logs and warnings from holding objects."""
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("name", [*HIT.split(), *OF_ROOMS])
def test_hit_at_every_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal's exception at every line leaves nothing, once its frames are gone."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    monkeypatch.setattr(binary, "SILENT", 0.5)  # (so that a thread ends by itself)
    folders = (tmp_path / str(n) for n in itertools.count())

    async def play(lines: Lines) -> list[str]:
        (folder := next(folders)).mkdir()
        try:
            async with nothing_left(collects=True):
                task = asyncio.ensure_future(hit_in(name, folder, lines))
                await asyncio.wait({task}, timeout=5)
                complaints = task.result() if task.done() else ["the call hangs"]
                task.cancel()
                del task
        except AssertionError as error:
            return [str(error)]
        return complaints

    def first(places: list[Place]) -> list[Place]:
        return part([place for place in places if place[2] == 1])

    async def main() -> None:
        # (else a frame of asyncio keeps the error, and its frames, in a cycle)
        asyncio.get_running_loop().set_exception_handler(lambda _, it: it.clear())
        await hit_each_line(play, tuple(ROOMS.split()), first)

    run_on("asyncio", main)


async def hit_in(name: str, folder: Path, lines: Lines) -> list[str]:
    """Return unexpected exceptions as complaints."""
    try:
        if name in SCENES:
            with lines:
                await close(SCENES[name](folder), [])
        else:
            async with asynccontextmanager(CASES[name])(folder) as call:
                with lines:
                    await call()
    except BaseException as error:
        return [
            f"the call raised {each!r}"
            for each in leaves(error)
            if not isinstance(each, MAY_BE)
        ]
    return []


def leaves(error: BaseException) -> list[BaseException]:
    inner = getattr(error, "exceptions", ())
    return [leaf for each in inner for leaf in leaves(each)] if inner else [error]


async def cancelled_everywhere(
    play: Callable[[Path, int], Awaitable[bool]], folder: Path
) -> None:
    """Play repeatedly, cancelled at the n-th await, until there is no n-th await."""
    for n in range(1, MOST):
        (own := folder / str(n)).mkdir()
        async with nothing_left():
            cancelled = await play(own, n)
        if not cancelled:
            figures.count("awaits cancelled", n - 1)
            return
    pytest.fail("the call has too many awaits, or no end")


async def as_coroutine(call: Any) -> Any:
    _local = azc.finalizing_buffer(bytearray(9), int)  # this must go with the frame
    return await call()


# ---- things: closed, dropped, or lost in a cycle ------------------------------------


class Witness:
    """Looks at all memory that it can reach when it is finalized."""

    def __init__(self, told: list[str]) -> None:
        self.told = told

    def see(self, things: Sequence[Any], other: Witness) -> None:
        self.other = other
        self.views = [each for each in things if isinstance(each, memoryview)]
        self.things, self.seen = things, list(map(bytes, self.views))

    def __del__(self) -> None:
        if list(map(bytes, self.views)) != self.seen:
            self.told.append("a view shows something else")


async def close(scene: AsyncIterator[Any], _: list[str]) -> None:
    async for _things in scene:
        pass


async def drop(scene: Any, _: list[str]) -> None:
    things = await anext(scene)
    await scene.aclose()
    del things


async def lose(scene: Any, told: list[str]) -> None:
    """Lose the things in a cycle with an older and a younger witness of the views."""
    older = Witness(told)
    things = await anext(scene)
    younger = Witness(told)
    older.see(things, younger)
    younger.see(things, older)
    await scene.aclose()
    del things, older, younger
    gc.collect()


async def fork(scene: AsyncIterator[Any], told: list[str]) -> None:
    """The parent's things stay usable, whatever a child does with its copies."""
    things = await anext(scene)
    if not (child := fork_world.fork()):
        for thing in things:
            for name in ("abort", "close", "release", "kill"):
                with contextlib.suppress(Exception):
                    getattr(thing, name)()
        os._exit(fork_world.attempted(gc.collect))
    assert fork_world.ends_well(child)
    await close(scene, told)


def public_classes() -> set[str]:
    """Return the public classes of the package and its folders, without exceptions."""
    return {
        name
        for room in (azc, *rooms())
        for name in dir(room)
        if inspect.isclass(thing := getattr(room, name))
        and is_ours(thing)
        and not (name.startswith("_") or issubclass(thing, Exception))
    }


def test_every_public_class_is_in_a_scene() -> None:
    assert public_classes() == SHOWN | set(HOLD_NOTHING.split())


@pytest.mark.parametrize("end", [close, drop, lose, fork])
@pytest.mark.parametrize("name", SCENES)
async def test_nothing_is_left(name: str, end: Any, tmp_path: Path) -> None:
    if end.__name__ in NEVER[name]:
        pytest.skip("not an end of these")
    told: list[str] = []
    said: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", ResourceWarning)
        warnings.filterwarnings("always", "unclosed", RuntimeWarning)
        # (a record of the warnings would keep their objects)
        warnings.showwarning = lambda message, *_, **__: said.append(str(message))
        async with nothing_left():
            await end(SCENES[name](tmp_path), told)
    assert not told
    assert not (said and end is close)
    for words in WARNS[name] if end is drop else ():
        assert words in "; ".join(said)


# ---- again and again ----------------------------------------------------------------

ROUNDS = 20  # whose lowest use of memory is compared
TRIES = 6  # (a cache fills up; a leak continues)
LEAST = {"blocks": 0.7, "bytes": 150}  # growth that counts as a leak, per round


async def grown(play: Callable[[Path], Awaitable[object]]) -> dict[str, float]:
    """Return how much memory grows in each round, after caches have filled."""

    async def least() -> dict[str, int]:
        used = []
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                await play(Path(folder))
            for _ in range(2):
                gc.collect()
                borrows.sweep()
                await anyio.sleep(0.002)
            used.append(memory_in_use())
        return {what: min(each[what] for each in used) for what in used[0]}

    before = await least()
    for _ in range(TRIES):
        now = await least()
        growth = {it: (now[it] - before[it]) / ROUNDS for it in now}
        growth = {it: n for it, n in growth.items() if n >= LEAST[it]}
        if not growth:
            break
        before = now
    return growth


@pytest.mark.timeout(120)
@pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="threads keep blocks"
)
@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("end", [close, lose])
@pytest.mark.parametrize("name", SCENES)
async def test_no_memory_is_left_of_many(name: str, end: Any) -> None:
    if end.__name__ in NEVER[name]:
        pytest.skip("not an end of these")
    # (On a busy machine the last rounds end later, but they must before `unseen` does.)
    async with nothing_left(collects=True):
        growth = await grown(lambda folder: end(SCENES[name](folder), []))
    assert not growth


@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("leak", ["object", "buffer", "operation"])
async def test_memory_that_is_left_is_found(leak: str) -> None:
    """The negative control: a leak in each round."""
    what = "blocks" if leak == "object" else "bytes"
    if what not in memory_in_use():
        pytest.skip("this C library does not count its memory")
    kept: list[object] = []
    reader, writer = azc.pipe(4096)
    writer._enter()
    port = writer._waiter.port  # type: ignore[union-attr]
    data = bytes(BIG)

    async def play(folder: Path) -> None:
        await close(SCENES["pipe"](folder), [])
        if leak == "operation":  # memory of C's, unknown to Python
            vec = ffi.new("struct iovec *", (ffi.from_buffer(data), BIG))
            lib.azc_sendv(writer._out.id, port.id, 1 << 60, vec, 1, ffi.NULL, 0, 0)
        else:
            kept.append(object() if leak == "object" else bytearray(4096))

    found = await grown(play)
    writer.abort()
    reader.abort()
    assert what in found
