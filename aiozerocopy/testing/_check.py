"""check_stream: the contract, tried on any stream.

Each clause is a function that gets a new pair; its name begins the text of a failure.
Clauses that only the kernel or the process can show (P3, P5, P7) are not tried here.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
from anyio.abc import ByteSendStream, ByteStream

from aiozerocopy._core.errors import StreamBroken
from aiozerocopy._net.foreign_streams import MessageStream
from aiozerocopy.streams import SendStream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    Clause = Callable[["_Ends"], Awaitable[None]]

PATIENCE = 10.0  # seconds for one clause
PAUSE = 0.02  # seconds in which a call that does not wait would have returned
BOUND = 8 << 20  # bytes: more than any stream, and the layers below, should hold
TURNS = 8  # of the loop, after each of which a call is cancelled
POISON = 0xDB  # stored into a buffer once it is the sender's again
SIZES = (1, 0, 4_096, 65_537, 300_001, 17)

_NO_POISON = bytes(byte % POISON for byte in range(256))
_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)


async def check_stream(
    make: Callable[[], AbstractAsyncContextManager[tuple[Any, Any], Any]],
    *,
    exact: bool | None = None,
    only_bytes: bool = False,
) -> None:
    """Try the contract on pairs of streams, on the event loop that is running.

    ``make()`` is an async context manager whose value is the two ends of a new stream,
    in any order: a ByteSendStream and a ByteReceiveStream of anyio, or two ByteStreams,
    which are tried in both directions.  (A context manager, because a server or a file
    may have to outlive the streams.)  So ``azc.pipe`` is one, and ``azc.socketpair``.

    ``exact``: the stream promises what ours do and anyio's interface does not: several
    tasks may send at once, ``send(*buffers)`` is one message, a cancelled send sends
    all of it or nothing or breaks the stream, and after its own close every call raises
    ClosedResourceError, even one that waits.  By default: only if it is one of ours.

    ``only_bytes``: send only ``bytes``, which nobody changes, and allow the stream to
    keep them.  anyio's interface asks for no more.

    Raises:
        AssertionError: the text begins with the clause, and says what was seen.
    """
    for turned, clause in itertools.product((False, True), CLAUSES):
        async with make() as pair:
            ends = _Ends(pair, turned, exact, only_bytes)
            if turned and not ends.both:
                return
            try:
                with anyio.fail_after(PATIENCE):
                    await clause(ends)
            except Exception as error:
                name = clause.__name__.replace("_", " ")
                text = f"{name[0].upper()}{name[1:]}: {_said(error)}"
                raise AssertionError(text) from error
            finally:
                for each in pair:
                    with contextlib.suppress(Exception):
                        await anyio.aclose_forcefully(each)


def _said(error: BaseException) -> str:
    """Say what went wrong; of a group's errors, the first that a check has raised."""
    while inner := getattr(error, "exceptions", ()):
        error = next((e for e in inner if isinstance(e, AssertionError)), inner[0])
    if isinstance(error, TimeoutError):
        return f"it was not over after {PATIENCE:g} seconds"
    if isinstance(error, AssertionError):
        return str(error)
    return f"{type(error).__name__} was not expected here: {error}"


# ---- for the clauses ---------------------------------------------------------------


def _require(holds: object, text: str) -> None:
    if not holds:
        raise AssertionError(text)


