"""The clients of a broadcast: one `Client` for each stream, fast, slow or stuck.

A client has at most one message in flight; its policy says whether later frames wait or
are dropped.  Only whole frames are dropped; with a frame go all that follow it up to
the next key frame, which can be decoded without the frames before it.
"""

from __future__ import annotations

import logging
import math
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio

from aiozerocopy._core.change import Change
from aiozerocopy._core.errors import StreamBroken
from aiozerocopy._core.failure import Failure
from aiozerocopy._core.to_all import Seat
from aiozerocopy._net.connecting import check_counts, check_hook, check_seconds
from aiozerocopy._net.foreign_streams import drop_stream, whole_sender
from aiozerocopy.broadcast.frame_queue import FrameQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import ByteSendStream

    from aiozerocopy._net.foreign_streams import MessageStream
    from aiozerocopy.broadcast.published import Encode, Message, Published
    from aiozerocopy.streams import SendStream

Policy: TypeAlias = Literal["latest", "drop_oldest", "block", "disconnect"]
Event: TypeAlias = Literal["sent", "dropped", "closed"]

# Default limits of what waits behind the frame in flight: in frames, or in bytes for
# "disconnect".
LIMITS: dict[Policy, int] = {
    "latest": 1,
    "drop_oldest": 8,
    "block": 1,
    "disconnect": 64 << 20,
}

log: logging.Logger = logging.getLogger("aiozerocopy")


class ClientTooSlow(StreamBroken):
    """The client was disconnected at its limit, or after its deadline."""


@dataclass(frozen=True)
class ClientStats:
    """Counters of a client: what it got so far, and what waits for it."""

    sent: int  # frames that were sent completely
    dropped: int
    queued: int  # frames that wait, the one in flight included
    bytes_sent: int
    age_ns: int  # of the last frame that was sent, when it was sent completely
    waiting_ns: int  # how long the frame in flight has been in flight


