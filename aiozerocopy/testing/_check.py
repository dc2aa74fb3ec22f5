"""check_stream: the contract, tried on anybody's stream.

Each clause is a function, and the function's name is how a failure begins.  Not tried
here is what only a look into the process or the kernel can show (P3, P5, P7).
"""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import anyio
import anyio.lowlevel
from anyio.abc import ByteReceiveStream, ByteSendStream, ByteStream

from aiozerocopy._core.errors import StreamBroken
from aiozerocopy.streams import SendStream
from aiozerocopy.testing._memory import MemoryStream

if TYPE_CHECKING:
    from typing_extensions import Buffer

PATIENCE = 10.0  # seconds for one clause
PAUSE = 0.02  # seconds in which a call that does not wait would have returned
BOUND = 8 << 20  # bytes: more than any stream, and what is below it, should hold
TURNS = 8  # of the loop, after each of which a send is cancelled
POISON = 0xDB  # what is stored into a buffer once it is the sender's again
SIZES = (1, 4_096, 0, 65_537, 300_001, 17)

_NO_POISON = bytes(byte % POISON for byte in range(256))
_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)

Make = Callable[[], "AbstractAsyncContextManager[tuple[Any, Any], Any]"]


async def check_stream(
    make: Make, *, exact: bool | None = None, only_bytes: bool = False
) -> None:
    """Try the contract on pairs of streams, on the event loop that is running.

    ``make()`` is an async context manager whose value is the two ends of a new stream,
    in any order: a ByteSendStream and a ByteReceiveStream of anyio, or two ByteStreams,
    which are tried in both directions.  (A context manager, because a server or a file
    may have to outlive the streams.)  So ``azc.pipe`` is one, and ``azc.socketpair``.

    ``exact``: the stream promises what ours do and anyio's interface does not: several
    tasks may send at once, ``send(*buffers)`` is one message, a cancelled send sends
    all of it or nothing or breaks the stream, and after its own close every call raises
    ClosedResourceError, also one that waits.  By default, only our own do.

    ``only_bytes``: give it nothing but ``bytes``, which nobody changes, and see no
    fault in it if it keeps them.  anyio's interface asks for no more.

    Raises:
        AssertionError: it begins with the clause, and says what was seen.
    """
    for turned in (False, True):
        pairs = Pairs(make, exact, only_bytes, turned)
        async with pairs.open() as ends:
            both = isinstance(ends.sender, ByteStream) and isinstance(
                ends.receiver, ByteStream
            )
        if turned and not both:
            return
        for clause in CLAUSES + (BOTH_WAYS if both and not turned else ()):
            name = clause.__name__.replace("_", " ")
            name = name[0].upper() + name[1:]
            try:
                with anyio.fail_after(PATIENCE):
                    await clause(pairs)
            except TimeoutError as error:
                text = f"{name}: it was not over after {PATIENCE:g} seconds"
                raise AssertionError(text) from error
            except Exception as error:
                raise AssertionError(f"{name}: {_said(error)}") from error


def _said(error: BaseException) -> str:
    """What went wrong; of a task group's errors, the first that a check has raised."""
    while inner := getattr(error, "exceptions", ()):
        error = next((e for e in inner if isinstance(e, AssertionError)), inner[0])
    if isinstance(error, AssertionError):
        return str(error)
    return f"{type(error).__name__} was not expected here: {error}"


def fail(text: str) -> NoReturn:
    raise AssertionError(text)


# ---- what the clauses use ----------------------------------------------------------


@dataclass
class Pairs:
    """Makes the pairs, one after the other."""

    make: Make
    exact: bool | None
    only_bytes: bool
    turned: bool

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Ends]:
        """One pair, whose ends are closed at once when the block ends."""
        async with self.make() as (one, other):
            if self.turned or not isinstance(one, ByteSendStream):
                one, other = other, one
            exact = self.exact
            if exact is None:
                exact = isinstance(one, (SendStream, MemoryStream))
            try:
                yield Ends(one, other, exact, self.only_bytes)
            finally:
                for each in (one, other):
                    with contextlib.suppress(Exception):
                        await anyio.aclose_forcefully(each)


