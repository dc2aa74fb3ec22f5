"""Rpc: calls and their answers, over a ring in each direction.

The states of a call, on the side that calls
    waiting     its record is not in the ring: after a cancel or an error the other side
                gets at most a "forget" for a number that it does not know
    asked       the other side has it, or will have it
    answered    by a result, an error, or the end of a ring
    forgotten   its caller was cancelled, or its time is up: a record tells the other
                side at once if there is room, otherwise with a later call, or when a
                later answer is read; its own answer is dropped if it still comes

Nothing runs in the background.  One of the tasks that wait for an answer reads the
ring, hands the answers out, and lets another one read at the end of its call.  The
first of the tasks that wait for room for a call reads, too: the other side may take no
call until there is room for its answers.  If a signal handler raises while an answer is
handed out, the next reader begins with that answer.

On the other side each call is a task of its own, in `serve`, which takes no more calls
while many answers wait for room: so a caller that reads no answers blocks only itself.

A call travels as two records, a question and an answer.  A record's payload begins with
32 bytes, little-endian:

    0   u64   number of the call; the caller counts them
    8   u64   deadline: CLOCK_MONOTONIC of this machine in ns; 0: none
    16  u32   kind: 1 a call, 2 forget that call, 3 its result, 4 its error
    20        zeros

The `type_id` of both is the method that is called.  After the 32 bytes come the
buffers; for an error, its kind and its text in UTF-8, with a zero byte in between.
"""

from __future__ import annotations

import asyncio
import struct
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import AsyncResource, TaskGroup

from aiozerocopy._core.borrows import and_end
from aiozerocopy._core.change import Change, Turns, in_turn
from aiozerocopy._core.errors import StreamBroken, StreamClosed
from aiozerocopy._core.failure import Failure
from aiozerocopy._net.block import must_end
from aiozerocopy.shm.record import Record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from typing_extensions import Buffer

    from aiozerocopy.shm.ring import Ring


_HEAD = struct.Struct("<QQI12x")

CALL, FORGET, RESULT, ERROR = 1, 2, 3, 4
_LONGEST_TEXT = 4000  # bytes of an error
_MOST_UNSENT = 64  # answers
_LONGEST = 1e9  # seconds: the other side is not told of a longer timeout


def _head_of(record: Record, *kinds: int) -> tuple[int, int, int] | None:
    """Return number, deadline and kind; None: not part of a call, or another kind."""
    if len(record) < _HEAD.size:
        return None
    number, deadline_ns, kind = _HEAD.unpack_from(record.view)
    return (number, deadline_ns, kind) if kind in kinds else None


