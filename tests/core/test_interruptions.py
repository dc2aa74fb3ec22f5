"""A signal's exception at every line of the core: all borrowed memory is given back.

A signal's handler may raise between any two lines.  So each call runs once to note the
lines of the core that it passes, and then again, each time with an exception at one.
However the call ends, its buffers are then the caller's: they are poisoned at once,
and only then does the peer read everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import pytest
from interruption import (
    LOOPS,
    Interruption,
    Lines,
    Place,
    hit_each_line,
    is_exported,
    keeps_a_borrow,
    open_fds,
    run_on,
)
from links import BIG, Link, PlainReader, linux_only, open_link, others_wait, until
from live import Live
from oracle import CANARY, HEADER, Checker, message, payload, poison

import aiozerocopy as azc
from aiozerocopy import StreamBroken, StreamClosed
from aiozerocopy._core.ahead import Ahead
from aiozerocopy.broadcast import Broadcast
from aiozerocopy.frames import Conversion

pytestmark = linux_only  # the tests read /proc

SMALL = 1000
PINNED = 10_000  # too much to be copied, but sent at once
PATIENCE = 5.0  # seconds for something that happens at once or never

Call = Callable[[], Awaitable[object]]


async def holds(condition: Callable[[], object], seconds: float) -> bool:
    """Tell whether the condition becomes true within this time."""
    with anyio.move_on_after(seconds):
        await until(condition)
        return True
    return False


# ---- one call, interrupted once -----------------------------------------------------


class Scene:
    """A link, our stream at one of its ends, and complaints."""

    stream: Any

    def __init__(self, link: Link, lines: Lines | Storm) -> None:
        self.link = link
        self.lines = lines
        self.complaints: list[str] = []
        self.buffers: list[Any] = []  # borrowed by the call
        self.views: list[memoryview] = []  # of the buffers
        self.raised: list[BaseException] = []

    async def call_and_be_hit(self, case: Case) -> None:
        """Make the call, interrupt it, and return when it has ended or hangs."""
        self.lines.armed = not case.cancel
        with self.lines if not case.thread else contextlib.nullcontext():
            task = asyncio.ensure_future(self._judged(lambda: case.call(self)))
            task.add_done_callback(lambda _: self.give_back())
            await others_wait()
            if case.cancel:
                self.lines.armed = True
                task.cancel()
                await others_wait()
            self.let_the_peer_go()
            await self._ended(task, "the call")

    async def succeeds(self, call: Call, what: str) -> bool:
        """Make a call without interruption; it must end, with or without an error."""
        task = asyncio.ensure_future(self._judged(call))
        return await self._ended(task, what) and task.result()

    async def _judged(self, call: Call) -> bool:
        try:
            await call()
        except (Interruption, asyncio.CancelledError, StreamBroken, StreamClosed) as e:
            self.raised.append(e)
            return False
        except BaseException as error:
            self.complaints.append(f"it raised {error!r}")
            return False
        return True

    async def _ended(self, task: asyncio.Task[Any], what: str) -> bool:
        for complaint in (f"{what} hangs", f"{what} cannot be cancelled"):
            await asyncio.wait({task}, timeout=PATIENCE)
            if task.done():
                return True
            self.complaints.append(complaint)
            task.cancel()
        return False

    def in_the_loop(self, _: object, context: dict[str, Any]) -> None:
        """Accept an interrupted callback."""
        if not isinstance(context.get("exception"), Interruption):
            self.complaints.append(f"in the loop: {context}")

    def in_a_finalizer(self, unraisable: Any) -> None:
        """Accept an interrupted finalizer."""
        if not isinstance(unraisable.exc_value, Interruption):
            self.complaints.append(f"in a finalizer: {unraisable.exc_value!r}")

    async def soon(self, condition: Callable[[], object], complaint: str) -> None:
        if not await holds(condition, PATIENCE):
            self.complaints.append(complaint)

    async def no_fd_is_left(self, before: set[str]) -> None:
        """Some fds are closed only by a collection, or when another stream ends."""
        if await holds(lambda: open_fds() <= before, PATIENCE / 50):
            return
        gc.collect()
        for stream in azc.pipe():
            stream.abort()
        await self.soon(lambda: open_fds() <= before, "fds are left")

    def give_back(self) -> None:
        """Reuse the buffers at once, as a caller may when the call has ended."""
        raise NotImplementedError

    def let_the_peer_go(self) -> None:
        """Let the other end begin; it has done nothing yet."""
        raise NotImplementedError

    async def finish(self) -> None:
        """Use the stream again, close it, and look at what arrived."""
        raise NotImplementedError

    def nothing_is_borrowed(self) -> None:
        if any(map(is_exported, self.buffers)):
            gc.collect()  # a traceback may be part of a cycle
            if any(map(is_exported, self.buffers)):
                self.complaints.append("a buffer is still borrowed")


@dataclass(frozen=True)
class Case:
    """A call, and the preparations for it."""

    scene: Callable[..., Any]
    call: Callable[[Any], Awaitable[object]]
    before: Callable[[Any], Awaitable[object]] | None = None
    cancel: bool = False  # cancelled while it waits, and interrupted only from then on
    thread: bool = False  # interrupted in a thread of its own
    options: dict[str, Any] = field(default_factory=dict)


async def be_hit(
    case: Case, kind: str, folder: Path, lines: Lines | Storm
) -> list[str]:
    """Play the case, and return the complaints."""
    fds = open_fds()
    with open_link("adopted" if kind == "lent" else kind, folder) as link:
        scene = case.scene(link, lines, lent=kind == "lent", **case.options)
        asyncio.get_running_loop().set_exception_handler(scene.in_the_loop)
        sys.unraisablehook = scene.in_a_finalizer
        if case.before is not None:
            await case.before(scene)
        await scene.call_and_be_hit(case)
        await scene.finish()
        if keeps_a_borrow(scene.raised, scene.views, scene.buffers):
            scene.complaints.append("a traceback keeps a borrow")
    await scene.no_fd_is_left(fds)
    scene.nothing_is_borrowed()
    complaints: list[str] = scene.complaints
    return complaints


# ---- sending ------------------------------------------------------------------------


class Sending(Scene):
    """A message is sent before the call's message, and another one after it."""

    def __init__(
        self, link: Link, lines: Lines | Storm, *, lent: bool = False, **options: Any
    ) -> None:
        super().__init__(link, lines)
        self.pool = azc.FramePool(HEADER.size + BIG, slots=3) if lent else None
        if lent:
            fd = link.take_write_fd()
            self.stream = azc.open_writer(fd, peer="reads", **options)
        else:
            self.stream = link.sender(**options)
        self._checker = Checker()
        self._reader = PlainReader(link, self._checker.feed)
        self.frames: list[azc.Frame] = []
        self.tickets: list[azc.Ticket] = []
        self.hub: Broadcast | None = None  # which borrows the stream
        self.thrown_away = 0  # bytes of memory that the caller has dropped
        self._sequence = 0

    def new(self, size: int) -> Any:
        """Make a message in memory that will be poisoned."""
        data = message(1, self._sequence, size)
        self._sequence += 1
        if self.pool is None or size < BIG:
            self.buffers.append(data)
            self.views.append(memoryview(data))
            return self.views[-1]
        frame = self.pool.acquire_nowait()
        frame.view[:] = data
        self.frames.append(frame)
        return frame

    def new_bytes(self, size: int) -> bytes:
        """Make a message in memory that will be freed, and used again."""
        self.thrown_away = size
        return bytes(message(1, 0, size))

    def give_back(self) -> None:
        if not all(ticket.done() for ticket in self.tickets):
            return  # the buffers of some are still borrowed
        for buffer in self.buffers:
            poison(buffer)
        for frame in self.frames:
            poison(frame.view)
        self._others = [bytearray([CANARY]) * self.thrown_away for _ in range(4)]

    def let_the_peer_go(self) -> None:
        self._reader.start()

    async def finish(self) -> None:
        if self.hub is not None:
            await self.succeeds(partial(self.hub.aclose, 0), "the end of a broadcast")
        await self.succeeds(self._await_tickets, "a ticket")
        whole = await self.succeeds(
            lambda: self.stream.send(message(2, 0, SMALL)), "the next send"
        )
        whole = await self.succeeds(self.stream.aclose, "aclose") and whole
        if self.stream.fileno() != -1:
            self.complaints.append("it does not close")
        tickets = self.tickets
        await self.soon(lambda: all(t.done() for t in tickets), "a ticket is not done")
        self.give_back()
        await self._look_at_what_arrived(whole)
        if self.pool is not None:
            self._look_at_the_pool(self.pool)

    async def _await_tickets(self) -> None:
        for ticket in self.tickets:
            await ticket
        self.give_back()

    async def _look_at_what_arrived(self, whole: bool) -> None:
        self._reader.start()
        thread = self._reader._thread
        await self.soon(lambda: not thread.is_alive(), "the other end sees no end")
        if not thread.is_alive():
            try:
                await self._reader.finish()
                if whole:
                    self._checker.finish()
            except AssertionError as error:
                self.complaints.append(str(error))

    def _look_at_the_pool(self, pool: azc.FramePool) -> None:
        keeps_a_borrow(self.raised, self.views, [])
        while self.frames:
            self.frames.pop().release()
        if pool.stats.free < pool.slots:
            gc.collect()
        if pool.stats.free < pool.slots:
            self.complaints.append("a slot does not come back")
        pool.close()

    # -- the calls ----------------------------------------------------------------

    async def send_first(self) -> None:
        await self.stream.send(message(0, 0, SMALL))

    async def send(self, size: int) -> None:
        await self.stream.send(self.new(size))

    async def send_bytes(self, size: int) -> None:
        await self.stream.send(self.new_bytes(size))

    async def send_pieces(self, size: int) -> None:
        data = self.new(size)
        view = memoryview(data.view if isinstance(data, azc.Frame) else data)
        self.views += view[:100], view[100:], view
        await self.stream.send(*self.views[-3:-1])

    async def send_many(self, size: int, count: int) -> None:
        await self.stream.send_many([self.new(size) for _ in range(count)])

    async def send_fds(self, size: int) -> None:
        with open(os.devnull) as file:  # noqa: ASYNC230
            await self.stream.send_fds(self.new(size), [file])

    async def put(self, size: int) -> None:
        self.tickets.append(await self.stream.put(self.new(size)))

    async def put_first(self) -> None:
        """Put a message that the call must wait for, or that it ends."""
        await self.send_first()
        await self.put(BIG)

    async def publish(self, count: int) -> None:
        """Publish frames that get stuck, from memory that the broadcast reuses."""
        self.hub = Live()
        self.hub.attach(self.stream, encode=lambda it: (it.view,))
        for number in range(count):
            self.buffers.append(message(10 + number, 0, BIG))
            self.views.append(memoryview(self.buffers[-1]))
            await self.hub.publish(self.views[-1])

    async def send_from_thread(self, size: int) -> None:
        over = asyncio.Event()
        tell = partial(asyncio.get_running_loop().call_soon_threadsafe, over.set)
        arguments = (self.new(size), tell)
        thread = threading.Thread(target=self._in_thread, args=arguments, daemon=True)
        del arguments
        thread.start()
        await over.wait()
        thread.join()

    def _in_thread(self, data: Any, tell: Callable[[], object]) -> None:
        try:
            with self.lines:
                self.stream.send_from_thread(data)
        except (Interruption, StreamBroken, StreamClosed):
            pass
        except BaseException as error:
            self.complaints.append(f"it raised {error!r}")
        finally:
            del data
            tell()


