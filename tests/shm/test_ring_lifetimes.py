"""Rings with signals, garbage collections, forks and exits of the interpreter.

As in ../core/test_interruptions.py and ../core/test_finalizers.py, a call is made once
to note its lines, and then once for each line, with an exception there.  Faults that
would end a process are looked for in programs of their own.
"""

import asyncio
import contextlib
import gc
import os
import struct
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import scripts
from interruption import (
    LOOPS,
    Interruption,
    Lines,
    Place,
    hit_each_line,
    is_exported,
    run_on,
)
from links import attempting, linux_only, others_wait
from rings import filled, opened

from aiozerocopy import StreamBroken, StreamClosed
from aiozerocopy._core import memory
from aiozerocopy.shm import Batch, FanOut, Ring, Rpc

pytestmark = linux_only

ROOMS = ("_core", "shm")
PATIENCE = 5.0
RECORD = b"r" * 1000
LAST = 0xFFFFFFFF  # the type of the record that is sent after the call


# ---- a signal's exception at every line ----------------------------------------------


def mapped() -> set[str]:
    """Return the addresses of all mapped rings, including those of other tests."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[0] for line in lines if "azc_ring" in line}


@dataclass
class Ends:
    """Both ends of a ring, and everything that was received."""

    producer: Ring
    consumer: Ring
    received: list[Any]
    buffers: Sequence[Any] = ()

    async def send(self, *buffers: bytes) -> None:
        self.buffers = [*map(bytearray, buffers or (RECORD,))]
        await self.producer.send(*self.buffers, type_id=1)

    async def send_to_all(self) -> None:
        self.buffers = [bytearray(RECORD)]
        fan = FanOut()
        fan.attach(self.producer)
        await fan.send(*self.buffers, type_id=1)

    async def send_two(self) -> None:
        await self.send()
        await self.send()

    async def fill(self) -> None:
        await filled(self.producer, RECORD)

    async def reserve(self) -> None:
        async with self.producer.reserve(1000, type_id=1) as slot:
            slot.view[:] = RECORD

    async def reserve_and_drop(self) -> None:
        slot = await self.producer.reserve(1000)
        del slot

    async def receive(self) -> None:
        self.received.append(await self.consumer.receive())

    async def receive_batch(self) -> None:
        self.received.append(await self.consumer.receive_batch())

    async def iterate(self) -> None:
        async for record in self.consumer:
            self.received.append(record)
            break

    async def receive_by_type(self) -> None:
        self.received.append(await self.consumer.route(1).receive())

    async def release(self) -> None:
        record = await self.consumer.receive()
        view = record.view[5:]
        record.release()
        del record, view

    async def make_room(self) -> None:
        (await self.consumer.receive()).release()

    async def abort(self) -> None:
        self.producer.abort()


@dataclass(frozen=True)
class Case:
    """A call, preparations for it, and an action that lets it continue."""

    call: Callable[[Ends], Awaitable[object]]
    before: Callable[[Ends], Awaitable[object]] | None = None
    meanwhile: Callable[[Ends], Awaitable[object]] | None = None
    cancel: bool = False
    closes: bool = False
    records: int | None = None  # that must arrive, by the call or after it


CASES = {
    "send": Case(Ends.send),
    "send of pieces": Case(lambda ends: ends.send(RECORD, b"", RECORD)),
    "send to all": Case(Ends.send_to_all),
    "send, waiting": Case(Ends.send, Ends.fill, Ends.make_room),
    "send, cancelled": Case(Ends.send, Ends.fill, cancel=True),
    "reserve": Case(Ends.reserve),
    "reserve, waiting": Case(Ends.reserve, Ends.fill, Ends.make_room),
    "reserve, cancelled": Case(Ends.reserve, Ends.fill, cancel=True),
    "reserve and drop": Case(Ends.reserve_and_drop),
    "receive": Case(Ends.receive, Ends.send_two, records=2),
    "receive, waiting": Case(Ends.receive, meanwhile=Ends.send_two, records=2),
    "receive, cancelled": Case(Ends.receive, cancel=True),
    "receive_batch": Case(Ends.receive_batch, Ends.send_two, records=2),
    "async for": Case(Ends.iterate, Ends.send_two, records=2),
    "route": Case(Ends.receive_by_type, Ends.send_two, records=2),
    "route, waiting": Case(Ends.receive_by_type, meanwhile=Ends.send_two, records=2),
    "release": Case(Ends.release, Ends.send_two),
    "aclose of the producer": Case(
        lambda ends: ends.producer.aclose(), Ends.send_two, closes=True
    ),
    "aclose of the consumer": Case(
        lambda ends: ends.consumer.aclose(), Ends.send_two, closes=True
    ),
    "abort": Case(Ends.abort, Ends.send_two, closes=True),
}


class Scene:
    """A ring with a call that is interrupted."""

    def __init__(self, case: Case, lines: Lines) -> None:
        self.case = case
        self.lines = lines
        self.complaints: list[str] = []

    async def play(self, folder: Path) -> list[str]:
        """Play the case; return complaints."""
        fds, before = set(os.listdir("/proc/self/fd")), mapped()
        asyncio.get_running_loop().set_exception_handler(self.in_the_loop)
        sys.unraisablehook = self.in_a_finalizer
        ends = Ends(*await opened(folder), [])
        await self.be_hit(ends)
        await self.go_on(ends)
        vars(ends).clear()  # (Python 3.10 keeps it for a while)
        await self.nothing_is_left(fds, before)
        return self.complaints

    def in_the_loop(self, _: object, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), Interruption):
            self.complaints.append(f"in the loop: {context}")

    def in_a_finalizer(self, unraisable: Any) -> None:
        if not isinstance(unraisable.exc_value, Interruption):
            self.complaints.append(f"in a finalizer: {unraisable.exc_value!r}")

    async def be_hit(self, ends: Ends) -> None:
        if self.case.before is not None:
            await self.case.before(ends)
        with self.lines:
            task = asyncio.ensure_future(self.judged(self.case.call, ends))
            await others_wait()
            if self.case.cancel:
                task.cancel()
            if self.case.meanwhile is not None:
                self.lines.armed = False
                await self.case.meanwhile(ends)
                self.lines.armed = True
            await asyncio.wait({task}, timeout=PATIENCE)
        if not task.done():
            self.complaints.append("the call hangs")
            task.cancel()
            await asyncio.wait({task})

    async def judged(
        self, call: Callable[[Ends], Awaitable[object]], ends: Ends
    ) -> None:
        try:
            await call(ends)
        except (Interruption, asyncio.CancelledError, StreamBroken, StreamClosed):
            if any(map(is_exported, ends.buffers)):
                self.complaints.append("a traceback keeps a borrow")
        except BaseException as error:
            self.complaints.append(f"it raised {error!r}")

    async def go_on(self, ends: Ends) -> None:
        """The ring works as before, and all its records arrive."""
        got = sum(len(each) if isinstance(each, Batch) else 1 for each in ends.received)
        ends.received.clear()
        gc.collect()  # a traceback in a cycle may have a slot or a record
        with anyio.move_on_after(PATIENCE) as patience:
            if self.case.closes:
                ends.producer.abort()
            else:
                got += await self.send_the_last(ends)
                if ends.consumer._routes is not None:
                    queue = ends.consumer.route(1)._queue
                    got += len(queue)
                    queue.clear()
                if self.case.records not in (None, got):
                    self.complaints.append(f"{got} of its records arrived")
                if ends.consumer.stats.held:
                    self.complaints.append("a record is held by nobody")
            await ends.producer.aclose()
            await ends.consumer.aclose()
        if patience.cancelled_caught:
            self.complaints.append("the ring does not go on")
            ends.producer.abort()
            ends.consumer.abort()

    async def send_the_last(self, ends: Ends) -> int:
        """Send the last record; return how many came before it."""
        async with attempting(self.receive_the_last, ends) as receiver:
            await ends.producer.send(b"last", type_id=LAST)
        return int(receiver.result)

    async def receive_the_last(self, ends: Ends) -> int:
        count = 0
        while True:
            with await ends.consumer.receive() as record:
                if record.type_id == LAST:
                    return count
                if bytes(record).strip(b"r"):
                    self.complaints.append("a record has other bytes")
            count += 1

    async def nothing_is_left(self, fds: set[str], before: set[str]) -> None:
        for _ in range(10):
            gc.collect()
            await anyio.lowlevel.checkpoint()
        memory.sweep()  # as the next ring does
        if left := set(os.listdir("/proc/self/fd")) - fds:
            self.complaints.append(f"fds are left: {left}")
        if mapped() - before:
            self.complaints.append("memory is left")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.filterwarnings("ignore:unclosed")
@pytest.mark.timeout(60)
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("name", CASES)
def test_every_line(
    name: str, loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each loop interrupts every line of a call, the first time it is reached."""
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)

    def some(places: list[Place]) -> list[Place]:
        return [place for place in places if place[2] == 1]

    def play(lines: Lines) -> Awaitable[list[str]]:
        return Scene(CASES[name], lines).play(tmp_path)

    run_on(loop, partial(hit_each_line, play, ROOMS, some))