@dataclass
class Ends:
    """A pair, in the direction that is tried."""

    sender: Any
    receiver: ByteReceiveStream
    exact: bool
    only_bytes: bool

    def message(self, size: int, seed: int = 0) -> Any:
        period = random.Random(seed).randbytes(65_521).translate(_NO_POISON)
        data = (period * (size // len(period) + 1))[:size]
        return data if self.only_bytes else bytearray(data)

    def spoil(self, *buffers: Any) -> None:
        """Use buffers as one does to whom they belong."""
        for data in () if self.only_bytes else buffers:
            data[:] = bytes([POISON]) * len(data)
            try:
                data.clear()
            except BufferError:
                fail("a buffer was still held when send had returned or raised")

    async def receive_all(self, got: bytearray, broken: Any = ()) -> None:
        """Receive until the end, which may be one of these errors, and close."""
        with contextlib.suppress(anyio.EndOfStream, *broken):
            while True:
                piece = await self.receiver.receive()
                got += piece
                if not piece:
                    fail("receive returned no bytes, and not the end either")
        with contextlib.suppress(*broken):
            await self.receiver.aclose()

    @asynccontextmanager
    async def receiving(self) -> AsyncIterator[bytearray]:
        """What arrives; when the block ends, the sender closes and the rest comes."""
        got = bytearray()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.receive_all, got)
            yield got
            await self.sender.aclose()


def same(got: Buffer, sent: Buffer, *, shorter: bool = False) -> None:
    """Did this arrive, or, of what may be shorter, the first part of it?"""
    arrived, wanted = bytes(got), bytes(sent)
    if wanted[: len(arrived)] != arrived[: len(wanted)]:
        at = next(i for i, byte in enumerate(arrived) if byte != wanted[i])
        if arrived[at] == POISON:
            fail(f"byte {at:,} is one that was stored after send had ended")
        fail(f"byte {at:,} of {len(wanted):,} is not the one that was sent")
    if len(arrived) > len(wanted) or not (shorter or len(arrived) == len(wanted)):
        fail(f"{len(wanted):,} bytes were sent, and {len(arrived):,} arrived")


async def error_of(call: Callable[..., Any], *args: Any) -> Exception | None:
    try:
        await call(*args)
    except Exception as error:
        return error
    return None


def expect(kind: type[Exception], error: Exception | None, when: str) -> None:
    if not isinstance(error, kind):
        got = "no error" if error is None else f"{type(error).__name__} ({error})"
        fail(f"{when}: {kind.__name__} was due, and there was {got}")


# ---- the clauses -------------------------------------------------------------------


async def p1_integrity(pairs: Pairs) -> None:
    async with pairs.open() as ends:
        # (a message's first byte is its task)
        due = {
            task: [bytes([task]) + ends.message(size, size + task) for size in SIZES]
            for task in range(4 if ends.exact else 1)
        }

        async def send_all(messages: list[bytes]) -> None:
            for each in messages:
                half = len(each) // 2 if ends.exact else 0
                head = (each[:half],) if ends.exact else ()
                await ends.sender.send(*head, each[half:])

        async with ends.receiving() as got:
            async with anyio.create_task_group() as tasks:
                for messages in due.values():
                    tasks.start_soon(send_all, list(messages))
        while got:
            messages = due.get(got[0], [])
            if not messages or not got.startswith(messages[0]):
                fail("messages were mixed, changed, or not in the order of their calls")
            del got[: len(messages.pop(0))]
        if any(due.values()):
            fail("what was sent before the sender closed did not all arrive")


async def empty_messages(pairs: Pairs) -> None:
    async with pairs.open() as ends:
        async with ends.receiving() as got:
            for size in (0, 0, 1, 0):
                await ends.sender.send(ends.message(size))
        same(got, ends.message(1))


async def p0_done_means_yours(pairs: Pairs) -> None:
    async with pairs.open() as ends:
        sent = b""
        async with ends.receiving() as got:
            for size in SIZES:
                data = ends.message(size, size)
                sent += data
                await ends.sender.send(data)
                ends.spoil(data)
        same(got, sent)


async def p2_no_later_bytes(pairs: Pairs) -> None:
    """Of a send that is cancelled after some turns, or after it has begun."""
    for turns in (None, *range(TURNS)):
        async with pairs.open() as ends:
            got = bytearray()
            data = ends.message(BOUND if turns is None else 200_000)
            sent, after = bytes(data), ends.message(1_000, 1)
            async with anyio.create_task_group() as receiving:
                receive_all = partial(ends.receive_all, got, _GONE)
                if turns is not None:
                    receiving.start_soon(receive_all)
                async with anyio.create_task_group() as sending:
                    sending.start_soon(ends.sender.send, data)
                    if turns is None:
                        got += await ends.receiver.receive()
                    for _ in range(turns or 0):
                        await anyio.lowlevel.checkpoint()
                    sending.cancel_scope.cancel()
                ends.spoil(data)
                if turns is None:
                    receiving.start_soon(receive_all)
                broken = await error_of(ends.sender.send, after) if ends.exact else True
                if broken:
                    await anyio.aclose_forcefully(ends.sender)
                else:
                    await ends.sender.aclose()
            if broken:
                same(got, sent, shorter=True)
            elif turns is None or bytes(got) != after:  # (it had not begun)
                same(got, sent + after)


async def p4_backpressure(pairs: Pairs) -> None:
    async with pairs.open() as ends:
        piece, count = ends.message(64 << 10), 0

        async def send_all() -> None:
            nonlocal count
            while count < BOUND // len(piece):
                await ends.sender.send(piece)
                count += 1
            await ends.sender.aclose()

        got, before = bytearray(), -1
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_all)
            while count > before:
                before = count
                await anyio.sleep(PAUSE)
            if count * len(piece) >= BOUND:
                fail(f"{BOUND:,} bytes were sent, and nobody had received one of them")
            await ends.receive_all(got)
        same(got, piece * count)


