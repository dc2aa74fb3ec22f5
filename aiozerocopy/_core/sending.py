"""SendStream: `send`, `put`, `send_many`, and how they keep their promise.

The way of one send
    `SendStream.send` -> `azc_send_bound` in C, which tries at once if nothing is queued
    (but see there for a pipe's big messages).  All out: return.  Else the pump finishes
    it without the loop or the GIL, and `_attend` awaits the `Operation`.

The states of a message, and who owns its buffers
    waiting   (C, of a `put`)   borrowed; beyond the limit: `put` returns when it is not
    queued    (C)               borrowed; a cancel drops it without a trace
    started   (C)               borrowed; a cancel copies the rest (rescue)
    done                        the caller
Order is decided by the queue in C alone, in which every message has its place from the
moment that it is submitted: there is one line, and nobody overtakes it.

Whatever is raised while a message is submitted or awaited, be it a cancel or the
exception of a signal's handler: `_settle` takes the buffers back before that goes on.
It is nested twice, for the second may come while the first is being settled.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import anyio
from anyio.abc import ByteSendStream

from aiozerocopy._core.batches import groups, joined
from aiozerocopy._core.binding import BUSY, IN_PROGRESS, send_bound
from aiozerocopy._core.borrows import Operation, Port
from aiozerocopy._core.errors import StreamBroken, StreamClosed
from aiozerocopy._core.lifetime import NOWHERE, Bound, Stats
from aiozerocopy._core.pins import pin_or_copy
from aiozerocopy._core.waiter import (
    LOOP_IS_CHEAP,
    Waiter,
    has_loop,
    is_current,
    running_asyncio_loop,
    running_tasks,
    this_thread,
)

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Buffer

    from aiozerocopy._core.channel import Channel


RESCUE_LIMIT = 64 << 20  # bytes that a cancelled send may copy
QUEUE_LIMIT = 32 << 20  # bytes that put lets in before it waits
LINGER = 1.0  # seconds for what was accepted, when a block ends by an exception


class Ticket(Awaitable[None]):
    """A message that was put: awaitable, and done once its buffers are yours again.

    Cancelling an ``await ticket`` leaves the message alone.  If the stream breaks,
    awaiting raises `StreamBroken` with the bytes that had gone out.
    """

    __slots__ = ("_operation", "_stream", "_waiter")

    def __init__(
        self, stream: SendStream, waiter: Waiter, operation: Operation | None
    ) -> None:
        self._stream = stream
        self._waiter = waiter
        self._operation = operation  # None: it was over at once

    def done(self) -> bool:
        """True once the buffers are the caller's (sent, or failed)."""
        return self._operation is None or self._operation.done

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        if self._operation is None:
            return
        await self._waiter.wait(self._operation)
        if self._operation.status < 0:
            await self._stream._raise(self._operation)


class _Failures:
    """What was put and could not be sent, until somebody was told.

    Operations refer to this and not to the stream, so that a stream which nobody
    holds any more is collected even while something is queued.
    """

    __slots__ = ("operations",)

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def watch(self, operation: Operation) -> None:
        """Remember it if it fails."""

        def remember() -> None:
            if operation.status < 0 and operation not in self.operations:
                self.operations.append(operation)

        operation.listen(remember)

    def forget(self, operation: Operation) -> None:
        """Somebody was told, or gave it up."""
        if operation in self.operations:
            self.operations.remove(operation)