every_line = pytest.mark.parametrize("loop", LOOPS)


@pytest.mark.slow
@every_line
@pytest.mark.parametrize("is_routed", [False, True])
def test_byte_stream_at_every_line(
    is_routed: bool, loop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)

    async def play(lines: Lines) -> list[str]:
        producer, consumer = await opened(tmp_path)
        if is_routed:
            consumer.route(9)
        stream, got = consumer.receive_stream(), b""
        async with producer, consumer:
            await producer.send(b"abcdefghij")
            await producer.send(b"klmnopqrst")
            with lines:
                for _ in range(3):
                    with contextlib.suppress(Interruption):
                        got += await stream.receive(7)
            await producer.aclose()
            async for piece in stream:
                got += piece
        return [] if got == b"abcdefghijklmnopqrst" else [f"{got!r} arrived"]

    run_on(loop, partial(hit_each_line, play, ROOMS))


HEAD = struct.Struct("<QQI12x")  # of a call or its answer: number, deadline, kind


async def answer_all(requests: Ring, replies: Ring) -> None:
    """Answer the calls that have come, the last one first."""
    if requests.stats.bytes_used:
        with await requests.receive_batch() as batch:
            for said in map(bytes, reversed(list(batch))):
                number, _, kind = HEAD.unpack_from(said)
                if kind == 1:
                    await replies.send(HEAD.pack(number, 0, 3), said[HEAD.size :])