async def p6_exact_failure(pairs: Pairs) -> None:
    async with pairs.open() as ends:
        errors: list[Exception | None] = []

        async def send() -> None:
            errors.append(await error_of(ends.sender.send, ends.message(BOUND)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            got = len(await ends.receiver.receive())
            await anyio.aclose_forcefully(ends.receiver)
        for _ in range(2):
            expect(anyio.BrokenResourceError, errors[-1], "the receiver has closed")
            await send()
        error = errors[0]
        if isinstance(error, StreamBroken) and ends.exact:
            if not got <= error.bytes_sent < error.total == BOUND:
                fail(
                    f"{got:,} of {BOUND:,} bytes were received, and bytes_sent is "
                    f"{error.bytes_sent:,} of {error.total:,}"
                )


async def closing(pairs: Pairs) -> None:
    async with pairs.open() as ends:
        async with ends.receiving():
            await ends.sender.send(ends.message(1_000))
        kind = anyio.ClosedResourceError if ends.exact else Exception
        expect(kind, await error_of(ends.sender.send, b"x"), "a send after aclose")
        expect(kind, await error_of(ends.receiver.receive), "a receive after aclose")
        for each in (ends.sender, ends.receiver):
            await each.aclose()
    async with pairs.open() as ends:
        async with anyio.create_task_group() as tasks:
            for each in (ends.sender, ends.sender, ends.receiver, ends.receiver):
                tasks.start_soon(each.aclose)


async def closed_while_it_waits(pairs: Pairs) -> None:
    async def expect_closed(call: Callable[..., Any], *args: Any) -> None:
        error = await error_of(call, *args)
        expect(anyio.ClosedResourceError, error, f"closed while it waited in {call}")

    async with pairs.open() as ends, anyio.create_task_group() as tasks:
        tasks.start_soon(expect_closed, ends.receiver.receive)
        await anyio.sleep(PAUSE)
        await anyio.aclose_forcefully(ends.receiver)
    if ends.exact:
        async with pairs.open() as ends, anyio.create_task_group() as tasks:
            tasks.start_soon(expect_closed, ends.sender.send, ends.message(BOUND))
            await ends.receiver.receive()
            await anyio.aclose_forcefully(ends.sender)


async def the_end(pairs: Pairs) -> None:
    async with pairs.open() as ends:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ends.sender.aclose)
            for _ in range(3):
                error = await error_of(ends.receiver.receive)
                expect(anyio.EndOfStream, error, "the sender has closed")
            await ends.receiver.aclose()


async def receive_sizes(pairs: Pairs) -> None:
    async with pairs.open() as ends:
        data, got = ends.message(300_001), bytearray()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ends.sender.send, data)
            for most in itertools.cycle((1, 7, 100_000)):
                piece = await ends.receiver.receive(most)
                got += piece
                if not 0 < len(piece) <= most:
                    fail(f"receive({most}) returned {len(piece)} bytes")
                if len(got) >= len(data):
                    break
        same(got, data)


async def a_cancelled_receive_loses_nothing(pairs: Pairs) -> None:
    async with pairs.open() as ends:
        data, got, ended = ends.message(300_001), bytearray(), False

        async def send() -> None:
            await ends.sender.send(data)
            await ends.sender.aclose()

        async def receive() -> None:
            nonlocal got, ended
            try:
                got += await ends.receiver.receive(10_000)
            except anyio.EndOfStream:
                ended = True

        async with anyio.create_task_group() as tasks:
            for turns in itertools.count():
                if turns == TURNS:
                    tasks.start_soon(send)
                async with anyio.create_task_group() as receiving:
                    receiving.start_soon(receive)
                    for _ in range(turns % TURNS):
                        await anyio.lowlevel.checkpoint()
                    receiving.cancel_scope.cancel()
                if ended:
                    break
            await ends.receiver.aclose()
        same(got, data)


async def both_ways_at_once(pairs: Pairs) -> None:
    async with pairs.open() as ends:
        data, got, back = ends.message(1_000_000), bytearray(), bytearray()

        async def receive(stream: Any, into: bytearray) -> None:
            while len(into) < len(data):
                into += await stream.receive()

        async with anyio.create_task_group() as tasks:
            for stream, into in ((ends.sender, back), (ends.receiver, got)):
                tasks.start_soon(stream.send, data)
                tasks.start_soon(receive, stream, into)
        same(got, data)
        same(back, data)
        try:
            await ends.sender.send_eof()
        except NotImplementedError:  # (TLS has no half of a connection)
            return
        expect(anyio.EndOfStream, await error_of(ends.receiver.receive), "send_eof")
        await ends.receiver.send(data[:10])
        same(await ends.sender.receive(), data[:10])


CLAUSES = (
    *(p1_integrity, empty_messages, p0_done_means_yours, p2_no_later_bytes),
    *(p4_backpressure, p6_exact_failure, closing, closed_while_it_waits, the_end),
    *(receive_sizes, a_cancelled_receive_loses_nothing),
)
BOTH_WAYS = (both_ways_at_once,)
