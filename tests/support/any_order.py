"""Any calls in any order, on real links: what arrives is what the contract allows.

Hypothesis picks the calls, and shortens a failing run to the few calls that matter.
The model is the list of messages in the order of the calls.  The peer must read whole
messages from that list, in order, each once.  Only a message that was cancelled or has
failed may be missing.  As soon as a call is over, its memory is resized and poisoned,
so that a byte of it that is sent later is noticed.

AZC_EXAMPLES=5000 runs more examples, with a new seed each time, which is printed;
AZC_SEED repeats a run.
"""

import asyncio
import contextlib
import fcntl
import gc
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import figures
import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from inventory import open_files
from links import BIG, open_link, turns
from oracle import HEADER, Checker, message, poison

import aiozerocopy as azc
from aiozerocopy import StreamBroken, StreamClosed
from aiozerocopy._core.borrows import Port

EXAMPLES = int(os.environ.get("AZC_EXAMPLES", "0"))
DEFAULT = 25  # for each link and loop
STEPS = 30
PATIENCE = 5.0  # seconds for something that happens soon or never
QUEUE_LIMIT = 150_000
FRAME = 200_000  # bytes of payload: such a message is lent, on links that lend
SIZES = st.sampled_from([0, 1, 100, 4064, 4065, 30_000, 70_000, FRAME])
COPIED = 4096  # up to this many bytes are copied
FEW = st.sampled_from([1, 100, 4096, 65_536, 300_000])
FAILURES = (StreamBroken, StreamClosed, anyio.BusyResourceError)