class Relaying(Sending):
    """The message comes from a pipe; the next relay takes the rest of it."""

    def __init__(
        self, link: Link, lines: Lines | Storm, *, lent: bool = False, **options: Any
    ) -> None:
        super().__init__(link, lines, lent=lent, **options)
        read_fd, self._fd = os.pipe()
        self.source = azc.open_reader(read_fd)
        self._relays: list[azc.Relay] = []
        self._total = 0

    async def find_some(self) -> None:
        """Receive some bytes and give them back: the relay sends them first."""
        await self.send_first()
        self._begin(BIG)
        self.source._unread = await self.source.receive(SMALL)

    async def relay(self, size: int) -> None:
        if not self._total:
            self._begin(size)
        self._relays.append(azc.relay(self.source, self.stream, self._total))
        await self._relays[-1]

    def _begin(self, size: int) -> None:
        data = message(1, 0, size)
        self._total = len(data)
        arguments = (self._fd, data)
        self._fd = -1
        threading.Thread(target=self._feed, args=arguments, daemon=True).start()

    @staticmethod
    def _feed(fd: int, data: bytearray) -> None:
        rest = memoryview(data)
        with contextlib.suppress(BrokenPipeError):
            while rest:
                rest = rest[os.write(fd, rest) :]
        os.close(fd)

    async def finish(self) -> None:
        left = self._total - sum(relay.taken for relay in self._relays)
        await self.succeeds(
            lambda: azc.relay(self.source, self.stream, left), "the next relay"
        )
        if self._fd >= 0:
            os.close(self._fd)
        await self.succeeds(self.source.aclose, "aclose of the source")
        await super().finish()


