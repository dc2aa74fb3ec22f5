"""ReceiveStream: `receive`, `receive_into`, `receive_exactly`, `batches`.

The states of a receive, and who owns the memory
    queued      borrowed; the kernel writes there when bytes come
    over        the caller's again
    cancelled   the caller's again; bytes that had arrived are kept in `_unread`, and
                the next receive begins with them

Bytes that are there when the call begins need no operation and, in plain memory, no
pin: C stores them, and their number in `_come`, where it stays until the next call
begins.  An operation waits for the rest.

When a cancel, or an exception from a signal handler, interrupts a receive, `_keep` ends
it in C, keeps the bytes that came, and only then gives the memory back; `_come_back`
keeps those that came before there was a pin.  Handlers are nested, because a second
exception may come while the first one is handled.
"""

from __future__ import annotations

import array
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import anyio
from anyio.abc import ByteReceiveStream

from aiozerocopy._core.batches import Batches
from aiozerocopy._core.binding import IN_PROGRESS, ffi, receive_now
from aiozerocopy._core.borrows import Operation, borrowed
from aiozerocopy._core.errors import IncompleteReceive
from aiozerocopy._core.lifetime import NOWHERE, Bound, Stats
from aiozerocopy._core.pins import (
    content,
    fill,
    pin_writable,
    receive_at_once,
    scratch,
    unpin,
)
from aiozerocopy._core.waiter import (
    LOOP_IS_CHEAP,
    checkpoint,
    running_asyncio_loop,
    running_tasks,
    this_thread,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from aiozerocopy._core.batches import Pool
    from aiozerocopy._core.channel import Channel
    from aiozerocopy._core.leases import AnyBuffer
    from aiozerocopy._core.waiter import Waiter

RECEIVE_SIZE = 64 << 10

T = TypeVar("T")


class Receives(Generic[T]):
    """``async for`` over the results of `receive`, until the end."""

    async def receive(self) -> T:
        raise NotImplementedError

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class Reception(Operation):
    """One receive.  The stream unpins its memory, after it has kept the bytes."""

    is_kept = False
    is_receive = True
    fds: Any = None  # for fds that come with the bytes

    @property
    def received(self) -> int:
        """How many bytes of its memory are filled."""
        return self.taken + self.sent

    def _give_back(self, outcome: int) -> None:
        borrowed.pop(self.token, None)


def _number(_view: object, n: int) -> int:
    return n


def _pin_held(held: list[Any]) -> Any:
    """Pin memory that has begun to be filled; it is in a list, which can be emptied."""
    return ffi.from_buffer(held[0], require_writable=True)


class _Arrived(Exception):
    """Bytes have come, and stay unread."""


def _leave(_view: object, _n: int) -> NoReturn:
    raise _Arrived  # so that `_keep` keeps the bytes


class ReceiveStream(Bound, ByteReceiveStream):
    """The receiving end of a pipe, FIFO, file, tty or socket.

    One task at a time may receive.  A cancelled receive loses nothing: the next one
    begins with the bytes that had arrived.
    """

    def __init__(self, channel: Channel) -> None:
        self._receive_from(channel)
        Bound.__init__(self, channel)

    def _receive_from(self, channel: Channel) -> None:
        self._in = channel
        self._unread = b""
        self._come = array.array("Q", [0])  # bytes that a receive got at once
        self._come_at = self._come.buffer_info()[0]
        # The receive in progress; or what receives instead of our calls: see `Ahead`.
        self._reception: object = None

    async def receive(self, max_bytes: int = RECEIVE_SIZE) -> bytes:
        """Return the next 1 to ``max_bytes`` bytes.

        Raises:
            EndOfStream: no more bytes will come.
            StreamBroken, StreamClosed: as for sending.
            BusyResourceError: another task is receiving.
        """
        if max_bytes < 1:
            raise ValueError(f"max_bytes must be a positive integer, not {max_bytes}")
        waiter = self._enter_alone()
        return await self._receive(waiter, scratch, max_bytes, 1, content)

    async def receive_into(self, buffer: AnyBuffer) -> int:
        """Receive at least one byte straight into ``buffer``; return how many.

        Raises: as `receive`; BufferError for memory that cannot be written.
        """
        if not self._begins_at_once():
            return await self._receive(
                self._enter_alone(), pin_writable, buffer, 1, _number
            )
        held: list[Any] = []
        try:
            try:
                got = receive_at_once(self._in.id, buffer, 1, self._come_at)
                if got and type(got) is int:
                    self._spent += 1 + (got >> 12)
                    return got
                tried = got is not None
                if got:
                    held.append(got)
                got = None
                borrow, memory = (_pin_held, held) if held else (pin_writable, buffer)
                return await self._receive(
                    self._enter_alone(), borrow, memory, 1, _number, tried=tried
                )
            except BaseException:
                self._come_back(buffer)
                got = None  # (the traceback keeps this frame)
                held.clear()
                raise
        except BaseException:
            self._come_back(buffer)
            got = None
            held.clear()
            raise

    async def receive_exactly(self, buffer: AnyBuffer) -> None:
        """Fill the whole ``buffer``: a NumPy array, a frame.

        Raises:
            EndOfStream: the stream ended before the first byte.
            IncompleteReceive: it ended later; its ``received`` bytes are in place.
            others: as `receive_into`.
        """
        if not self._begins_at_once():
            await self._receive(
                self._enter_alone(), pin_writable, buffer, None, _number
            )
            return
        held: list[Any] = []
        try:
            try:
                got = receive_at_once(self._in.id, buffer, 0, self._come_at)
                if got and type(got) is int:
                    self._spent += 1 + (got >> 12)
                    return
                tried = got is not None
                if got:
                    held.append(got)
                got = None
                borrow, memory = (_pin_held, held) if held else (pin_writable, buffer)
                await self._receive(
                    self._enter_alone(), borrow, memory, None, _number, tried=tried
                )
            except BaseException:
                self._come_back(buffer)
                got = None  # (the traceback keeps this frame)
                held.clear()
                raise
        except BaseException:
            self._come_back(buffer)
            got = None
            held.clear()
            raise

    async def _arrival(self) -> None:
        """Return once bytes have come, and leave them to the next receive.

        Raises: as `receive`.
        """
        with contextlib.suppress(_Arrived):
            await self._receive(self._enter_alone(), scratch, 1, 1, _leave)

    def batches(
        self, shape: int | Sequence[int], dtype: Any = "uint8", pool: Pool | None = None
    ) -> Batches:
        """Receive records of one size as NumPy arrays, with ``async for``.

        ``shape`` is the number of records in a batch, then the shape of one: each
        batch of ``batches((256, 3), "float32")`` is an array of 256 records of three
        numbers, received in place with one wake-up of the task.  All batches are full,
        except the last: an array of the whole records that are left.

        An array is yours, and the next batch has memory of its own.  With a
        `FramePool` that is a slot, which comes back once the array and all views of
        it are gone; ``async for`` holds the last batch while it waits for the next,
        so a pool needs two slots at least.

        One task at a time may receive.  A cancelled step loses nothing: the bytes that
        had arrived come with the next.

        Raises:
            ValueError: a shape without records; slots that are too small or too few.
            TypeError: a dtype of Python objects.
            IncompleteReceive: the stream ended within a record.  It comes after the
                last batch, and its ``rest`` has the bytes of that record.
            StreamBroken: after the whole records that came before.
            others: as `receive`.
        """
        return Batches(self, shape, dtype, pool)

    def _has_unread(self) -> bool:
        """Return whether bytes were read from the fd that no call has returned yet."""
        return bool(self._unread or self._in.stats().leftover)

    def _enter_alone(self) -> Waiter:
        waiter = self._enter()
        if self._reception is not None:
            raise anyio.BusyResourceError("reading from")
        return waiter

    def _begins_at_once(self) -> bool:
        """Return whether a call may begin with `receive_at_once`, and prepare it."""
        if (
            self._unread
            or self._reception is not None
            or self._spent + 1 >= self._budget
            or (
                running_asyncio_loop() is not self._loop
                if LOOP_IS_CHEAP
                else this_thread() != self._thread or self._loop not in running_tasks
            )
        ):
            return False
        self._come[0] = 0
        return True

    def _come_back(self, memory: AnyBuffer) -> None:
        """Keep the bytes that an interrupted call got at once; may be repeated."""
        if n := self._come[0]:
            view = pin_writable(memory)
            unread = content(view, min(n, len(view))) + self._unread
            self._unread, self._come[0] = unread, 0  # (as in _fill)
            unpin([view])

    async def _receive(
        self,
        waiter: Waiter,
        borrow: Callable[[Any], Any],
        memory: Any,
        need: int | None,
        result: Callable[[Any, int], T],
        fds: Any = None,
        tried: bool = False,
    ) -> T:
        """Borrow memory, fill it, and return what ``result`` makes of the pin.

        At least ``need`` bytes are received; None: as many as there is room for.  Fds
        that come with them are stored in ``fds``.  Bytes that are there already need
        no operation, unless that was ``tried``.

        An operation's pin must live until this returns, since an exception may still
        come, and then `_keep` needs the bytes.  It must not live longer: a traceback
        may keep the operation alive, and so its views are cleared.
        """
        view = reception = None
        if not tried:
            self._come[0] = 0
        try:
            try:
                self._spent += 1
                if yields := self._spent >= self._budget:
                    self._spent = 0
                waits = yields or self._unread or self._loop is NOWHERE
                view = borrow(memory)
                least = n = len(view)
                if need is not None:
                    least = need
                self._spent += n >> 12
                if n and fds is None and not (waits or tried):
                    come = ffi.cast("uint64_t *", self._come_at)
                    now = receive_now(self._in.id, view, n, least, come)
                    if now >= least:
                        return result(view, now)
                reception = Reception(waiter.port, [])
                reception.fds = fds
                n = await self._fill(waiter, reception, view, least, yields)
                received = result(view, n)
                reception.views.clear()
                self._reception = None
                return received
            except BaseException as error:
                await self._keep(waiter, reception, view, error)
                raise
        except BaseException as error:
            await self._keep(waiter, reception, view, error)
            raise

    async def _fill(
        self, waiter: Waiter, reception: Reception, view: Any, need: int, yields: bool
    ) -> int:
        self._reception = reception
        reception.views.append(view)
        if reception.fds is not None:
            reception.views.append(reception.fds)
        # (one statement: no signal handler runs between the two stores)
        reception.taken, self._come[0] = self._come[0], 0
        if yields or len(view) == 0:
            await waiter.checkpoint()
            self._enter()  # (the stream may be closed by now)
        if self._unread:
            self._take_unread(reception, view)
        taken = reception.taken
        if taken < min(need, len(view)):
            left, fds = need - taken, reception.fds
            result = self._in.receive(waiter.port, reception, view, taken, left, fds)
            if result == IN_PROGRESS:
                await waiter.wait(reception)
                reception.raise_if_failed()
            elif result:
                raise self._in.refused(result, reception.total, taken)
        else:
            reception.end()
            waiter.port.forget(reception)
        n = reception.received
        if n < min(need, len(view)):
            raise anyio.EndOfStream if n == 0 else IncompleteReceive(n, len(view))
        return n

    def _take_unread(self, reception: Reception, view: Any) -> None:
        n = min(len(self._unread), len(view))
        fill(view, memoryview(self._unread)[:n])
        rest = self._unread[n:]
        self._unread, reception.taken = rest, n  # (as in _fill)

    async def _keep(
        self,
        waiter: Waiter,
        reception: Reception | None,
        view: Any,
        error: BaseException,
    ) -> None:
        """End an interrupted call: keep the bytes that came, then unpin the memory."""
        if view is not None and (n := self._come[0]):
            unread = content(view, min(n, len(view))) + self._unread
            self._unread, self._come[0] = unread, 0  # (as in _fill)
        if reception is None:
            unpin([view])
            return
        if isinstance(error, GeneratorExit):  # a coroutine being closed may not await
            self._in.take_back_blocking(waiter.port, reception)
        elif not self._in.take_back(waiter.port, reception):
            await waiter.wait_shielded(reception)
        if reception.done:
            n = reception.received  # (after IncompleteReceive the caller has them)
            if n and not (reception.is_kept or isinstance(error, IncompleteReceive)):
                unread = content(view, n) + self._unread
                self._unread, reception.is_kept = unread, True  # (as in _fill)
            unpin([view])
        if self._reception is reception:
            self._reception = None

    async def aclose(self) -> None:
        """Close; a task that is receiving gets StreamClosed."""
        await self._close()
        await checkpoint()

    @property
    def stats(self) -> Stats:
        counters = self._in.stats()
        return replace(
            super().stats,
            bytes_received=counters.bytes,
            receive_calls=counters.calls,
            receive_waits=counters.waits,
        )
