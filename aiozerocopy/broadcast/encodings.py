"""Encodings: what clients want of a frame, made once for all clients that use it.

`Encoding` calls a plain function, while the frame is being published.  `SlowEncoding`
runs an async function in a task of its own: the publisher and the clients of other
encodings go on meanwhile.

The states of a frame in a `SlowEncoding`
    waiting    the newest frame; once a newer one is published, this one is dropped for
               the clients of this encoding
    encoding   one at a time; its memory is borrowed until the encoder has returned
    encoded    offered to each client, which sends, queues or drops it
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import anyio
import anyio.lowlevel

from aiozerocopy._core.change import Change
from aiozerocopy._core.waiter import current_waiter
from aiozerocopy._net.block import must_end
from aiozerocopy.broadcast.direct_client import (
    DirectClient,
    Lineup,
    send,
    stop_borrowing,
)
from aiozerocopy.broadcast.frame_queue import FrameQueue
from aiozerocopy.broadcast.published import Message, Published

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from aiozerocopy.broadcast.clients import Client
    from aiozerocopy.broadcast.published import Encode

log: logging.Logger = logging.getLogger("aiozerocopy")

BURST = 64  # small frames, to one client each, before other tasks may run
_SMALL = 64 << 10  # bytes; a frame counts once more for each multiple of it
_CHEAP = 4  # this many clients to which nothing is sent now count as one


class Burst:
    """The work that was done since other tasks last could run."""

    def __init__(self) -> None:
        self.spent: int = 0

    def share(self, nbytes: int) -> int:
        """Return to how many clients one burst may send a frame of this size."""
        return max(BURST // (1 + nbytes // _SMALL), 1)

    async def add(self, spent: int) -> None:
        """Count the work; let other tasks run if it makes a burst."""
        self.spent += spent
        if self.spent >= BURST:
            self.spent = 0
            await anyio.lowlevel.checkpoint()


class Audience:
    """A set of clients, in the order in which they came.

    Clients over streams of ours are kept.  A client that is fed by its own
    `wait_closed` is referred to weakly: it goes with the last task that could call
    `wait_closed`, however that task ends, so no frames wait in vain.

    The kept clients are sorted: a frame costs little for those that are in step.  They
    are sorted again only when one came, left or is out of step.
    """

    def __init__(self) -> None:
        self._kept: dict[DirectClient, None] = {}
        self._fed: WeakKeyDictionary[Client, None] = WeakKeyDictionary()
        self._sorted: tuple[Lineup, tuple[DirectClient, ...]] | None = None

    def add(self, client: Client) -> None:
        if isinstance(client, DirectClient):
            self.sort_again()
            self._kept[client] = None
        else:
            self._fed[client] = None

    def discard(self, client: Client) -> None:
        if isinstance(client, DirectClient):
            self._kept.pop(client, None)
            self.sort_again()
        else:
            self._fed.pop(client, None)

    def sort(self, offered: int) -> tuple[Lineup | None, tuple[Client, ...]]:
        """Return the clients in step, if any client is kept, and all others.

        ``offered`` is the newest frame that was offered to all.
        """
        if not self._kept:
            return None, tuple(self._fed)
        if self._sorted is None or not self._sorted[0].is_here():
            waiter = current_waiter()
            sides: dict[bool, list[DirectClient]] = {True: [], False: []}
            for client in self._kept:
                sides[client._is_in_step(waiter, offered)].append(client)
            self._sorted = Lineup(sides[True], waiter), tuple(sides[False])
        lineup, apart = self._sorted
        return lineup, (*apart, *self._fed)

    def sort_again(self) -> None:
        """Note that a client came, left, or may be in step now."""
        self._sorted = None

    def __iter__(self) -> Iterator[Client]:
        """Iterate over the present clients; they may leave meanwhile."""
        return iter((*self._kept, *self._fed))

    def __len__(self) -> int:
        return len(self._kept) + len(self._fed)


class Encoding:
    """An encoder that returns at once, and the clients that use it."""

    def __init__(self, encode: Encode, burst: Burst) -> None:
        self.encode = encode
        self.clients: Audience = Audience()
        self._last: Message | None = None  # the last key frame, for newcomers
        self._offered = -1  # the newest frame that was offered to all
        self._burst = burst

    def welcome(self, client: Client, last: Published | None, upcoming: int) -> None:
        """Add a newcomer, and give it the last key frame.

        ``upcoming`` is the sequence of the next frame: if frames were published since
        ``last``, only a key frame can follow it.
        """
        self.clients.add(client)
        if last is not None and (message := self._encoded(last)) is not None:
            self._give(client, message, upcoming)

    def _give(self, client: Client, message: Message, upcoming: int) -> None:
        client._offer(message)
        client._pending.needs_key = message.sequence + 1 < upcoming

    def on_published(self, published: Published) -> None:
        """Stop borrowing the kept frame's memory: a newer frame was published."""
        if published.key:
            self._last = None
        elif self._last is not None:
            self._last.keep()

    async def publish(self, published: Published, started: float) -> None:
        """Offer the frame to all clients; wait for those that must not miss it."""
        if (message := self._encoded(published)) is not None:
            await self._offer_to_all(message, started)

    def _encoded(self, published: Published) -> Message | None:
        """Return one message for all clients.  If that fails, disconnect them."""
        if self._last is not None and self._last.sequence == published.sequence:
            return self._last
        try:
            buffers: Any = self.encode(published)
            return self._keep(Message(published, buffers))
        except Exception as error:
            self._fail(error)
            return None

    def _keep(self, message: Message) -> Message:
        """Keep the last key frame for newcomers."""
        if message.key:
            self._last = message
        return message

    def _fail(self, error: Exception) -> None:
        for client in self.clients:
            client._fail(error)
        # (a logger could keep the error, and so the frame's memory)
        told = "".join(traceback.format_exception(error))
        log.error("an encoder failed, and its clients were disconnected:\n%s", told)

    async def _offer_to_all(self, message: Message, started: float) -> None:
        lineup, others = self.clients.sort(self._offered)
        if message.sequence > self._offered:  # else only newcomers lack it
            self._offered = message.sequence
            if lineup is not None:
                others = (*await self._send_to(lineup, message), *others)
        full: list[Client] = []
        for start in range(0, len(others), BURST):
            part = others[start : start + BURST]
            idle = self._sorted_out(part, message, full)
            await self._burst.add((len(part) - len(idle)) // _CHEAP)
            share = self._burst.share(message.nbytes)
            for first in range(0, len(idle), share):
                some = idle[first : first + share]
                send(some, message)
                self.clients.sort_again()
                await self._burst.add(BURST * len(some) // share)
        for client in full:
            await client._offer_in_time(message, started)

    async def _send_to(self, lineup: Lineup, message: Message) -> list[DirectClient]:
        """Send to the clients in step; return those that must be made ready first."""
        apart: list[DirectClient] = []
        share = self._burst.share(message.nbytes)
        for first in range(0, len(lineup), share):
            part = range(first, min(first + share, len(lineup)))
            apart += lineup.send(part, message)
            await self._burst.add(BURST * len(part) // share)
        return apart

    def _sorted_out(
        self, clients: Iterable[Client], message: Message, full: list[Client]
    ) -> list[DirectClient]:
        """Return the clients to which the message can be sent at once.

        The others queue it, and let go of older frames.  Clients that `publish` must
        wait for are added to ``full``.
        """
        idle: list[DirectClient] = []
        behind: list[DirectClient] = []
        for client in clients:
            if client._is_full:
                full.append(client)
            elif not isinstance(client, DirectClient):
                client._offer(message)
            elif client._takes(message):
                idle.append(client)
            elif client._is_behind(message.sequence - 1):
                behind.append(client)
        stop_borrowing(behind, message)
        return idle

    def forget(self, client: Client) -> None:
        """Remove the client."""
        self.clients.discard(client)

    @property
    def is_over(self) -> bool:
        """May this be removed, as no client is left?"""
        return not self.clients

    async def wait_idle(self) -> None:
        """Return when nothing waits to be encoded."""

    def stop(self) -> None:
        """Encode no more."""


class SlowEncoding(Encoding):
    """An async encoder; `run` is its task."""

    def __init__(self, encode: Encode, burst: Burst) -> None:
        super().__init__(encode, burst)
        self._waiting: FrameQueue[Published] = FrameQueue()  # one at most
        self._scope = anyio.CancelScope()
        self._is_idle = True
        self._change = Change()  # a frame waits, it is idle, or no client is left

    def welcome(self, client: Client, last: Published | None, upcoming: int) -> None:
        self.clients.add(client)
        if self._last is not None:
            self._give(client, self._last, upcoming)
        elif last is not None and self._is_idle:
            self._take(last)
            self._waiting.needs_key = last.sequence + 1 < upcoming

    def on_published(self, published: Published) -> None:
        """Keep the last key frame until the next one is encoded."""
        if self._last is not None:
            self._last.keep()

    async def publish(self, published: Published, started: float) -> None:
        """Leave the frame to `run`; wait only if a client must get the frame before."""
        if any(client.policy == "block" for client in self.clients):
            await self.wait_idle()
        self._take(published)

    def _take(self, published: Published) -> None:
        if not self._waiting.accepts(published):
            self._drop(published)
            return
        self._waiting.append(published)
        for dropped in self._waiting.drop_to(1):
            self._drop(dropped)
        if self._waiting:
            self._is_idle = False
            self._change.happen()

    def _drop(self, published: Published) -> None:
        for client in self.clients:
            client._drop(published)

    async def run(self) -> None:
        """Encode while there are clients."""
        try:
            with self._scope:
                while self.clients:
                    if self._waiting:
                        await self._encode_next()
                    else:
                        self._set_idle()
                        await self._change.next()
        except asyncio.CancelledError:
            if must_end():
                raise
            self._fail(RuntimeError("the encoder, or what it awaited, was cancelled"))
        finally:
            self._waiting.drop_to(0)
            self._set_idle()

    async def _encode_next(self) -> None:
        published = self._waiting.pop()
        try:
            encode: Any = self.encode
            message = self._keep(Message(published, await encode(published)))
        except Exception as error:
            self._fail(error)
            # (The traceback would be in a cycle with the stack frames of a worker
            # thread's future.)
            error.__traceback__ = None
            return
        finally:
            del published  # its memory can be used again
        await self._offer_to_all(message, anyio.current_time())

    def _set_idle(self) -> None:
        self._is_idle = True
        self._change.happen()

    async def wait_idle(self) -> None:
        while not self._is_idle:
            await self._change.next()

    def stop(self) -> None:
        self._scope.cancel()

    def forget(self, client: Client) -> None:
        super().forget(client)
        self._change.happen()  # `run` ends if no client is left

    @property
    def is_over(self) -> bool:
        """Always False: `run` removes itself."""
        return False