# ---- receiving ----------------------------------------------------------------------


class Receiving(Scene):
    """The next receives return everything that the interrupted receive did not."""

    def __init__(self, link: Link, lines: Lines | Storm, *, lent: bool = False) -> None:
        super().__init__(link, lines)
        self.stream = link.receiver()
        self.data = payload(3, 400_000)
        self.result = b""  # returned by the call
        self._before = 0  # bytes that were received before the call
        self._seen = b""  # bytes in the caller's buffer when the call ended
        self._fd = link.take_write_fd()
        self._written = 0
        self._writer = threading.Thread(target=self._write_the_rest, daemon=True)

    def _write(self, n: int) -> None:
        self._written += os.write(self._fd, self.data[self._written : n])

    def _write_with_file(self, n: int) -> None:
        piece = self.data[self._written : n]
        with socket.socket(fileno=os.dup(self._fd)) as sock:
            sock.setblocking(True)
            with open(os.devnull) as file:
                self._written += socket.send_fds(sock, [piece], [file.fileno()])

    def _write_the_rest(self) -> None:
        os.set_blocking(self._fd, True)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while self._written < len(self.data):
                self._write(self._written + (16 << 10))
        os.close(self._fd)

    def let_the_peer_go(self) -> None:
        if self._writer.ident is None:
            self._writer.start()

    def give_back(self) -> None:
        for buffer in self.buffers:
            self._seen = bytes(buffer)
            poison(buffer, CANARY)

    async def finish(self) -> None:
        rest = bytearray()
        await self.succeeds(partial(self._receive_all, rest), "the next receive")
        await self.succeeds(self.stream.aclose, "aclose")
        if self.stream.fileno() != -1:
            self.complaints.append("it does not close")
        self._look_at_what_arrived(rest)
        self.let_the_peer_go()
        await self.soon(lambda: not self._writer.is_alive(), "the writer hangs")

    async def _receive_all(self, rest: bytearray) -> None:
        with contextlib.suppress(anyio.EndOfStream):
            while True:
                rest += await self.stream.receive(BIG)

    def _look_at_what_arrived(self, rest: bytearray) -> None:
        if any(buffer.count(CANARY) < len(buffer) for buffer in self.buffers):
            self.complaints.append("something was stored after the end of the call")
        if not rest:
            return  # the stream was closed
        got = bytes(self.data[self._before : len(self.data) - len(rest)])
        if rest != self.data[len(self.data) - len(rest) :]:
            self.complaints.append("what was received later is not the rest")
        elif not (self.result + self._seen).startswith(got):
            self.complaints.append(f"{len(got):,} bytes are lost")

    # -- the calls ----------------------------------------------------------------

    async def receive_first(self) -> None:
        self._write(SMALL)
        assert await self.stream.receive() == self.data[:SMALL]
        self._before = SMALL

    async def find_some(self) -> None:
        await self.receive_first()
        self._write(2 * SMALL)

    async def find_files(self) -> None:
        await self.receive_first()
        self._write_with_file(2 * SMALL)

    async def receive_fds(self) -> None:
        self.result, fds = await self.stream.receive_fds(50_000, 1)
        for fd in fds:
            os.close(fd)

    async def expect_files(self) -> None:
        """Let files arrive while the call waits."""
        await self.receive_first()
        self.let_the_peer_go = self._let_the_peer_go_with_files  # type: ignore[method-assign]

    def _let_the_peer_go_with_files(self) -> None:
        if self._writer.ident is None:
            self._write_with_file(2 * SMALL)
            self._writer.start()

    async def receive(self) -> None:
        self.result = await self.stream.receive()

    async def receive_into(self) -> None:
        self.buffers.append(bytearray(50_000))
        self.views.append(memoryview(self.buffers[0]))
        await self.stream.receive_into(self.views[0])

    async def receive_exactly(self, n: int) -> None:
        self.buffers.append(bytearray(n))
        self.views.append(memoryview(self.buffers[0]))
        await self.stream.receive_exactly(self.views[0])