class RemoteError(Exception):
    """The handler of the other side has failed; ``kind`` is its exception's name."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}" if text else kind)
        self.kind = kind
        self.text = text


class Request(Record):
    """A call: its ``method``, its bytes as a `Record` has them, and its deadline."""

    __slots__ = ("deadline", "method")

    def __init__(self, record: Record, deadline: float | None) -> None:
        super().__init__(record.view[_HEAD.size :], record.type_id)
        self.method: int = record.type_id
        # Seconds of time.monotonic(); None: there is no limit.
        self.deadline: float | None = deadline


class _Call:
    def __init__(self, number: int) -> None:
        self.number = number
        self.answer: Record | Failure[Exception] | None = None
        self._event: anyio.Event | None = None

    def end(self, answer: Record | Failure[Exception]) -> None:
        """Give it an answer, unless it has one, and wake its task; again if need be."""
        if self.answer is None:
            self.answer = answer
        self.wake()

    @property
    def waits(self) -> bool:
        return self._event is not None and not self._event.is_set()

    def wake(self) -> None:
        if self._event is not None:
            self._event.set()

    async def wait(self) -> None:
        """Return when the call was answered, or its task may read the ring."""
        self._event = anyio.Event()
        try:
            await self._event.wait()
        finally:
            self._event = None


class Rpc(AsyncResource):
    """Calls to the other process, or from it: one side calls, the other serves.

    The side that sends on ``requests`` and receives on ``replies`` uses `call`, the
    other side `serve`.  The Rpc owns the rings, and closes both.
    """

    def __init__(self, requests: Ring, replies: Ring) -> None:
        """Raises: ValueError: not one ring in each direction."""
        if requests.sends == replies.sends:
            raise ValueError(
                "an Rpc needs two rings: this side sends on one and receives on the "
                "other"
            )
        self._requests = requests
        self._replies = replies
        self._calls: dict[int, _Call] = {}
        self._count = 0
        self._forgotten: list[int] = []  # calls, by their numbers
        self._reader: _Call | None = None
        self._come: Record | None = None  # an answer that is being handed out
        self._failure: Failure[Exception] | None = None
        self._scopes: dict[int, anyio.CancelScope] = {}  # of the calls being handled
        self._unsent = 0  # answers that wait for room
        self._room = Change()
        self._turns = Turns()  # of the calls that ask

    # -- calling ----------------------------------------------------------------------

    async def call(
        self,
        method: int,
        *buffers: Buffer,
        timeout: float | None = None,  # noqa: ASYNC109 - the other side keeps it too
    ) -> Record:
        """Call a method of the other side, and return its answer.

        Any number of tasks may call, and the answers come in any order.  When this
        returns, the buffers are yours.  The answer is a `Record`, in the ring's own
        memory: release it soon, or the other side has no room for answers.

        The handler on the other side is cancelled when the ``timeout`` (seconds) is
        over.  If the call is cancelled, so is the handler, once the other side has been
        told: see the states at the top of this file.

        Raises:
            RemoteError: the handler has failed.
            TimeoutError: there was no answer in time.
            StreamBroken: the other side has died, or has closed the Rpc.
            StreamClosed: this side is closed.
            TypeError, ValueError, BufferError: as `Ring.send`.
        """
        if not self._requests.sends:
            raise TypeError("this side of the Rpc serves, it does not call")
        self._count += 1
        call = _Call(self._count)
        run = partial(self._run, call, method, buffers, timeout)
        await and_end(run, partial(self._end, call))
        assert call.answer is not None
        if isinstance(call.answer, Failure):
            raise call.answer.again()
        return call.answer

    async def _run(
        self,
        call: _Call,
        method: int,
        buffers: tuple[Buffer, ...],
        timeout: float | None,  # noqa: ASYNC109
    ) -> None:
        deadline = 0
        if timeout is not None and timeout < _LONGEST:
            deadline = time.monotonic_ns() + max(int(timeout * 1e9), 0)
        with anyio.fail_after(timeout):
            if self._failure is not None:
                raise self._failure.again()
            self._say_forgotten()
            self._calls[call.number] = call
            head = _HEAD.pack(call.number, deadline, CALL)
            await self._ask(call, method, (head, *buffers))
            await self._answered(call)

    def _end(self, call: _Call) -> None:
        """Forget a call, and let another task read; may be called twice."""
        if call.number in self._calls and call.answer is None:
            self._forgotten.append(call.number)
        self._calls.pop(call.number, None)
        self._say_forgotten()
        if self._reader is call:
            self._reader = None
        if self._reader is None:
            for other in self._calls.values():
                if other.waits:
                    other.wake()
                    break

    @in_turn
    async def _ask(self, call: _Call, method: int, buffers: tuple[Buffer, ...]) -> None:
        """Send the call, and read answers while there is no room for it."""
        if self._requests._try_send(buffers, method):
            return
        failure: Failure[Exception] | None = None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._answered, call)
            try:
                await self._requests.send(*buffers, type_id=method)
            except Exception as error:  # (the group would wrap it)
                failure = Failure(error)
            tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure.again()

    async def _answered(self, call: _Call) -> None:
        """Return when the call has its answer; meanwhile this or another task reads."""
        try:
            while call.answer is None:
                if self._reader not in (None, call):
                    await call.wait()
                    continue
                self._reader = call
                if self._come is None:
                    # (one statement: no signal handler runs before it is stored)
                    self._come = await self._replies.receive()
                record = self._come
                self._hand_out(record)
                self._come = None
                record.release()
        except (anyio.EndOfStream, StreamBroken, StreamClosed) as error:
            self._fail(error)

    def _hand_out(self, record: Record) -> None:
        """End the call that the record answers; may be called twice."""
        self._say_forgotten()
        head = _head_of(record, RESULT, ERROR)
        if head is None:
            self._fail(
                StreamBroken("the other side sent a record that is not an answer")
            )
            return
        number, _, kind = head
        call = self._calls.get(number)
        if call is None:  # (it was forgotten)
            return
        body = record.view[_HEAD.size :]
        if kind == ERROR:
            name, _, text = bytes(body).decode(errors="replace").partition("\0")
            call.end(Failure(RemoteError(name, text)))
        else:
            call.end(Record(body, record.type_id))

    def _fail(self, error: Exception) -> None:
        """End all calls with an error: no answer will come any more."""
        if isinstance(error, anyio.EndOfStream):
            error = StreamBroken("the other side has closed the Rpc")
        self._failure = Failure(error)
        for call in self._calls.values():
            call.end(self._failure)

    def _say_forgotten(self) -> None:
        """Tell the other side which calls were forgotten, if there is room now."""
        while self._forgotten and self._failure is None:
            head = _HEAD.pack(self._forgotten[0], 0, FORGET)
            try:
                if not self._requests._try_send([head], 0):
                    return
            except (StreamBroken, StreamClosed):
                pass  # (the other side is gone)
            self._forgotten.pop(0)

    # -- serving ----------------------------------------------------------------------

    async def serve(self, handler: Callable[[Request], Awaitable[Any]]) -> None:
        """Answer each call by ``await handler(request)``, until the other side closes.

        The handler returns a buffer, several in a tuple or a list, or None.  Calls are
        handled at the same time, each in a task.  A call that is forgotten, or whose
        time is up, is cancelled.  If the handler raises, the caller gets the exception
        as `RemoteError`.  If `serve` is cancelled, the calls that are being handled get
        no answer, even if it is called again: close the Rpc to tell their callers.

        A request is in the ring's own memory until nothing refers to it: if you keep
        many, the ring fills.

        Raises:
            StreamBroken: the other side has died, or sent a record that is no call.
            StreamClosed: this side is closed.
        """
        if self._requests.sends:
            raise TypeError("this side of the Rpc calls, it does not serve")
        self._scopes.clear()  # (those of calls that were cancelled before they began)
        async with anyio.create_task_group() as tasks:
            try:
                async for record in self._requests:
                    self._begin(record, handler, tasks)
                    while self._unsent >= _MOST_UNSENT:
                        await self._room.next()
            except (StreamBroken, StreamClosed) as error:
                self._failure = Failure(error)
            tasks.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure.again()

    def _begin(
        self,
        record: Record,
        handler: Callable[[Request], Awaitable[Any]],
        tasks: TaskGroup,
    ) -> None:
        head = _head_of(record, CALL, FORGET)
        if head is None:
            raise StreamBroken("the other side sent something that is not a call")
        number, deadline_ns, kind = head
        scope = self._scopes.get(number)
        if kind == FORGET:
            if scope is not None:
                scope.cancel()
            return
        if scope is not None:
            raise StreamBroken(f"the other side used the number {number} for two calls")
        deadline = deadline_ns / 1e9 if deadline_ns else None
        request = Request(record, deadline)
        record.release()
        scope = self._scopes[number] = anyio.CancelScope()
        if deadline is not None:
            scope.deadline = anyio.current_time() + deadline - time.monotonic()
        tasks.start_soon(self._handle, number, request, handler)

    async def _handle(
        self,
        number: int,
        request: Request,
        handler: Callable[[Request], Awaitable[Any]],
    ) -> None:
        method = request.method
        try:
            with self._scopes[number]:
                try:
                    kind, buffers = RESULT, _buffers(await handler(request))
                except Exception as error:
                    kind, buffers = ERROR, (_worded(error),)
                except asyncio.CancelledError as error:
                    if must_end():  # (or the call's own scope, which swallows it)
                        raise
                    kind, buffers = ERROR, (_worded(error),)
                finally:
                    del request
                await self._reply(number, kind, buffers, method)
        finally:
            self._scopes.pop(number, None)

    async def _reply(
        self, number: int, kind: int, buffers: tuple[Any, ...], method: int
    ) -> None:
        self._unsent += 1
        try:
            head = _HEAD.pack(number, 0, kind)
            await self._replies.send(head, *buffers, type_id=method)
        except (TypeError, ValueError, BufferError) as error:  # it cannot be sent
            head = _HEAD.pack(number, 0, ERROR)
            await self._replies.send(head, _worded(error), type_id=method)
        except (StreamBroken, StreamClosed):
            return  # (`serve` gets an error from the other ring)
        finally:
            self._unsent -= 1
            self._room.happen()

    # -- the end ----------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close both rings; calls that wait for an answer get StreamClosed."""
        await self._requests.aclose()
        await self._replies.aclose()

    def __repr__(self) -> str:
        what = "calls" if self._requests.sends else "serves"
        return f"<Rpc {what}, {len(self._calls)} on their way>"


def _buffers(result: Any) -> tuple[Any, ...]:
    if result is None:
        return ()
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _worded(error: BaseException) -> bytes:
    """Return the record's bytes for an exception, which `_hand_out` decodes."""
    try:
        text = str(error)
    except Exception:
        text = "<exception str() failed>"  # (as a traceback says)
    named = f"{type(error).__name__}\0{text}".encode(errors="replace")
    return named[:_LONGEST_TEXT]