class SendStream(Bound, ByteSendStream):
    """The sending end of a pipe, FIFO, file, tty or socket.

    Any number of tasks and threads may send; each message goes out whole, in the
    order of the calls.  A buffer is anything C-contiguous with the buffer protocol.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        rescue_limit: int = RESCUE_LIMIT,
        queue_limit: int = QUEUE_LIMIT,
    ) -> None:
        channel.set_limit(queue_limit)
        self._out = channel
        self._rescue_limit = rescue_limit
        self._failures = _Failures()
        self._eof = False
        Bound.__init__(self, channel)

    # -- sending ------------------------------------------------------------------

    async def send(self, buffer: Buffer = b"", /, *more: Buffer) -> None:
        """Send the buffers as one message; when this returns they are yours again.

        The buffers are borrowed until then: they must not be changed meanwhile, and
        a bytearray cannot be resized (unless it is so small that it was copied).

        Cancelled before the first byte was out, it leaves no trace.  Cancelled later,
        the unsent rest is copied (up to ``rescue_limit``), the message completes, and
        the buffers are yours at once.

        Raises:
            StreamBroken: the peer left; ``bytes_sent`` of this message were out.
            StreamClosed: the stream is or was closed on this side.
            TypeError, BufferError, ValueError: not a buffer that can be sent; nothing
                of the message was, and the stream is as before.
        """
        out = self._out
        ready, waiter = out.ready, self._waiter
        if (
            more
            or ready is None
            or waiter is None
            or (
                running_asyncio_loop() is not self._loop
                if LOOP_IS_CHEAP
                else this_thread() != self._thread or self._loop not in running_tasks
            )
        ):
            await self._send((buffer, *more))
            return
        try:
            try:
                data = buffer if type(buffer) is bytes else pin_or_copy(buffer)
                ready.views[0] = data
                left = send_bound(out.id, data, len(data))
                if left == 0:
                    ready.views[0] = None
                    return
                left = out.answered(waiter.port, ready, len(data), left)
                await self._attend(waiter, ready, left)
            except BaseException as error:
                await self._settle(waiter, ready, error)
                raise
        except BaseException as error:
            await self._settle(waiter, ready, error)
            raise

    async def put(self, *buffers: Buffer) -> Ticket:
        """Queue the buffers as one message, waiting for room only.

        They stay borrowed until the ticket is done.  There is room while less than
        ``queue_limit`` bytes are queued; one message of any size always fits.
        A cancel while it waits for room leaves no trace; one after that, while it
        lets others run, acts as in `send`.

        Raises: as `send`, for what is known at once.
        """
        out = self._out
        ready, waiter = out.ready, self._waiter
        operation = ready
        if (
            waiter is None
            or ready is None
            or len(buffers) != 1
            or not self._is_bound_here()
        ):
            waiter, operation = await self._begin()
        assert operation is not None
        try:
            try:
                if operation is ready:
                    left = out.put_bound(waiter.port, ready, buffers[0])
                else:
                    left = out.submit(waiter.port, operation, buffers, ask_room=True)
                if left != 0:
                    await self._attend_put(waiter, operation, left)
                return Ticket(self, waiter, operation if left < 0 else None)
            except BaseException as error:
                await self._settle(waiter, operation, error)
                raise
        except BaseException as error:
            await self._settle(waiter, operation, error)
            raise

    async def send_many(self, messages: Iterable[Buffer]) -> None:
        """Send messages in as few system calls as possible, each contiguous.

        Small ones are copied into one block, which is cheaper than to borrow each.
        Cancelled, those not begun leave no trace, and the one in progress completes.

        Raises: as `send`; what came before the failing group was sent.
        """
        waiter = self._enter()
        ready = self._out.ready
        if (
            ready is not None
            and self._loop is not NOWHERE
            and isinstance(messages, (list, tuple))
            and (block := joined(messages))
        ):
            submit = partial(self._out.send_batch, waiter.port, ready, block, messages)
            await self._see_through(waiter, ready, submit, self._attend)
            return
        for group in groups(messages):
            await self._send(group.pieces(), group.sizes)

    async def flush(self) -> None:
        """Return once everything that was sent or put before this call is out.

        Raises:
            StreamBroken, StreamClosed: it is not and will not be.
        """
        waiter = self._enter()
        # An empty message has its turn when all before it have had theirs.
        await self._send((b"",))
        waiter.port.drain()  # let their tickets know

    def send_from_thread(self, *buffers: Buffer) -> None:
        """Send from a thread without an event loop, in one order with all others.

        Blocks this thread until the buffers are yours again.

        Raises: as `send`; RuntimeError in a thread whose event loop is running.
        """
        if has_loop():
            raise RuntimeError("this thread runs an event loop: use await send(...)")
        if self._closed or self._eof:
            raise StreamClosed("the stream is closed")
        port = Port()
        operation = Operation(port, [])
        try:
            try:
                self._send_in_thread(port, operation, buffers)
            except BaseException:
                self._out.settle_now(port, operation, self._rescue_limit)
                raise
        except BaseException:
            self._out.settle_now(port, operation, self._rescue_limit)
            raise
        finally:
            port.close()

    # -- how a message gets in, and how one gets out again ------------------------

    def _is_bound_here(self) -> bool:
        """Does the loop run here that the stream is bound to?  (In `send` this stands
        in place.)"""
        if LOOP_IS_CHEAP:
            return running_asyncio_loop() is self._loop
        return self._loop in running_tasks and this_thread() == self._thread

    async def _begin(self) -> tuple[Waiter, Operation]:
        """What it takes to submit a message, from whatever loop."""
        waiter = self._enter()
        if self._eof:
            raise StreamClosed("send_eof was called before")
        if waiter.entry is not None:
            await waiter.entry()
        if self._out.ready is None:
            self._out.bind_port(waiter.port, self._turn)
        return waiter, Operation(waiter.port, [])

    async def _send(self, buffers: Sequence[Buffer], sizes: Sequence[int] = ()) -> None:
        """Send a message, or a batch."""
        waiter, operation = await self._begin()
        submit = partial(self._out.submit, waiter.port, operation, buffers, sizes)
        await self._see_through(waiter, operation, submit, self._attend)

    async def _see_through(
        self,
        waiter: Waiter,
        operation: Operation,
        submit: Callable[[], int],
        attend: Callable[[Waiter, Operation, int], Awaitable[None]],
    ) -> None:
        """Submit and attend; raised is what they raise, once that is settled."""
        try:
            try:
                left = submit()
                if left != 0:
                    await attend(waiter, operation, left)
            except BaseException as error:
                await self._settle(waiter, operation, error)
                raise
        except BaseException as error:
            await self._settle(waiter, operation, error)
            raise

    async def _attend(self, waiter: Waiter, operation: Operation, left: int) -> None:
        """Return when it is over, and others have had the turn that was due."""
        # It is used up; or others have their turn now, and must not share it with one
        # who may be cancelled meanwhile.
        if operation is self._out.ready:
            self._out.bind_port(waiter.port, self._turn)
        if left >= 0:
            await waiter.give_turn()
        elif left == IN_PROGRESS:
            await waiter.wait(operation)
            if operation.status < 0:
                await self._raise(operation)
        else:
            await self._fail(self._out.refused(left, operation.total))

    async def _attend_put(
        self, waiter: Waiter, operation: Operation, left: int
    ) -> None:
        """Return when it has room."""
        if left not in (BUSY, IN_PROGRESS):
            await self._attend(waiter, operation, left)
            return
        if operation is self._out.ready:  # it is used up
            self._out.bind_port(waiter.port, self._turn)
        if left == BUSY:
            await waiter.wait_for_room(operation)
            if operation.status < 0:
                await self._raise(operation)
        self._failures.watch(operation)
        if self._turn_is_over(operation.total):  # who cancels now gets no ticket
            await waiter.give_turn()

    async def _settle(
        self, waiter: Waiter, operation: Operation, error: BaseException
    ) -> None:
        """Something was raised: when this returns, the buffers are the caller's."""
        if isinstance(error, GeneratorExit):  # nobody may await any more
            self._out.settle_now(waiter.port, operation, self._rescue_limit)
        elif not self._out.settle(waiter.port, operation, self._rescue_limit):
            await waiter.wait_shielded(operation)
        self._failures.forget(operation)

    def _send_in_thread(
        self, port: Port, operation: Operation, buffers: Sequence[Buffer]
    ) -> None:
        try:
            left = self._out.submit(port, operation, buffers)
            if left == IN_PROGRESS:
                port.wait(operation)
                operation.raise_if_failed()
            elif left < 0:
                raise self._out.refused(left, operation.total)
        except StreamBroken as error:
            self._explain_in_thread(error)
            raise

    async def _raise(self, operation: Operation) -> NoReturn:
        """Tell why it failed."""
        self._failures.forget(operation)
        await self._fail(operation.failure())

    async def _fail(self, error: Exception) -> NoReturn:
        if isinstance(error, StreamBroken):
            await self._explain(error)
        raise error

    async def _explain(self, error: StreamBroken) -> None:
        """For those who know more about the peer than its silence."""

    def _explain_in_thread(self, error: StreamBroken) -> None:
        """The same, where a thread may block for it."""

    # -- the end ------------------------------------------------------------------

    async def aclose(self) -> None:
        """Send what was accepted, then close.  Cancelled, it closes at once.

        Raises:
            StreamBroken: something that was accepted could not be sent.
        """
        try:
            if not self._closed:
                await self._drain()
                if self._failures.operations:
                    await self._raise(self._failures.operations[0])
        finally:
            await self._close()

    async def _drain(self) -> None:
        stats, waiter = self._out.stats(), self._waiter
        if stats.queued or stats.waiting:
            await self.flush()
        elif waiter is not None and is_current(waiter) and not self._out.inherited:
            waiter.port.drain()  # what has failed by now may not have said so

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        if exc_val is None:
            await self.aclose()
            return
        # The body failed: no flush may hide that, or hang because of it.
        with anyio.CancelScope(shield=True):
            try:
                with anyio.move_on_after(LINGER):
                    await self._drain()
            except (StreamBroken, StreamClosed):
                pass
            finally:
                await self._close()

    @property
    def stats(self) -> Stats:
        """Counters, as of now."""
        out = self._out.stats()
        return Stats(
            bytes_sent=out.bytes,
            messages_sent=out.messages,
            sent_at_once=out.immediate,
            send_calls=out.calls,
            send_waits=out.waits,
            bytes_rescued=out.rescued,
            bytes_queued=out.queued_bytes,
            messages_queued=out.queued,
        )