class ReceivingAhead(Receiving):
    """The next call takes the data of an interrupted call."""

    def __init__(self, link: Link, lines: Lines | Storm, *, lent: bool = False) -> None:
        super().__init__(link, lines, lent=lent)
        self._ahead: Ahead[bytearray] | None = None
        self._taken: list[bytearray] = []

    async def take(self, width: int, height: int) -> None:
        self._ahead = Ahead(self.stream)
        for _ in range(2):
            self._begin(self._ahead, Conversion("rgb24", "nv12", (width, height)))
        self._taken.append(await self._ahead.take())
        self.result = bytes(self._taken[0])

    @staticmethod
    def _begin(ahead: Ahead[bytearray], conversion: Conversion) -> None:
        planes = bytearray(conversion.yuv_bytes)
        pixels = bytearray(conversion.rgb_bytes)
        ahead.begin(planes, conversion.then_rgb(planes, pixels), planes)

    async def _receive_all(self, rest: bytearray) -> None:
        ahead = self._ahead or ()
        while ahead:
            self._taken.append(await ahead.take())
            rest += self._taken[-1]
        self.stream._reception = None
        await super()._receive_all(rest)

    def nothing_is_borrowed(self) -> None:
        self.buffers = self._taken
        super().nothing_is_borrowed()


