"""SendStream: `send`, `put`, `send_many`, and how they keep their promise.

The way of one send
    `SendStream.send` -> `_native.Channel.send` -> `azc_send_home` in C, which tries at
    once if nothing is queued (but see there for a pipe's big messages).  All out:
    return.  Else the pump finishes it without the loop or the GIL, and `_finish`
    awaits the `Operation`.

The states of a message, and who owns its buffers
    in line   (Python, `_Room`)   the caller: nothing of it has been submitted
    queued    (C)                 borrowed; a cancel drops it without a trace
    started   (C)                 borrowed; a cancel copies the rest (rescue)
    done                          the caller
Order is decided by the queue in C alone; the line before it is first in, first out,
and nobody overtakes it.
"""

from __future__ import annotations

import collections
from collections.abc import Awaitable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import ByteSendStream

from aiozerocopy import _native
from aiozerocopy._batches import groups
from aiozerocopy._bound import Bound, Stats
from aiozerocopy._errors import StreamBroken, StreamClosed
from aiozerocopy._native import Channel, Operation, Port
from aiozerocopy._waiter import Waiter, has_loop, running_asyncio_loop

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Buffer


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
        self, stream: SendStream, waiter: Waiter, result: Operation | int
    ) -> None:
        self._stream = stream
        self._waiter = waiter
        self._operation = None if isinstance(result, int) else result

    def done(self) -> bool:
        """True once the buffers are the caller's (sent, or failed)."""
        return self._operation is None or self._operation.done

    def __await__(self) -> Generator[Any, None, None]:
        return self._wait().__await__()

    async def _wait(self) -> None:
        if self._operation is not None:
            await self._waiter.wait(self._operation)
            if self._operation.status < 0:
                await self._stream._raise(self._operation)