class Client:
    """One stream that gets the frames: what `Broadcast.attach` returns.

    The stream stays the caller's to close, once `wait_closed` has returned.
    """

    def __init__(
        self,
        forget: Callable[[Client], object],
        stream: ByteSendStream,
        policy: Policy,
        limit: int | None,
        deadline: float | None,
        encode: Encode,
        on_event: Callable[[Client, Event, int], object] | None,
    ) -> None:
        if policy not in tuple(LIMITS):  # (it may be unhashable)
            raise ValueError(
                f"policy must be one of {', '.join(LIMITS)}, not {policy!r}"
            )
        if not callable(encode):
            raise TypeError(f"encode must be a function, not {encode!r}")
        check_counts(1, limit=limit)
        check_seconds(deadline=deadline)
        check_hook(on_event)
        self.policy = policy
        self.encode = encode
        self._failure: Failure[Exception] | None = None  # why it was disconnected
        self._forget = forget  # removes this client from the hub
        self.stream: ByteSendStream = stream
        self._limit = LIMITS[policy] if limit is None or policy == "latest" else limit
        self._deadline = deadline
        self._on_event = on_event
        self._pending: FrameQueue[Message] = FrameQueue()
        self._current: Message | None = None  # in flight
        self._since = 0.0  # when the message in flight was begun
        self._last_offered = -1  # the sequence of the last message
        self.closed: bool = False
        self._change = Change()  # a frame has left, a frame came, or it was closed
        self._dropped = 0
        self._is_held = False
        self._seat = Seat()  # counts what was sent

    @property
    def stats(self) -> ClientStats:
        """Counters, as of now."""
        busy = self._current is not None
        tally = self._seat.tally
        return ClientStats(
            sent=tally.messages,
            dropped=self._dropped,
            queued=len(self._pending) + busy,
            bytes_sent=tally.bytes,
            age_ns=tally.age_ns,
            waiting_ns=int((time.monotonic() - self._since) * 1e9) if busy else 0,
        )

    @property
    def error(self) -> Exception | None:
        """Why the client was disconnected."""
        return None if self._failure is None else self._failure.again()

    def detach(self) -> None:
        """Send no more: a frame that is partly out completes, all others are
        dropped."""
        if not self.closed:
            self._end()
        self._stop_borrowing()

    async def wait_closed(self) -> None:
        """Return when the client was detached, or disconnected: see ``error``.

        A server's handler awaits this.  A stream that is not a `SendStream`, such as
        TLS, is fed by this call, and gets nothing without it.
        """
        while not self.closed:
            await self._change.next()

    async def _idle(self) -> None:
        """Return when nothing waits and nothing is in flight."""
        while not self.closed and (
            self._current is not None or (self._pending and not self._is_held)
        ):
            await self._change.next()

    # -- for the hub --------------------------------------------------------------

    def _hold(self, is_held: bool) -> None:
        """Hold frames back, as if the stream had no room; or go on sending them."""
        self._is_held = is_held
        if is_held:
            self._seat.leave()
        elif self._pending and self._current is None:
            self._advance()

    @property
    def _is_full(self) -> bool:
        """Must `publish` wait for this client?"""
        return self.policy == "block" and len(self._pending) >= self._limit

    def _offer(self, message: Message) -> None:
        """Send the message now, or queue it."""
        if self._takes(message):
            self._send(message)

    def _takes(self, message: Message) -> bool:
        """Is the message to be sent now?  If not, it was queued or dropped."""
        if self.closed or message.sequence <= self._last_offered:
            return False
        self._last_offered = message.sequence
        if not self._pending.accepts(message):
            self._drop(message)
            return False
        if self._current is None and not self._is_held:
            return True
        self._queue(message)
        return False

    async def _offer_in_time(self, message: Message, started: float) -> None:
        """`_offer` when the queue has room; disconnect the client at the deadline."""
        deadline = math.inf if self._deadline is None else started + self._deadline
        with anyio.CancelScope(deadline=deadline):
            while self._is_full and not self.closed:
                await self._change.next()
        if self._is_full and not self.closed:
            self._fail(ClientTooSlow(f"a frame waited for {self._deadline:g} s"))
        self._offer(message)

    def _queue(self, message: Message) -> None:
        current, deadline = self._current, self._deadline
        if current and deadline and time.monotonic() - self._since > deadline:
            self._fail(ClientTooSlow(f"a frame took more than {self._deadline:g} s"))
            return
        self._pending.append(message)
        if self.policy == "disconnect":
            queued = sum(m.nbytes for m in self._pending)
            queued += current.nbytes if current is not None else 0
            if queued > max(self._limit, message.nbytes):
                self._fail(ClientTooSlow(f"{queued:,} bytes were queued"))
        elif self.policy != "block":
            self._drop(*self._pending.drop_to(self._limit))
        for waiting in self._pending:  # the newest two frames may stay in their slots
            if waiting.sequence < message.sequence - 1:
                waiting.keep()

    def _drop(self, *frames: Message | Published) -> None:
        """Count frames that the client does not get."""
        for frame in frames:
            self._dropped += 1
            self._tell("dropped", frame.sequence)

    def _send(self, message: Message) -> None:
        """Give the message to the stream; `_note_sent` is called at once or later."""
        raise NotImplementedError

    def _stop_borrowing(self) -> None:
        """Borrow no memory any more for the frame in flight."""

    def _note_sent(self, message: Message, now: int) -> None:
        """Count a message that was sent completely at ``now`` (`time.monotonic_ns`)."""
        self._seat.count(message.nbytes, now - message.published_ns)
        self._tell("sent", message.sequence)

    def _advance(self) -> None:
        """Send the frames that wait, as nothing is in flight; wake waiting tasks."""
        while self._pending and not (self._current or self._is_held or self.closed):
            self._send(self._pending.pop())
        self._change.happen()

    def _fail(self, error: Exception) -> None:
        if self.closed:
            return
        self._failure = Failure(error)
        self._end()
        if isinstance(error, ClientTooSlow):
            self._abort()

    def _abort(self) -> None:
        """Close the stream at once."""

    def _end(self) -> None:
        """Send no more.  Safe to repeat: a signal may come before ``closed`` is set."""
        self._seat.leave()
        self._forget(self)
        self._change.happen()
        self.closed = True
        if self._current is not None:  # it is counted when it ends
            self._current = self._current.without_memory()
        self._drop(*self._pending.drop_to(0))
        self._tell("closed", -1)

    def _tell(self, event: Event, sequence: int) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(self, event, sequence)
        except Exception:  # (a logger could keep it, and so the frame's memory)
            told = traceback.format_exc()
            log.error("the hook of a broadcast's client failed:\n%s", told)

    def __repr__(self) -> str:
        state = "closed" if self.closed else self.policy
        return f"<Client {state} {self.stream!r}>"


class FedClient(Client):
    """A client over a stream that is not ours (TLS): `wait_closed` sends it copies."""

    _scope: anyio.CancelScope | None = None

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._sender: SendStream | MessageStream = whole_sender(self.stream)

    def _offer(self, message: Message) -> None:
        super()._offer(message)
        self._change.happen()

    def _send(self, message: Message) -> None:
        message.keep()  # so that nothing is borrowed
        self._current, self._since = message, time.monotonic()

    async def wait_closed(self) -> None:
        while not self.closed:
            if self._current is None:
                await self._change.next()
            else:
                await self._feed(self._current)

    async def _feed(self, message: Message) -> None:
        is_out = False
        try:
            with anyio.CancelScope() as self._scope:
                await self._sender.send(*message.buffers)
                is_out = True
        except Exception as error:
            self._fail(error)
        except BaseException:
            self._fail(StreamBroken("a frame was cut off: wait_closed() was cancelled"))
            raise
        finally:
            self._current = None
            if is_out:
                self._note_sent(message, time.monotonic_ns())
            else:
                self._drop(message)
        if isinstance(self.error, ClientTooSlow):
            await drop_stream(self.stream)
        self._advance()

    def _abort(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