class _Ends:
    """A pair, in the direction that is tried."""

    def __init__(
        self, pair: tuple[Any, Any], turned: bool, exact: bool | None, only_bytes: bool
    ) -> None:
        one, other = pair
        if turned or not isinstance(one, ByteSendStream):
            one, other = other, one
        self.sender, self.receiver = one, other
        self.both = isinstance(one, ByteStream) and isinstance(other, ByteStream)
        ours = isinstance(one, (SendStream, MessageStream))
        self.exact = ours if exact is None else exact
        self._only_bytes = only_bytes

    def message(self, size: int, seed: int = 0) -> Any:
        period = random.Random(seed).randbytes(65_521).translate(_NO_POISON)
        data = (period * (size // len(period) + 1))[:size]
        return data if self._only_bytes else bytearray(data)

    def spoil(self, data: Any) -> None:
        """Overwrite and clear a buffer, as its owner may."""
        if not self._only_bytes:
            data[:] = bytes([POISON]) * len(data)
            try:
                data.clear()
            except BufferError:
                text = "the buffer was still held when send had returned or raised"
                raise AssertionError(text) from None

    async def receive_all(self, got: bytearray, *may_end: type[Exception]) -> None:
        """Receive until the end, which may be one of these errors, and close."""
        with contextlib.suppress(anyio.EndOfStream, *may_end):
            while True:
                piece = await self.receiver.receive()
                _require(piece, "receive returned no bytes, and raised no EndOfStream")
                got += piece
        with contextlib.suppress(*may_end):
            await self.receiver.aclose()

    @asynccontextmanager
    async def receiving(self) -> AsyncIterator[bytearray]:
        """Collect what arrives; when the block ends, close the sender, get the rest."""
        got = bytearray()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.receive_all, got)
            yield got
            await self.sender.aclose()


def _same(got: bytes | bytearray, sent: bytes, *, shorter: bool = False) -> None:
    """Require that what was sent has arrived, or, if ``shorter``, its first part."""
    if got[: len(sent)] != sent[: len(got)]:
        at = next(i for i, byte in enumerate(got) if byte != sent[i])
        was = "stored after send had ended" if got[at] == POISON else "never sent so"
        raise AssertionError(f"byte {at:,} of {len(sent):,} was {was}")
    fits = len(got) <= len(sent) if shorter else len(got) == len(sent)
    _require(fits, f"{len(sent):,} bytes were sent, and {len(got):,} arrived")


async def _error(call: Callable[..., Any], *args: Any) -> Exception | None:
    try:
        await call(*args)
    except Exception as error:
        return error
    return None


async def _expect(
    kind: type[Exception], when: str, call: Callable[..., Any], *args: Any
) -> None:
    error = await _error(call, *args)
    text = f"{when}, and {kind.__name__} was due: not {error!r}"
    _require(isinstance(error, kind), text)


# ---- the clauses -------------------------------------------------------------------


async def p1_integrity(ends: _Ends) -> None:
    due = {  # (a message's first byte is its task)
        task: [bytes([task]) + ends.message(size, size + task) for size in SIZES]
        for task in range(4 if ends.exact else 1)
    }

    async def send_all(messages: list[bytes]) -> None:
        for each in messages:
            pieces = (each[:9], each[9:]) if ends.exact else (each,)
            await ends.sender.send(*pieces)

    async with ends.receiving() as got, anyio.create_task_group() as tasks:
        for messages in due.values():
            tasks.start_soon(send_all, list(messages))
    while got:
        messages = due.get(got[0], [])
        in_order = messages and got.startswith(messages[0])
        _require(in_order, "messages were changed, mixed, or in the wrong order")
        del got[: len(messages.pop(0))]
    _require(not any(due.values()), "what was sent before a close did not all arrive")


async def p0_done_means_yours(ends: _Ends) -> None:
    sent = b""
    async with ends.receiving() as got:
        for size in SIZES:
            data = ends.message(size, size)
            sent += data
            await ends.sender.send(data)
            ends.spoil(data)
    _same(got, sent)


def _cancelled(turns: int | None) -> Clause:
    """Cancel a send after ``turns`` turns of the loop; None: once it has begun."""

    async def p2_no_later_bytes(ends: _Ends) -> None:
        data = ends.message(BOUND // 4 if turns is None else 200_000)
        sent, after, got = bytes(data), bytes(ends.message(1_000, 1)), bytearray()
        async with anyio.create_task_group() as receiving:
            receive_all = partial(receiving.start_soon, ends.receive_all, got, *_GONE)
            async with anyio.create_task_group() as sending:
                sending.start_soon(ends.sender.send, data)
                if turns is None:
                    got += await ends.receiver.receive()
                else:
                    receive_all()
                for _ in range(turns or 0):
                    await anyio.lowlevel.checkpoint()
                sending.cancel_scope.cancel()
            ends.spoil(data)
            if turns is None:
                receive_all()
            is_cut = await _error(ends.sender.send, after) if ends.exact else True
            close = anyio.aclose_forcefully if is_cut else type(ends.sender).aclose
            await close(ends.sender)
        if turns is None or bytes(got) != after:  # (else the send had not begun)
            _same(got, sent if is_cut else sent + after, shorter=bool(is_cut))

    return p2_no_later_bytes


async def p4_backpressure(ends: _Ends) -> None:
    piece, count, got = ends.message(64 << 10), 0, bytearray()
    most = BOUND // len(piece)

    async def send_all() -> None:
        nonlocal count
        while count < most:
            await ends.sender.send(piece)
            count += 1
        await ends.sender.aclose()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send_all)
        before = -1
        while count > before:
            before = count
            await anyio.sleep(PAUSE)
        text = f"{BOUND:,} bytes were sent, and nobody had received any"
        _require(count < most, text)
        most = 0  # (shown: the send that waits is the last)
        await ends.receive_all(got)
    _same(got, piece * count)


async def p6_exact_failure(ends: _Ends) -> None:
    errors: list[Any] = []

    async def send() -> None:
        errors.append(await _error(ends.sender.send, ends.message(BOUND)))
        text = f"the receiver has closed, and send got {errors[-1]!r}"
        _require(isinstance(errors[-1], anyio.BrokenResourceError), text)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        got = len(await ends.receiver.receive())
        await anyio.aclose_forcefully(ends.receiver)
    await send()
    if ends.exact and isinstance(errors[0], StreamBroken):
        sent, total = errors[0].bytes_sent, errors[0].total
        text = f"{sent:,} of {total:,} bytes were sent, says the error, of {BOUND:,}"
        _require(got <= sent < total == BOUND, f"{text}, and {got:,} arrived")


async def closing(ends: _Ends) -> None:
    sender, receiver = ends.sender, ends.receiver
    async with anyio.create_task_group() as tasks:
        for _ in range(2):  # (at once)
            tasks.start_soon(sender.aclose)
        for _ in range(3):
            when = "the sender has closed"
            await _expect(anyio.EndOfStream, when, receiver.receive)
        for _ in range(2):
            tasks.start_soon(receiver.aclose)
    kind = anyio.ClosedResourceError if ends.exact else Exception
    await _expect(kind, "the sender was closed", sender.send, b"x")
    await _expect(kind, "the receiver was closed", receiver.receive)
    for each in (sender, receiver):
        await each.aclose()


async def closed_while_it_receives(ends: _Ends) -> None:
    kind = anyio.ClosedResourceError if ends.exact else Exception
    when = "it was closed while it received"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_expect, kind, when, ends.receiver.receive)
        await anyio.sleep(PAUSE)
        await anyio.aclose_forcefully(ends.receiver)