def _is_in(thread: threading.Thread, function: Callable[..., object]) -> bool:
    """Tell whether the thread is inside of the function."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


class Call:
    """One call of a stream, and the messages that it sends."""

    def __init__(self, numbers: list[int], memory: list[Any], *, patient: bool) -> None:
        self.numbers = numbers
        self.memory = memory
        self.may_be_cancelled = patient
        self.is_queued = False  # a ticket stands for this call
        self.is_borrowed = False  # its memory is borrowed until the call is over
        self.nbytes = sum(memoryview(data).nbytes for data in memory)
        self.end = ""  # sent, cancelled, failed
        self.complaint = ""
        self.task: Any = None

    def give_back(self, end: str) -> None:
        """End the call: the caller owns its memory again, and reuses it at once."""
        for data in self.memory:
            if isinstance(data, bytearray):
                try:
                    data.append(0)
                except BufferError:
                    self.complaint = "a buffer is borrowed after the end of its call"
            poison(data)
            if isinstance(data, azc.Frame):
                data.release()
        self.memory = []
        self.end = end


class World:
    """A link with our stream at one end, and the calls on that stream."""

    def __init__(self, kind: str, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._opened = contextlib.ExitStack()
        self._fds = set(open_files())
        self.link = self._opened.enter_context(
            open_link("adopted" if kind == "pipe" else kind, Path())
        )
        self.stream: Any = self.link.sender(queue_limit=QUEUE_LIMIT)
        lends = self.link.lends
        self.pool = azc.FramePool(HEADER.size + FRAME, slots=3) if lends else None
        self.fd = self.link._read_fd
        os.set_blocking(self.fd, False)
        self.calls: list[Call] = []
        self.checker = Checker()
        self.has_ended = False  # the peer has seen the end

    # -- time ---------------------------------------------------------------------

    def turn(self, count: int = 3) -> None:
        """Run a few turns of the event loop, and raise any complaint of a call."""
        self.loop.run_until_complete(turns(count))
        for call in self.calls:
            assert not call.complaint, call.complaint

    def wait(self, condition: Callable[[], object], complaint: str) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            self.turn()
            assert time.monotonic() < end, complaint

    # -- calls --------------------------------------------------------------------

    @property
    def pending(self) -> list[Call]:
        return [call for call in self.calls if not call.end]

    def new(self, *sizes: int, patient: bool = True) -> Call:
        """Make a call that sends a message of each of these sizes."""
        first = sum(len(call.numbers) for call in self.calls)
        numbers = list(range(first, first + len(sizes)))
        memory = [
            self._memory(message(number, 0, size))
            for number, size in zip(numbers, sizes, strict=True)
        ]
        self.calls.append(Call(numbers, memory, patient=patient))
        return self.calls[-1]

    def _memory(self, data: bytearray) -> Any:
        if self.pool is not None and len(data) == self.pool.frame_bytes:
            with contextlib.suppress(anyio.WouldBlock):
                frame = self.pool.acquire_nowait()
                frame.view[:] = data
                return frame
        return data

    def start(self, call: Call, sending: Coroutine[Any, Any, None]) -> None:
        call.task = self.loop.create_task(self._judged(call, sending))
        self.turn()

    @staticmethod
    async def _judged(call: Call, sending: Coroutine[Any, Any, None]) -> None:
        try:
            await sending
        except asyncio.CancelledError:
            call.give_back("cancelled")
        except FAILURES:
            call.give_back("failed")
        else:
            call.give_back("sent")

    async def send(self, call: Call) -> None:
        call.is_borrowed = True
        await self.stream.send(call.memory[0])

    async def send_pieces(self, call: Call) -> None:
        with (
            memoryview(call.memory[0]) as view,
            view[: HEADER.size] as header,
            view[HEADER.size :] as rest,
        ):
            await self.stream.send(header, rest)

    async def send_many(self, call: Call) -> None:
        await self.stream.send_many(call.memory)

    async def put(self, call: Call) -> None:
        ticket = await self.stream.put(call.memory[0])
        call.may_be_cancelled = False  # a cancellation would not take it back
        call.is_queued = True
        await ticket

    def send_from_thread(self, call: Call) -> None:
        thread = threading.Thread(target=self._in_thread, args=(call,), daemon=True)
        thread.start()
        self.wait(
            lambda: not thread.is_alive() or _is_in(thread, Port.wait),
            "a thread's message does not get into the queue",
        )

    def _in_thread(self, call: Call) -> None:
        try:
            self.stream.send_from_thread(call.memory[0])
        except FAILURES:
            call.give_back("failed")
        else:
            call.give_back("sent")

    # -- the peer -----------------------------------------------------------------

    def read(self, n: int) -> None:
        """Read up to n bytes, without waiting for more."""
        while n > 0 and not self.has_ended:
            try:
                data = os.read(self.fd, min(n, 1 << 16))
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            self.has_ended = not data
            self.checker.feed(data)
            n -= len(data)

    def read_until(self, condition: Callable[[], object], complaint: str) -> None:
        def holds() -> object:
            self.read(1 << 30)
            return condition()

        self.wait(holds, complaint)

    # -- what must hold -----------------------------------------------------------

    def check_order(self) -> None:
        """What has arrived is the list, without the messages that may be missing."""
        came = list(self.checker.counts)
        assert came == sorted(set(came)), f"they came in the order {came[-9:]}"
        last = came[-1] if came else -1
        for call in self.calls:
            for number in call.numbers:
                assert (
                    number in self.checker.counts
                    or number > last
                    or call.end in ("cancelled", "failed")
                ), f"message {number} ({call.end or 'pending'}) was left out"

    def check_memory(self) -> None:
        """Queued memory stays below the limit, or is one message of any size."""
        queued = [call.nbytes for call in self.pending if call.is_queued]
        # (Bytes that the kernel holds count here, but no longer for the queue.)
        assert sum(queued) <= max(QUEUE_LIMIT, *queued, 0) + BIG, "a put did not wait"
        largest = max((call.nbytes for call in self.calls), default=0)
        assert self.stream.stats.bytes_queued <= max(QUEUE_LIMIT, largest)

    def check_borrowed(self) -> None:
        """A buffer in use cannot be resized; small messages are copied instead."""
        for call in self.pending:
            if not call.is_borrowed or not call.memory or call.nbytes <= COPIED:
                continue
            try:
                call.memory[0].append(0)
            except (BufferError, AttributeError):  # a frame has no append()
                continue
            call.memory[0].pop()
            self.turn(9)  # the call may have ended just now
            assert call.end, "a buffer is not borrowed while it is being sent"

    def lost(self) -> list[int]:
        """Return the messages that were sent and have not arrived."""
        return [
            number
            for call in self.calls
            for number in call.numbers
            if call.end == "sent" and number not in self.checker.counts
        ]

    def check_end(self, complaint: str, *, is_whole: bool = True) -> None:
        """The peer sees the end; if nothing was discarded, it has all that was sent."""
        self.read_until(lambda: self.has_ended, complaint)
        self.check_order()
        if is_whole:
            self.checker.finish()
            assert not self.lost(), f"{self.lost()} were sent, and lost"

    # -- the end ------------------------------------------------------------------

    def close(self, *, is_whole: bool, is_there: bool = True) -> None:
        """Close our stream if it is open; ``is_there``: the peer still reads."""
        wait = self.read_until if is_whole else self.wait
        wait(lambda: not self.pending, "a call does not end")
        closing = self.loop.create_task(self._aclose())
        wait = self.read_until if is_there else self.wait
        wait(closing.done, "aclose does not end")
        closing.result()
        if is_there:
            self.check_end("the peer sees no end", is_whole=is_whole)
        self.tidy()

    async def _aclose(self) -> None:
        with contextlib.suppress(*FAILURES):
            await asyncio.wait_for(self.stream.aclose(), PATIENCE)

    def drop_in_a_cycle(self) -> None:
        cycle: list[Any] = [self.stream]
        cycle.append(cycle)
        self.stream = None
        del cycle
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
        self.check_end("the peer of a lost stream sees no end")
        self.tidy()

    def tidy(self) -> None:
        """Nothing is left behind."""
        for call in self.calls:
            if call.task is not None and not call.task.done():
                call.task.cancel()
        self.turn()
        self.stream = None
        self._opened.close()
        if self.pool is not None:
            pool, self.pool = self.pool, None
            self.calls.clear()
            self.wait(
                lambda: pool.stats.free == pool.slots, "a slot does not come back"
            )
            pool.close()
        if self._left():
            gc.collect()
        self.wait(lambda: not self._left(), f"fds are left: {self._left()}")

    def _left(self) -> dict[str, str]:
        return {fd: file for fd, file in open_files().items() if fd not in self._fds}


# ---- which calls, in which order ----------------------------------------------------


class Machine(RuleBasedStateMachine):
    """One link after the other, each until something ends it."""

    kind = ""
    kind_of_loop = ""
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        gc.freeze()  # a collection then takes microseconds
        self.loop = new_loop(self.kind_of_loop)
        self.world = World(self.kind, self.loop)

    def teardown(self) -> None:
        try:
            self.end()
        finally:
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.close()
            gc.collect()

    def end(self) -> None:
        self.world.close(is_whole=True)

    def begin_again(self) -> None:
        self.world = World(self.kind, self.loop)

    @invariant()
    def what_came_is_right(self) -> None:
        type(self).steps += 1
        self.world.turn()
        self.world.check_order()
        self.world.check_memory()
        self.world.check_borrowed()

    # -- sending ------------------------------------------------------------------

    @rule(size=SIZES)
    def send(self, size: int) -> None:
        call = self.world.new(size)
        self.world.start(call, self.world.send(call))

    @rule(size=SIZES)
    def send_pieces(self, size: int) -> None:
        call = self.world.new(size)
        self.world.start(call, self.world.send_pieces(call))

    @rule(size=SIZES)
    def put(self, size: int) -> None:
        call = self.world.new(size)
        self.world.start(call, self.world.put(call))

    @rule(size=SIZES, count=st.integers(1, 40))
    def send_many(self, size: int, count: int) -> None:
        call = self.world.new(*[size] * min(count, 1 + FRAME // max(size, 1)))
        self.world.start(call, self.world.send_many(call))

    @rule(size=SIZES)
    def send_from_thread(self, size: int) -> None:
        self.world.send_from_thread(self.world.new(size, patient=False))

    @rule(which=st.integers(0, 9))
    def cancel(self, which: int) -> None:
        """Cancel a call: its message is taken back, or a copy of it is sent."""
        calls = [call for call in self.world.pending if call.may_be_cancelled]
        if calls:
            calls[which % len(calls)].task.cancel()
            self.world.turn()

    # -- the peer -----------------------------------------------------------------

    @rule(n=FEW)
    def read(self, n: int) -> None:
        self.world.read(n)

    @rule()
    def read_all(self) -> None:
        """Once the peer reads, all calls end, and copies of cancelled calls go out."""
        world = self.world
        world.read_until(
            lambda: not world.pending and not world.stream._out.stats().queued,
            "a call does not end",
        )
        # (TCP may hold messages that were sent and have not arrived yet)
        world.read_until(lambda: not world.lost(), "what was sent does not come")

    @rule(size=st.sampled_from([4096, 16_384, 65_536, 1 << 20]))
    @precondition(lambda self: self.kind in ("pipe", "lending"))
    def resize(self, size: int) -> None:
        with contextlib.suppress(OSError):  # the pipe is too full, or no pages are left
            fcntl.fcntl(self.world.fd, fcntl.F_SETPIPE_SZ, size)

    # -- ends ---------------------------------------------------------------------

    @rule()
    def close(self) -> None:
        self.end()
        self.begin_again()

    @rule()
    def abort(self) -> None:
        """Discard what was not sent."""
        self.world.stream.abort()
        self.world.close(is_whole=False)
        self.begin_again()

    @rule()
    @precondition(lambda self: self.kind in ("unix", "tcp4"))
    def send_eof(self) -> None:
        world = self.world
        world.read_until(lambda: not world.pending, "a call does not end")
        self.loop.run_until_complete(world.stream.send_eof())
        world.read_until(lambda: world.has_ended, "the peer sees no end")
        self.end()
        self.begin_again()

    @rule()
    def peer_dies(self) -> None:
        """All waiting calls fail; so does the next call, or one soon after it."""
        world = self.world
        os.close(world.link.take_read_fd())
        world.has_ended = True
        world.wait(lambda: not world.pending, "a call outlives its peer")

        def fails() -> bool:
            call = world.new(100)
            world.start(call, world.send(call))
            world.wait(lambda: call.end, "a send outlives its peer")
            return call.end == "failed"

        # (With TCP a packet reports the death, which may take a while.)
        world.wait(fails, "no send fails after the death of the peer")
        world.close(is_whole=False, is_there=False)
        self.begin_again()

    @rule()
    def forget(self) -> None:
        """The collector closes a stream that has no reference left."""
        self.read_all()
        self.world.drop_in_a_cycle()
        self.begin_again()


def new_loop(kind: str) -> asyncio.AbstractEventLoop:
    if kind == "uvloop":
        import uvloop

        loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        return loop
    return asyncio.new_event_loop()


def machine(link: str, loop: str) -> type[Machine]:
    """Make the class for one kind of link and event loop."""
    members = {"kind": link, "kind_of_loop": loop, "steps": 0}
    return type(f"Machine_{link}_{loop}", (Machine,), members)


def run(link: str, loop: str) -> None:
    made = machine(link, loop)
    examples = max(EXAMPLES // 8, 1) if EXAMPLES else DEFAULT
    options = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=STEPS,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        print_blob=True,
    )
    if EXAMPLES:
        seed = int(os.environ.get("AZC_SEED", random.randrange(1 << 32)))
        print(f"AZC_EXAMPLES={EXAMPLES} AZC_SEED={seed}")
        made = hypothesis.seed(seed)(made)
    run_state_machine_as_test(made, settings=options)
    figures.count("state machine examples", examples)
    figures.count("state machine steps", made.steps)