# ---- every call, every line ---------------------------------------------------------


async def aclose(scene: Scene) -> None:
    await scene.stream.aclose()


async def abort(scene: Scene) -> None:
    scene.stream.abort()


sends = partial(Case, Sending, before=Sending.send_first)
relays = partial(Case, Relaying, before=Sending.send_first)
receives = partial(Case, Receiving, before=Receiving.receive_first)
takes = partial(Case, ReceivingAhead, before=Receiving.find_some)

FULL: dict[str, Any] = {"before": Sending.put_first, "options": {"queue_limit": 1}}
READY: dict[str, Any] = {"before": Receiving.find_some}

SENDS = {
    "the first send": sends(Sending.send_first, before=None),
    "send": sends(lambda s: s.send(SMALL)),
    "send of what is pinned": sends(lambda s: s.send(PINNED)),
    "send, waiting": sends(lambda s: s.send(BIG)),
    "send of bytes": sends(lambda s: s.send_bytes(SMALL)),
    "send of bytes, waiting": sends(lambda s: s.send_bytes(BIG)),
    "send of pieces": sends(lambda s: s.send_pieces(SMALL)),
    "send of pieces, waiting": sends(lambda s: s.send_pieces(BIG)),
    "send_many": sends(lambda s: s.send_many(SMALL, 9)),
    "send_many, waiting": sends(lambda s: s.send_many(SMALL, 400)),
    "send_many of big ones": sends(lambda s: s.send_many(BIG, 2)),
    "put": sends(lambda s: s.put(SMALL)),
    "put of what is pinned": sends(lambda s: s.put(PINNED)),
    "put of a big one": sends(lambda s: s.put(BIG)),
    "put, waiting": sends(lambda s: s.put(SMALL), **FULL),
    "send_from_thread": sends(lambda s: s.send_from_thread(SMALL), thread=True),
    "send_from_thread, waiting": sends(lambda s: s.send_from_thread(BIG), thread=True),
    "publish": sends(lambda s: s.publish(6)),
    "relay": relays(lambda s: s.relay(SMALL)),
    "relay, waiting": relays(lambda s: s.relay(BIG)),
    "relay of what was received": relays(
        lambda s: s.relay(BIG), before=Relaying.find_some
    ),
    "flush": sends(lambda s: s.stream.flush(), before=Sending.put_first),
    "aclose": sends(aclose, before=Sending.put_first),
    "aclose within a time": sends(
        lambda s: s.stream.aclose(linger=PATIENCE), before=Sending.put_first
    ),
    "send_fds": sends(lambda s: s.send_fds(SMALL)),
    "send_fds, waiting": sends(lambda s: s.send_fds(BIG)),
    "abort": sends(abort, before=Sending.put_first),
    "cancelled send": sends(lambda s: s.send(BIG), cancel=True),
    "cancelled send_many": sends(lambda s: s.send_many(SMALL, 9), cancel=True, **FULL),
    "cancelled send_many of big ones": sends(
        lambda s: s.send_many(BIG, 2), cancel=True
    ),
    "cancelled send_fds": sends(lambda s: s.send_fds(BIG), cancel=True),
    "cancelled put": sends(lambda s: s.put(SMALL), cancel=True, **FULL),
    "cancelled relay": relays(lambda s: s.relay(BIG), cancel=True),
    "cancelled aclose": sends(aclose, before=Sending.put_first, cancel=True),
}
RECEIVES = {
    "the first receive": receives(Receiving.receive, before=None),
    "receive": receives(Receiving.receive, **READY),
    "receive, waiting": receives(Receiving.receive),
    "receive_into": receives(Receiving.receive_into, **READY),
    "receive_into, waiting": receives(Receiving.receive_into),
    "receive_exactly": receives(lambda s: s.receive_exactly(SMALL), **READY),
    "receive_exactly, waiting": receives(lambda s: s.receive_exactly(200_000), **READY),
    "receive_fds": receives(Receiving.receive_fds, before=Receiving.find_files),
    "receive_fds, waiting": receives(
        Receiving.receive_fds, before=Receiving.expect_files
    ),
    "cancelled receive_fds": receives(Receiving.receive_fds, cancel=True),
    "take of what came ahead": takes(lambda s: s.take(32, 20)),
    "take of what came ahead, waiting": takes(lambda s: s.take(320, 200)),
    "cancelled take of what came ahead": takes(lambda s: s.take(320, 200), cancel=True),
    "aclose of a receiver": receives(aclose),
    "cancelled receive": receives(Receiving.receive, cancel=True),
    "cancelled receive_exactly": receives(
        lambda s: s.receive_exactly(200_000), cancel=True, **READY
    ),
}
CASES = SENDS | RECEIVES
ROOMS = ("_core", "streams")
WAYS = [("pipe", "asyncio"), ("unix", "asyncio"), ("lent", "asyncio")]
LATER = ("waiting", "cancelled", "thread", "aclose")  # cases that need the loop