@pytest.mark.slow
@every_line
def test_calls_at_every_line(loop: str, tmp_path: Path) -> None:
    """One call is interrupted; the others get their answers, also later ones."""
    for name in ("there", "back"):
        (tmp_path / name).mkdir()

    async def play(lines: Lines) -> list[str]:
        async def call(name: bytes) -> None:
            with contextlib.suppress(Interruption):
                with await rpc.call(1, name) as answer:
                    assert bytes(answer) == name

        out, requests = await opened(tmp_path / "there")
        replies, back = await opened(tmp_path / "back")
        async with requests, replies, Rpc(out, back) as rpc:
            with lines:
                calls = [asyncio.ensure_future(call(name)) for name in (b"a", b"b")]
                await others_wait()
                await answer_all(requests, replies)
                await others_wait()
                calls.append(asyncio.ensure_future(call(b"c")))
                await others_wait()
                await answer_all(requests, replies)
            calls.append(asyncio.ensure_future(call(b"d")))
            await others_wait()
            await answer_all(requests, replies)
            hanging = (await asyncio.wait(calls, timeout=PATIENCE))[1]
            for each in hanging:
                each.cancel()
            await asyncio.wait(calls)
            ended = [each for each in calls if not each.cancelled()]
            complaints = [f"{it.exception()!r}" for it in ended if it.exception()]
            complaints += [f"{len(hanging)} calls hang"] if hanging else []
            complaints += [f"{len(rpc._calls)} calls are left"] if rpc._calls else []
            del call, calls, ended
            gc.collect()
            if back.stats.held:
                complaints.append("an answer is held by nobody")
        return complaints

    run_on(loop, partial(hit_each_line, play, ("shm.rpc", "_core.borrows")))


# ---- programs -----------------------------------------------------------------------

TOOLS = """
import functools, pathlib, rings, tempfile
signal.alarm(12)
folder = tempfile.TemporaryDirectory()
opened = functools.partial(rings.opened, pathlib.Path(folder.name))
"""

SLOW = pytest.mark.slow
every_loop = pytest.mark.parametrize(
    "loop",
    ["asyncio", pytest.param("uvloop", marks=SLOW), pytest.param("trio", marks=SLOW)],
)


def program(code: str, *arguments: str) -> tuple[str, str]:
    return scripts.perturbed(TOOLS + code, *arguments)