class _Room:
    """How much is queued, and the line of those who wait for room.

    Operations refer to this and not to the stream, so that a stream which nobody
    holds any more is collected even while something is queued.
    """

    __slots__ = ("failed", "limit", "line", "queued")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.queued = 0
        self.line: collections.deque[Operation] = collections.deque()
        self.failed: list[Operation] = []  # that were put, and nobody has asked

    def is_full(self, n: int) -> bool:
        return self.queued > 0 and self.queued + n > self.limit

    def take(self, operation: Operation) -> None:
        self.queued += operation.total

        def give_back(n: int = operation.total) -> None:
            self.queued -= n
            self.wake()

        operation.on_end.append(give_back)

    def watch(self, operation: Operation) -> None:
        """Remember if it fails, until somebody was told."""

        def remember() -> None:
            if operation.status < 0:
                self.failed.append(operation)

        operation.on_end.append(remember)

    def forget(self, operation: Operation) -> None:
        """Somebody was told, or gave it up."""
        if operation in self.failed:
            self.failed.remove(operation)

    def wake(self) -> None:
        """Let the first in line look again."""
        if self.line:
            self.line[0].end(0, 0, 0)

    def wake_all(self) -> None:
        for place in list(self.line):
            place.end(0, 0, 0)


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
        Bound.__init__(self)
        self._out = channel
        self._rescue_limit = rescue_limit
        self._room = _Room(queue_limit)
        self._line = self._room.line
        self._eof = False

    def _on_close(self) -> None:
        self._room.wake_all()

    def _channels(self) -> Sequence[Channel]:
        return (self._out,)

    def _bind(self) -> Waiter:
        waiter = super()._bind()
        self._out.settle(waiter.port, self._turn)
        return waiter

    # -- sending ------------------------------------------------------------------

    async def send(self, *buffers: Buffer) -> None:
        """Send the buffers as one message; when this returns they are yours again.

        The buffers are borrowed until then: they must not be changed meanwhile, and
        a bytearray cannot be resized.

        Cancelled before the first byte was out, it leaves no trace.  Cancelled later,
        the unsent rest is copied (up to ``rescue_limit``), the message completes, and
        the buffers are yours at once.

        Raises:
            StreamBroken: the peer left; ``bytes_sent`` of this message were out.
            StreamClosed: the stream is or was closed on this side.
            TypeError, BufferError, ValueError: not a buffer that can be sent; nothing
                of the message was, and the stream is as before.
        """
        waiter = self._waiter
        if waiter is None or running_asyncio_loop() is not self._home or self._line:
            waiter = await self._admit()
        try:
            if len(buffers) == 1:
                left = self._out.send(buffers[0])
            else:
                left = self._send_pieces(waiter, buffers)
        except StreamBroken as error:
            await self._explain(error)
            raise
        if left:
            await self._attend(waiter, left)

    async def put(self, *buffers: Buffer) -> Ticket:
        """Queue the buffers as one message, waiting for room only.

        They stay borrowed until the ticket is done.  There is room while less than
        ``queue_limit`` bytes are queued; one message of any size always fits.
        A cancel while it waits for room leaves no trace; one after that, while it
        lets others run, acts as in `send`.

        Raises: as `send`, for what is known at once.
        """
        size = sum(map(_native.nbytes, buffers))
        waiter = await self._admit(size)
        left = await self._submit(waiter, buffers)
        if not isinstance(left, int):
            self._room.take(left)
            self._room.watch(left)
            if self._turn_is_over(size):  # who cancels now gets no ticket
                await self._or_take_back(waiter, left, waiter.give_turn())
        elif left:
            await waiter.give_turn()
        return Ticket(self, waiter, left)

    async def send_many(self, messages: Iterable[Buffer]) -> None:
        """Send messages in as few system calls as possible, each contiguous.

        Small ones are copied into one block, which is cheaper than to borrow each.
        Cancelled, those not begun leave no trace, and the one in progress completes.

        Raises: as `send`; what came before the failing group was sent.
        """
        self._enter()
        for group in groups(messages):
            waiter = self._waiter
            if waiter is None or running_asyncio_loop() is not self._home or self._line:
                waiter = await self._admit()
            try:
                if group.is_cheaper_joined():
                    left = self._out.send_joined(*group)
                else:
                    left = self._send_pieces(waiter, group.messages, group.sizes)
            except StreamBroken as error:
                await self._explain(error)
                raise
            if left:
                await self._attend(waiter, left)

    async def flush(self) -> None:
        """Return once everything that was sent or put before this call is out.

        Raises:
            StreamBroken, StreamClosed: it is not and will not be.
        """
        waiter = await self._admit()
        # An empty message has its turn when all before it have had theirs.
        left = await self._submit(waiter, (b"",))
        if isinstance(left, int):
            waiter.port.drain()  # all before it is over: let their tickets know
        if left:
            await self._attend(waiter, left)

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
        try:
            result = self._out.send_pieces(port, buffers)
            if not isinstance(result, int):
                try:
                    port.wait(result)
                except BaseException:
                    self._take_back_now(port, result)
                    raise
                result.raise_if_failed()
        except StreamBroken as error:
            self._explain_in_thread(error)
            raise
        finally:
            port.close()

    # -- how a message gets in, and how one gets out again ------------------------

    async def _admit(self, size: int | None = None) -> Waiter:
        """Return when a message may be submitted: with a size, when it has room.

        The caller must submit without awaiting anything in between.
        """
        waiter = self._enter()
        if self._eof:
            raise StreamClosed("send_eof was called before")
        if waiter.entry is not None:
            await waiter.entry()
        if self._line or (size is not None and self._room.is_full(size)):
            await self._wait_in_line(waiter, size)
        return waiter

    def _send_pieces(
        self, waiter: Waiter, buffers: Sequence[Buffer], sizes: Sequence[int] = ()
    ) -> Operation | int:
        """Hand a message, or with sizes a batch, to C.  Returns what is left to do:
        the operation, or 1 if it is others' turn, or 0."""
        result = self._out.send_pieces(waiter.port, buffers, sizes)
        return self._turn_is_over(result) if isinstance(result, int) else result

    async def _submit(
        self, waiter: Waiter, buffers: Sequence[Buffer]
    ) -> Operation | int:
        """The same; it awaits only if that fails."""
        try:
            return self._send_pieces(waiter, buffers)
        except StreamBroken as error:
            await self._explain(error)
            raise

    async def _attend(self, waiter: Waiter, left: Operation | int) -> None:
        if isinstance(left, int):
            await waiter.give_turn()
        else:
            await self._finish(waiter, left)

    async def _wait_in_line(self, waiter: Waiter, size: int | None) -> None:
        """Return when it is our turn and, unless size is None, when it has room."""
        line = self._line
        place = Operation(0, (), 0)
        line.append(place)
        try:
            while line[0] is not place or (
                size is not None and self._room.is_full(size)
            ):
                place.done = False
                await waiter.wait(place)
                if self._closed:
                    raise StreamClosed("the stream was closed")
        finally:
            line.remove(place)
            self._room.wake()

    async def _finish(self, waiter: Waiter, operation: Operation) -> None:
        """Wait for the end of it."""
        self._room.take(operation)
        await self._or_take_back(waiter, operation, waiter.wait(operation))
        if operation.status < 0:
            await self._raise(operation)

    async def _or_take_back(
        self, waiter: Waiter, operation: Operation, event: Awaitable[None]
    ) -> None:
        """Await something; if we are cancelled there, take the buffers back first."""
        try:
            await event
        except GeneratorExit:  # nobody may await any more
            self._take_back_now(waiter.port, operation)
            raise
        except BaseException:
            if not self._out.cancel(waiter.port, operation, self._rescue_limit):
                await waiter.wait_shielded(operation)
            self._room.forget(operation)
            raise

    def _take_back_now(self, port: Port, operation: Operation) -> None:
        """The same where nothing can be awaited.  A system call that has the buffer
        is waited for; if a peer holds it up, the buffer stays borrowed."""
        if not operation.done and not self._out.cancel(
            port, operation, self._rescue_limit
        ):
            port.wait(operation, seconds=1)

    async def _raise(self, operation: Operation) -> None:
        self._room.forget(operation)
        try:
            operation.raise_if_failed()
        except StreamBroken as error:
            await self._explain(error)
            raise

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
        if self._closed:
            return
        try:
            await self._drain()
            if self._room.failed:
                await self._raise(self._room.failed[0])
        finally:
            await self._close()

    async def _drain(self) -> None:
        if self._line or self._out.stats().queued:
            await self.flush()

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