def ways_of(name: str) -> list[tuple[str, str]]:
    """Return a case's links and loops: only sends lend, only Unix sockets take fds."""
    ways = [way for way in WAYS if way[0] != "lent" or name in SENDS]
    if "fds" in name:
        ways = WAYS[1:2]
    if any(word in name for word in LATER):
        ways = [*ways, ("unix", "uvloop")]
    return ways


every_case = pytest.mark.parametrize(
    ("name", "kind", "loop"), [(name, *way) for name in CASES for way in ways_of(name)]
)


@pytest.fixture(autouse=True)
def finalizers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)


never_awaited = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")


def hit(name: str, way: tuple[str, str], folder: Path, times: range) -> None:
    """Play the case, and again with an interruption at each place in this way's share.
    ``times`` selects places by how often their line was reached before."""
    kind, loop = way
    share = slice(ways_of(name).index(way), None, len(ways_of(name)))
    if os.environ.get("AZC_EVERY_LINE") == "1":
        share = slice(None)

    def some(places: list[Place]) -> list[Place]:
        return [place for place in places if place[2] in times][share]

    play = partial(be_hit, CASES[name], kind, folder)
    run_on(loop, partial(hit_each_line, play, ROOMS, some, calls=True))


@never_awaited  # for an interruption between a call and its await
@every_case
def test_one_line_after_the_other(
    name: str, kind: str, loop: str, tmp_path: Path
) -> None:
    """Each link and loop interrupts every n-th of the places that it passes.

    With AZC_EVERY_LINE=1 (as in `make proof`) it interrupts all, which takes minutes.
    """
    hit(name, (kind, loop), tmp_path, range(1, 2))


