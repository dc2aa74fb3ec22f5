"""SendStream: `send`, `put`, `send_many`, and how they keep their promise.

The path of one send
    `SendStream.send` calls `send_at_once` in C, which writes at once if nothing is
    queued (csrc/submit.c says when it leaves a big message to the pump).  If all bytes
    are out, `send` returns.  Otherwise the pump writes the rest, without the loop and
    without the GIL, and `_attend` awaits the `Operation`.

The states of a message, and who owns its buffers
    waiting   put, but beyond the limit   borrowed; `put` waits until there is room
    queued    no byte is out              borrowed; a cancel drops it without a trace
    started   some bytes are out          borrowed; a cancel copies the rest (rescue)
    done                                  the caller's again

When a cancel, or an exception from a signal handler, interrupts a call, `_take_back`
takes the buffers back before the exception goes on: see `or_undo`.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, get_args

import anyio
from anyio.abc import ByteSendStream

from aiozerocopy._core.binding import BUSY, IN_PROGRESS
from aiozerocopy._core.borrows import Operation, Port, or_undo, or_undo_now
from aiozerocopy._core.channel import PUT, SEND
from aiozerocopy._core.errors import StreamBroken, StreamClosed
from aiozerocopy._core.groups import groups, joined
from aiozerocopy._core.lifetime import NOWHERE, Bound, Stats
from aiozerocopy._core.pins import nbytes, send_at_once
from aiozerocopy._core.relaying import Relay, check_part, relay_file
from aiozerocopy._core.waiter import (
    LOOP_IS_CHEAP,
    Waiter,
    checkpoint,
    has_loop,
    running_asyncio_loop,
    running_tasks,
    runs_here,
    this_thread,
)

if TYPE_CHECKING:
    from aiozerocopy._core.channel import Channel
    from aiozerocopy._core.leases import AnyBuffer
    from aiozerocopy._core.relaying import AnyFile


RESCUE_LIMIT = 64 << 20  # bytes that a cancelled send may copy
QUEUE_LIMIT = 32 << 20  # bytes that put lets in before it waits
CLOSING = "the stream is being closed"
LINGER = 1.0  # seconds for accepted messages, when a block ends by an exception

# While a task is sending, another one waits in line, or gets BusyResourceError.
Concurrent = Literal["queue", "raise"]


class Call(Protocol):
    """A call that sends, or waits to do so."""

    @property
    def done(self) -> bool: ...


class Ticket(Awaitable[None]):
    """A message that was put: awaitable, and done once its buffers are yours again.

    Cancelling an ``await ticket`` does not cancel the message.  If the stream breaks,
    awaiting raises `StreamBroken` with the bytes that had gone out.
    """

    __slots__ = ("_operation", "_stream", "_waiter")

    def __init__(
        self, stream: SendStream, waiter: Waiter, operation: Operation | None
    ) -> None:
        self._stream = stream
        self._waiter = waiter
        self._operation = operation  # None: the message was out at once

    def done(self) -> bool:
        """Return True once the buffers are the caller's (sent, or failed)."""
        return self._operation is None or self._operation.done

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        if self._operation is None:
            return
        await self._waiter.wait(self._operation)
        if self._operation.status:
            await self._stream._raise(self._operation)

    def _take_back(self) -> None:
        """Undo the interrupted call that made this; block for a moment at most."""
        stream, operation = self._stream, self._operation
        if operation is not None:
            limit = stream._rescue_limit
            stream._out.take_back_blocking(self._waiter.port, operation, limit)
            stream._failures.pop(operation, None)


def _remember(failures: dict[Operation, None], operation: Operation) -> None:
    """Keep a message that was put and has failed, until its error is raised.

    Operations refer to ``failures`` and not to the stream, so that a stream without
    other references is collected even while a message is queued.
    """
    if operation.status:
        failures[operation] = None


def check_concurrent(concurrent: Concurrent) -> None:
    """Raises: ValueError: there is no such choice."""
    if concurrent not in get_args(Concurrent):
        choices = " or ".join(map(repr, get_args(Concurrent)))
        raise ValueError(f"concurrent must be {choices}, not {concurrent!r}")