async def closed_while_it_sends(ends: _Ends) -> None:
    data, kind = ends.message(BOUND), anyio.ClosedResourceError
    when = "it was closed while it sent"
    if ends.exact:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_expect, kind, when, ends.sender.send, data)
            await ends.receiver.receive()
            await anyio.aclose_forcefully(ends.sender)


async def receives_of_any_size(ends: _Ends) -> None:
    """Some of the receives are cancelled, and lose nothing."""
    data, got, ended = ends.message(300_001), bytearray(), False

    async def send() -> None:
        await ends.sender.send(data)
        await ends.sender.aclose()

    async def receive(most: int) -> None:
        nonlocal ended, got
        try:
            piece = await ends.receiver.receive(most)
        except anyio.EndOfStream:
            ended = True
            return
        got += piece
        text = f"receive({most}) returned {len(piece)} bytes"
        _require(0 < len(piece) <= most, text)

    async with anyio.create_task_group() as tasks:
        for call, most in enumerate(itertools.cycle((1, 7, 100_000))):
            if call == TURNS:  # (nothing was there until now)
                tasks.start_soon(send)
            async with anyio.create_task_group() as receiving:
                receiving.start_soon(receive, most)
                for _ in range(call % TURNS):
                    await anyio.lowlevel.checkpoint()
                receiving.cancel_scope.cancel()
            if ended:
                break
        await ends.receiver.aclose()
    _same(got, data)


async def both_ways_at_once(ends: _Ends) -> None:
    data, there, back = ends.message(1_000_000), bytearray(), bytearray()

    async def receive(stream: Any, got: bytearray) -> None:
        while len(got) < len(data):
            got += await stream.receive()

    if ends.both:
        async with anyio.create_task_group() as tasks:
            for stream, got in ((ends.sender, back), (ends.receiver, there)):
                tasks.start_soon(stream.send, data)
                tasks.start_soon(receive, stream, got)
        _same(there, data)
        _same(back, data)


CLAUSES: tuple[Clause, ...] = (
    *(p1_integrity, p0_done_means_yours, *map(_cancelled, (None, *range(TURNS)))),
    *(p4_backpressure, p6_exact_failure, closing, closed_while_it_receives),
    *(closed_while_it_sends, receives_of_any_size, both_ways_at_once),
)