@pytest.mark.slow
@never_awaited
@every_case
def test_where_a_line_is_reached_again(
    name: str, kind: str, loop: str, tmp_path: Path
) -> None:
    hit(name, (kind, loop), tmp_path, range(2, 4))


# ---- real signals, at any time ------------------------------------------------------


class Storm:
    """Like `Lines`, but a real signal interrupts, even in the middle of a line."""

    def __init__(self, dice: random.Random) -> None:
        self.seen: list[Place] = []
        self.armed = True
        self.hits = 0
        self._dice = dice
        self._is_over = False

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, self._handle)
        signal.setitimer(signal.ITIMER_REAL, self._dice.uniform(5e-6, 300e-6))

    def __exit__(self, *_: object) -> None:
        self._is_over = True  # (a signal that another thread received may still come)
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _handle(self, _: int, frame: FrameType | None) -> None:
        if self.hits or self._is_over:
            return
        room = frame.f_globals.get("__name__", "") if frame else ""
        if self.armed and room.startswith(("aiozerocopy._core", "aiozerocopy.streams")):
            self.hits = 1
            raise Interruption
        signal.setitimer(signal.ITIMER_REAL, 20e-6)  # not in the core: try later


@pytest.mark.slow
@never_awaited
@pytest.mark.timeout(120)  # (its own signal cannot come: the test uses SIGALRM)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_thousand_signals(loop: str, tmp_path: Path) -> None:
    dice, hits = random.Random(7), 0
    cases = [
        (name, kind)
        for name, case in CASES.items()
        for kind, where in ways_of(name)
        if where == "asyncio" and not case.thread
    ]

    async def main() -> None:
        nonlocal hits
        while hits < 500:  # for each loop
            name, kind = dice.choice(cases)
            storm = Storm(dice)
            complaints = await be_hit(CASES[name], kind, tmp_path, storm)
            assert not complaints, (name, kind, complaints)
            hits += storm.hits

    before = signal.getsignal(signal.SIGALRM)
    try:
        run_on(loop, main)
    finally:
        signal.signal(signal.SIGALRM, before)