def _limit(nbytes: int, name: str) -> int:
    """Return the number of bytes as C takes it.

    Raises: TypeError, ValueError: it is no whole number, or negative.
    """
    if isinstance(nbytes, bool) or not isinstance(nbytes, Integral):
        raise TypeError(f"{name} must be a whole number of bytes, not {nbytes!r}")
    if nbytes < 0:
        raise ValueError(f"{name} must be at least 0, not {nbytes}")
    return min(int(nbytes), sys.maxsize)


class SendStream(Bound, ByteSendStream):
    """The sending end of a pipe, FIFO, file, tty or socket.

    Any number of tasks and threads may send; each message goes out whole, in the
    order of the calls.  A buffer is anything C-contiguous with the buffer protocol,
    or a tensor (DLPack) on the host.

    With ``concurrent="raise"`` a task that sends, puts or flushes while another one
    waits in such a call gets `anyio.BusyResourceError`, as from anyio's own streams.
    """

    def __init__(
        self,
        channel: Channel,
        *,
        rescue_limit: int = RESCUE_LIMIT,
        queue_limit: int = QUEUE_LIMIT,
        concurrent: Concurrent = "queue",
    ) -> None:
        check_concurrent(concurrent)
        channel.set_limit(_limit(queue_limit, "queue_limit"))
        self._out = channel
        self._rescue_limit = _limit(rescue_limit, "rescue_limit")
        self._failures: dict[Operation, None] = {}  # (as an ordered set)
        self._refusal = ""  # why the stream takes no more messages
        self._is_exclusive = concurrent == "raise"
        self._call: Call | None = None  # of an exclusive stream, the latest
        Bound.__init__(self, channel)

    # -- sending ------------------------------------------------------------------

    async def send(self, item: AnyBuffer = b"", *more: AnyBuffer) -> None:
        """Send the buffers as one message; when this returns they are yours again.

        (The first is named ``item`` as in anyio, for callers that pass it by name.)

        The buffers are borrowed until then: they must not be changed meanwhile, and
        a bytearray cannot be resized (unless it is so small that it was copied).

        Cancelled before the first byte was out, it leaves no trace.  Cancelled later,
        the unsent rest is copied (up to ``rescue_limit``), the message completes, and
        the buffers are yours at once.

        Raises:
            StreamBroken: the peer left; ``bytes_sent`` of this message were out.
            StreamClosed: the stream is or was closed on this side.
            TypeError, BufferError, ValueError: not a buffer that can be sent; nothing
                of the message was sent, and the stream is as before.
        """
        out = self._out
        ready, waiter = out.ready, self._waiter
        if (
            more
            or ready is None
            or waiter is None
            or not ready.views
            or ready.views[0] is not None  # another message's: we are in its call
            or (
                running_asyncio_loop() is not self._loop
                if LOOP_IS_CHEAP
                else this_thread() != self._thread or self._loop not in running_tasks
            )
        ):
            await self._send((item, *more))
            return
        mine = None
        try:
            try:
                found = send_at_once(out.id, ready.token, ready.views, item, SEND, 1)
                if found == 0:
                    return
                if found is not None:
                    mine = ready
                    result = out.note_result(waiter.port, ready, *found)
                    await self._attend(waiter, ready, result)
                    return
                ready = None
            except BaseException as error:
                await self._undo(waiter, ready, mine, error)
                raise
        except BaseException as error:
            await self._undo(waiter, ready, mine, error)
            raise
        await self._send((item,))

    async def put(self, *buffers: AnyBuffer) -> Ticket:
        """Queue the buffers as one message; wait only for room.

        They stay borrowed until the ticket is done.  There is room if the message and
        the queued bytes are together at most ``queue_limit``, and the messages at most
        one for each KiB of it; an empty queue has room for any message.  A cancel while
        it waits for room leaves no trace.  Afterwards it may let other tasks run: a
        cancel then acts as in `send`.

        Raises: as `send`, for errors that are known at once.
        """
        out, waiter = self._out, self._waiter
        ready = operation = result = None
        try:
            try:
                if waiter is not None and len(buffers) == 1 and self._is_bound_here():
                    ready = out.free()
                if ready is not None and waiter is not None:
                    views, message = ready.views, buffers[0]
                    found = send_at_once(out.id, ready.token, views, message, PUT, 1)
                    operation, ready = ready if found else None, None
                    result = found
                    if operation is not None:
                        result = out.note_result(waiter.port, operation, *found)
                if waiter is None or result is None:
                    waiter, operation = await self._begin()
                    self._claim(operation)
                    result = out.submit(waiter.port, operation, buffers, ask_room=True)
                if operation is not None and result != 0:
                    await self._attend_put(waiter, operation, result)
                self._call = None  # (the queued message does not make others wait)
                return Ticket(self, waiter, operation)
            except BaseException as error:
                await self._undo(waiter, ready, operation, error)
                raise
        except BaseException as error:
            await self._undo(waiter, ready, operation, error)
            raise

    def _put_now(self, waiter: Waiter, data: bytes) -> Ticket | None:
        """Queue bytes even if there is no room, without a point for a cancel.

        None: they are out.
        """
        out, port = self._out, waiter.port
        operation = Operation(port, [])
        put = partial(out.submit, port, operation, (data,))
        back = partial(out.take_back_blocking, port, operation, self._rescue_limit)
        result = or_undo_now(put, back)
        if result in (IN_PROGRESS, BUSY):
            return Ticket(self, waiter, operation)
        if result < 0:
            raise out.refused(result, len(data))
        return None

    async def send_many(self, messages: Iterable[AnyBuffer]) -> None:
        """Send messages in as few system calls as possible, each in one piece.

        Small ones are copied into one block, which is cheaper than borrowing each.
        After a cancel the message in progress completes, and the next ones leave no
        trace.

        Raises: as `send`; the messages before the failing group were sent.
        """
        waiter, out = self._enter(), self._out
        ready = mine = found = None
        try:
            if (
                self._loop is not NOWHERE
                and isinstance(messages, (list, tuple))
                and (block := joined(messages))
                and (ready := out.free())
            ):
                views, count = ready.views, len(messages)
                found = send_at_once(out.id, ready.token, views, block, SEND, count)
                mine, ready = ready if found else None, None
                if mine is not None:
                    sizes = map(nbytes, messages)
                    result = out.note_batch(waiter.port, mine, sizes, *found)
                    await self._attend(waiter, mine, result)
        except BaseException as error:  # (the block is ours: one undo is enough)
            await self._undo(waiter, ready, mine, error)
            raise
        if found is not None:
            return
        for group in groups(messages):
            await self._send(group.pieces(), group.sizes)

    def send_file(
        self, file: AnyFile, offset: int | None = None, nbytes: int | None = None
    ) -> Relay:
        """Send a file's bytes as one message; await what this returns.

        ``file`` is a path, an open file or an fd, which stays open.  It is sent from
        ``offset`` to its end, or ``nbytes`` of it.  Without an offset a path is sent
        from its start, and an open file from its position.  The kernel moves the
        bytes; a byte that changes meanwhile may arrive as it was before or after.

        Cancelled before the first byte was out, it leaves no trace.  Cancelled later,
        the message of a regular file completes, and later messages follow it; the
        position of an open file is after the message at once.

        Raises: as `relay`, which says more.
        """
        check_part(offset, nbytes)

        async def run(relay: Relay) -> int:
            return await relay_file(relay, self, file, offset, nbytes)

        return Relay(run)

    async def flush(self) -> None:
        """Return once everything that was sent or put before this call is out.

        Raises:
            StreamBroken, StreamClosed: some of it will never be out.
        """
        waiter = self._enter()
        # An empty message is over once all messages before it are.
        await self._send((b"",), is_flush=True)
        waiter.port.drain()  # (so that their tickets are done)

    def send_from_thread(self, *buffers: AnyBuffer) -> None:
        """Send from a thread without an event loop, in order with all other messages.

        Blocks this thread until the buffers are yours again.

        Raises: as `send`; RuntimeError in a thread whose event loop is running.
        """
        if has_loop():
            raise RuntimeError("this thread runs an event loop: use await send(...)")
        if self._closed or self._refusal:
            raise StreamClosed(self._refusal or "the stream is closed")
        port = Port()
        operation = Operation(port, [])
        send = partial(self._send_in_thread, port, operation, buffers)
        back = self._out.take_back_blocking
        try:
            or_undo_now(send, partial(back, port, operation, self._rescue_limit))
        finally:
            port.close()

    # -- submitting a message, and taking one back --------------------------------

    def _is_bound_here(self) -> bool:
        """Return whether this stream is bound to the running loop.

        `send` repeats these lines, to save the call.
        """
        if LOOP_IS_CHEAP:
            return running_asyncio_loop() is self._loop
        return self._loop in running_tasks and this_thread() == self._thread

    async def _begin(self, is_flush: bool = False) -> tuple[Waiter, Operation]:
        """Bind to the running loop, and make an operation for one message."""
        waiter = self._enter()
        if self._refusal and not is_flush:
            raise StreamClosed(self._refusal)
        if waiter.entry is not None:
            await waiter.entry()
        if self._out.ready is None and not self._is_exclusive:
            self._out.bind_port(waiter.port, self._budget)
        return waiter, Operation(waiter.port, [])

    def _claim(self, call: Call) -> None:
        """Refuse the call if it must be alone and is not.

        A call is over once it is done, so an interrupted call leaves no claim.  (An
        exclusive stream is not bound to a port, or runs on trio: so none of its calls
        takes `send`'s fast path, and all come here.)
        """
        if self._is_exclusive:
            if self._call is not None and not self._call.done:
                raise anyio.BusyResourceError("writing to")
            self._call = call

    async def _send(
        self,
        buffers: Sequence[AnyBuffer],
        sizes: Sequence[int] = (),
        is_flush: bool = False,
    ) -> None:
        waiter, operation = await self._begin(is_flush)
        submit = partial(self._out.submit, waiter.port, operation, buffers, sizes)
        await self._submit_and_wait(waiter, operation, submit)

    async def _submit_and_wait(
        self, waiter: Waiter, operation: Operation, submit: Callable[[], int]
    ) -> None:
        """Submit, and wait for the end; if interrupted, take the buffers back."""

        async def call() -> None:
            self._claim(operation)
            result = submit()
            if result != 0:
                await self._attend(waiter, operation, result)

        await or_undo(call, partial(self._take_back, waiter, operation))

    async def _attend(self, waiter: Waiter, operation: Operation, result: int) -> None:
        """Return when the message is out; yield to the loop if C asked for that."""
        if result == 1:
            await waiter.yield_to_loop()
        elif result == IN_PROGRESS:
            await waiter.wait(operation)
            if operation.status:
                await self._raise(operation)
        else:
            await self._fail(self._out.refused(result, operation.total))

    async def _attend_put(
        self, waiter: Waiter, operation: Operation, result: int
    ) -> None:
        """Return when the message has room in the queue."""
        if result not in (BUSY, IN_PROGRESS):
            await self._attend(waiter, operation, result)
            return
        if result == BUSY:
            await waiter.wait_for_room(operation)
            if operation.status:
                await self._raise(operation)
        operation.listen(partial(_remember, self._failures, operation))
        if self._budget_is_spent(operation.total):  # a cancel here acts as in `send`
            await waiter.yield_to_loop()

    async def _undo(
        self,
        waiter: Waiter | None,
        ready: Operation | None,
        mine: Operation | None,
        error: BaseException,
    ) -> None:
        """Take back a message, which has its own operation or that which was ready."""
        if mine is None and self._out.is_sending(ready):
            mine = ready
        if mine is not None and waiter is not None:
            await self._take_back(waiter, mine, error)

    async def _take_back(
        self, waiter: Waiter, operation: Operation, error: BaseException
    ) -> None:
        """Undo an interrupted call: make the buffers the caller's again."""
        if isinstance(error, GeneratorExit):  # a coroutine being closed may not await
            self._out.take_back_blocking(waiter.port, operation, self._rescue_limit)
        elif not self._out.take_back(waiter.port, operation, self._rescue_limit):
            await waiter.wait_shielded(operation)
        self._failures.pop(operation, None)

    def _send_in_thread(
        self, port: Port, operation: Operation, buffers: Sequence[AnyBuffer]
    ) -> None:
        try:
            result = self._out.submit(port, operation, buffers)
            if result == IN_PROGRESS:
                port.wait(operation)
                operation.raise_if_failed()
            elif result < 0:
                raise self._out.refused(result, operation.total)
        except StreamBroken as error:
            raise self._explain_in_thread(error) from error.__cause__

    async def _raise(self, operation: Operation) -> NoReturn:
        self._failures.pop(operation, None)
        await self._fail(operation.failure())

    async def _fail(self, error: Exception) -> NoReturn:
        try:
            if isinstance(error, StreamBroken):
                error = await self._explain(error)
            raise error
        finally:
            # An error that its own frame refers to is a cycle, and would keep its
            # callers' objects alive until the next collection, a pool's frame say.
            del error

    async def _explain(self, error: StreamBroken) -> StreamBroken:
        """A hook: a subclass adds what it knows about the peer, say its exit code."""
        return error

    def _explain_in_thread(self, error: StreamBroken) -> StreamBroken:
        """The hook for a thread without a loop; it may block."""
        return error

    # -- the end ------------------------------------------------------------------

    def _take_no_more(self, why: str) -> None:
        """Refuse messages from now on: what is accepted later could be cut off."""
        self._refusal, self._loop = why, NOWHERE

    async def aclose(self, *, linger: float | None = None) -> None:
        """Send what was accepted, then close.  Cancelled, it closes at once.

        Later messages are refused with StreamClosed from the call on.

        If the peer does not read, this waits without end, or for ``linger`` seconds.
        With a ``linger`` of 0 it does not wait: queued messages are lost, and tasks
        that are sending get StreamClosed.

        Raises:
            StreamBroken: an accepted message could not be sent, or not in time.
        """
        if linger is not None and not linger >= 0:
            raise ValueError(f"linger must be at least 0 seconds, not {linger!r}")
        try:
            if not self._closed and linger != 0:
                self._take_no_more(CLOSING)
                await self._drain_within(linger)
                if self._failures:
                    await self._raise(next(iter(self._failures)))
        finally:
            await self._close()
        await checkpoint()

    async def _drain_within(self, seconds: float | None) -> None:
        if seconds is None:
            await self._drain()
            return
        with anyio.move_on_after(seconds) as scope:
            await self._drain()
        if scope.cancelled_caught:
            unsent = self._out.stats().queued_bytes
            late = f"the peer took too long: {unsent:,} bytes were not sent"
            raise StreamBroken(
                f"{late} within {seconds:g} s", 0, unsent
            ) from TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))

    async def _drain(self) -> None:
        for _ in range(2):  # (again, if a thread's message had not been refused yet)
            stats = self._out.stats()
            if stats.queued or stats.waiting:
                self._call = None  # (wait for a task that is sending: do not refuse it)
                await self.flush()
        if (waiter := self._waiter) is not None and runs_here(waiter.loop):
            waiter.port.drain()  # a failure may not have been noted yet

    async def __aexit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if error is None:
            await self.aclose()
            return
        # A flush must not hide the exception of the block, and must not hang.
        with anyio.CancelScope(shield=True):
            try:
                self._take_no_more(CLOSING)
                with anyio.move_on_after(LINGER):
                    await self._drain()
            except (StreamBroken, StreamClosed):
                pass
            finally:
                await self._close()

    @property
    def stats(self) -> Stats:
        out = self._out.stats()
        return replace(
            super().stats,
            bytes_sent=out.bytes,
            messages_sent=out.messages,
            sent_at_once=out.immediate,
            send_calls=out.calls,
            send_waits=out.waits,
            bytes_rescued=out.rescued,
            bytes_queued=out.queued_bytes,
            messages_queued=out.queued,
        )