@every_loop
def test_what_outlives_the_program(loop: str) -> None:
    """A ring in a cycle, and views of a closed one, at the end of ring, loop and
    interpreter; a thread releases one view."""
    said, complained = program(
        """
async def in_a_cycle():
    producer, consumer = await opened()
    for n in range(9):
        await producer.send(bytes([n]) * 1000)
    record = await consumer.receive()
    batch = await consumer.receive_batch(3)
    slot = await producer.reserve(100)
    garbage = [producer, consumer, slot, record, record.view, batch, batch[1].view[3:]]
    garbage.append(garbage)

async def closed():
    producer, consumer = await opened()
    async with producer, consumer:
        await producer.send(b"abc" * 100)
        await producer.send(b"def" * 100)
        return (await consumer.receive()).view, (await consumer.receive()).view[3:6]

view, kept = run(closed)
gc.collect()
gc.disable()
run(in_a_cycle)
assert bytes(view[:3]) == b"abc"
thread = threading.Thread(target=view.release)
thread.start()
thread.join()
del view
class Last:
    def __del__(self, view=kept, out=os.write):
        out(1, bytes(view))
last = Last()
del kept
""",
        loop,
    )
    assert said == "def"
    assert "Fatal" not in complained


@every_loop
def test_forked_child(loop: str) -> None:
    """The ring is dead in the child, which has no fd of it: so a peer notices when the
    parent dies.  It works in the parent, which notices its end."""
    said, _ = program(
        """
def open_fds():
    with os.scandir("/proc/self/fd") as fds:
        links = {(it.name, os.readlink(it)) for it in fds}
    return {it for it in links if "/proc/" not in it[1]}

async def main():
    before = open_fds()
    producer, consumer = await opened()
    of_rings = open_fds() - before
    assert sum("eventfd" in link for _, link in of_rings) >= 2
    await producer.send(b"one")
    record = await consumer.receive()
    stream = consumer.receive_stream()
    await producer.send(b"two")
    assert await stream.receive(1) == b"t"
    pid = os.fork()
    if pid == 0:
        try:
            assert not of_rings & open_fds(), of_rings & open_fds()
            assert bytes(record) == b"one"
            del record
            calls = producer.send(b"no"), consumer.receive(), stream.receive()
            for call in calls:
                try:
                    call.send(None)
                except azc.StreamClosed as error:
                    assert "forked child" in str(error)
                else:
                    os._exit(3)
            producer.abort()
            consumer.abort()
            del producer, consumer, stream, call, calls
            gc.collect()
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(2)
        time.sleep(0.1)  # with what it has inherited
        os._exit(0)
    assert consumer.stats.held == 2
    del record
    assert await stream.receive() == b"wo"
    assert consumer.stats.held == 0
    await producer.send(b"three")
    assert bytes(await consumer.receive()) == b"three"
    producer.abort()
    try:
        await consumer.receive()
    except azc.StreamBroken:
        print("told", flush=True)
    await consumer.aclose()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

warnings.simplefilter("ignore", DeprecationWarning)
run(main)
""",
        loop,
    )
    assert said == "told\n"


def test_loop_that_is_closed_first() -> None:
    said, _ = program(
        """
rings = []
async def use():
    rings.extend(await opened())
    await rings[0].send(b"abc")

def fds():
    return set(os.listdir("/proc/self/fd"))

before = fds()
run(use)
for ring in rings:
    ring.abort()
    ring.abort()
del ring
rings.clear()
gc.collect()
assert fds() <= before
assert "azc_ring" not in pathlib.Path("/proc/self/maps").read_text()
print("ends")
"""
    )
    assert said == "ends\n"


def test_views_released_in_many_threads() -> None:
    said, _ = program(
        """
import queue

async def main():
    views = queue.SimpleQueue()
    def release():
        while (view := views.get()) is not None:
            view.release()
    threads = [threading.Thread(target=release) for _ in range(4)]
    for thread in threads:
        thread.start()
    producer, consumer = await opened()
    async def send():
        async with producer:
            for n in range(5_000):
                await producer.send(n.to_bytes(4, "little") * 50)
    n = 0
    async with consumer, anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        async for record in consumer:
            assert bytes(record.view[:4]) == n.to_bytes(4, "little")
            n += 1
            views.put(record.view)
            del record
        for thread in threads:
            views.put(None)
        for thread in threads:
            thread.join()
        assert consumer.stats.held == 0
    print(n)
run(main)
"""
    )
    assert said == "5000\n"
