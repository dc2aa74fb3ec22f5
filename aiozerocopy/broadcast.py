"""Broadcast: one frame to any number of clients, without a copy for each.

The way of a frame
    `Broadcast.publish` takes it: a pool frame is leased, ``bytes`` are referred to, any
    other array is copied once.  Each encoding in use (an async function of the frame)
    is made once: a `_Message`, which all clients that use it share.  A client whose
    stream takes the message at once costs one system call and no task switch; another
    one queues it as its policy says, and goes on when its stream tells that it is free.

What a slow client holds
    Only the newest two frames are ever borrowed.  When a frame is published, the unsent
    rest of an older one is copied in C, and what else is queued of older ones is copied
    once for all.  So a stuck client holds no slot of a pool, and memory for one frame
    and what its own policy allows to queue.

Everything here runs in the event loop's thread.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from aiozerocopy import _native
from aiozerocopy._audience import Client as Client
from aiozerocopy._audience import ClientStats as ClientStats
from aiozerocopy._audience import ClientTooSlow as ClientTooSlow
from aiozerocopy._audience import DirectClient, FedClient, Message
from aiozerocopy._audience import Encode as Encode
from aiozerocopy._audience import Event as Event
from aiozerocopy._audience import Policy as Policy
from aiozerocopy._errors import StreamClosed
from aiozerocopy._frame_header import Described
from aiozerocopy.framing import FrameHeader, array_over, copy_into, describe, fresh
from aiozerocopy.pool import Frame, FramePool
from aiozerocopy.streams import SendStream

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    import numpy.typing as npt
    from anyio.abc import ByteSendStream
    from typing_extensions import Buffer, Self

SLOTS = 3
GRACE = 1.0  # seconds that closing gives to frames which are on their way
_POOLED = 64 << 10  # bytes of a copied frame; below that a slot is not worth it
_ALIGN = 64  # of a copied payload, whatever its header and metadata need
_TURN = 64  # frames to a client each, before other tasks have their turn


class Published(Described):
    """A published frame, as encoders see it.

    Its memory is borrowed from a pool or the hub's own: it must not be changed.  An
    encoder may keep views of it, and the slot stays leased as long as one lives.
    """

    __slots__ = ("_wire", "header", "metadata", "published_ns", "view")

    def __init__(
        self,
        header: FrameHeader,
        metadata: bytes,
        view: memoryview,
        wire: tuple[Buffer, ...],
    ) -> None:
        self.header = header
        self.metadata = metadata
        self.view = view
        self.published_ns = time.monotonic_ns()
        self._wire = wire

    def keep(self) -> None:
        """Copy what is borrowed, so that its slot is free."""
        if not self.view.readonly:  # (a copy of this kind is)
            payload = self.view.tobytes()
            self.view = memoryview(payload)
            self._wire = (self.header.pack() + self.metadata, payload)

    @property
    def array(self) -> npt.NDArray[Any]:
        """The frame as a NumPy array, without a copy."""
        return array_over(self.view, self.dtype, self.shape)


async def wire(published: Published) -> Sequence[Any]:
    """The wire format of `framing`: what a `FrameReceiver` receives."""
    return published._wire


class Broadcast:
    """Frames for any number of clients; each that watches is an `attach`-ed stream.

    ``slots`` is how many copied frames are kept in memory that is used again and again;
    when slow clients have all of them, frames go to the heap.  Pool frames are leased,
    never copied: three slots are enough for a producer that never waits, whatever the
    clients do.

    The last frame that is a key is kept, one slot of its pool, for clients that come
    later; with ``keep_last=False`` they wait for the next.
    """

    def __init__(self, slots: int = SLOTS, *, keep_last: bool = True) -> None:
        if slots < 1:
            raise ValueError(f"a broadcast needs a slot at least, not {slots}")
        self.sequence = 0  # of the next frame
        self._slots = slots
        self._keeps_last = keep_last
        self._pool: FramePool | None = None
        self._clients: dict[Encode, dict[Client, None]] = {}
        self._last: Published | None = None
        self._messages: dict[Encode, Message] = {}  # of that
        self._turn = anyio.Lock(fast_acquire=True)
        self._spent = 0  # of the turn that others must wait for
        self._closed = False

    @property
    def clients(self) -> tuple[Client, ...]:
        """Who watches now."""
        return tuple(client for group in self._clients.values() for client in group)

    # -- who watches ----------------------------------------------------------------

    def attach(
        self,
        stream: ByteSendStream,
        *,
        policy: Policy = "latest",
        limit: int | None = None,
        deadline: float | None = None,
        encode: Encode = wire,
        on_event: Callable[[Client, Event, int], object] | None = None,
    ) -> Client:
        """Send every frame to this stream too, from now on.

        What happens while the stream has no room:

        ``"latest"``       only the newest frame waits
        ``"drop_oldest"``  ``limit`` frames wait (8), then the oldest is dropped
        ``"block"``        ``limit`` frames wait (1), then `publish` does
        ``"disconnect"``   ``limit`` bytes wait (64 MiB), then it is disconnected

        Whatever the policy, a client of which a frame needs more than ``deadline``
        seconds is disconnected at the next one: its stream is aborted.

        ``encode`` makes of a `Published` the buffers that are sent as one message.  It
        is called once for each frame, not for each client.  ``on_event(client, event,
        sequence)`` hears of frames "sent" and "dropped", and of "closed".

        The stream is borrowed until `Client.wait_closed` returns; others may send on
        it too, between two frames.  One that is not ours is fed by `wait_closed`.

        Raises:
            StreamClosed: the stream, or this broadcast, is closed.
            ValueError: an unknown policy, a limit below one.
        """
        if self._closed:
            raise StreamClosed("the broadcast is closed")
        kind = DirectClient if isinstance(stream, SendStream) else FedClient
        client = kind(self, stream, policy, limit, deadline, encode, on_event)
        if isinstance(stream, SendStream):
            stream._enter()
        self._clients.setdefault(encode, {})[client] = None
        if encode is wire and self._last is not None and wire not in self._messages:
            self._messages[wire] = Message(self._last, self._last._wire)
        if encode in self._messages:
            self._welcome(client, self._messages[encode])
        return client

    def _welcome(self, client: Client, message: Message) -> None:
        """A newcomer gets the last key frame; what came since is of no use to it."""
        client._offer(message)
        client._needs_key = message.sequence + 1 < self.sequence

    async def _catch_up(self, client: Client) -> None:
        """The same where the frame must be encoded first, for the first of its kind."""
        if client._offered >= 0 or self._last is None:
            return
        async with self._turn:
            if client._offered >= 0 or client.closed or self._last is None:
                return
            message = await self._encoded(client.encode, self._last)
            if message is not None and not client.closed:
                self._welcome(client, message)

    def _forget(self, client: Client) -> None:
        group = self._clients.get(client.encode, {})
        group.pop(client, None)
        if not group:
            self._clients.pop(client.encode, None)
            self._messages.pop(client.encode, None)

    # -- what they get ----------------------------------------------------------------

    async def publish(
        self,
        frame: Buffer | Frame,
        *,
        pixel_format: str = "",
        key: bool = True,
        metadata: bytes = b"",
        timestamp_ns: int | None = None,
    ) -> None:
        """Send one frame to all clients.  When this returns, the array is yours again.

        A pool frame is leased until the last client has it: release it, and do not
        change what is in it.  Anything else is copied, once; ``bytes`` not even that.

        It waits for encoders, and for clients with the policy "block"; for no others.
        Cancelled while it waits, some clients may have got the frame.

        Raises:
            StreamClosed: the broadcast is closed.
            TypeError, ValueError, BufferError: a frame or a field that cannot travel.
        """
        if self._spent >= _TURN:
            await self._let_others_run()
        async with self._turn:
            if self._closed:
                raise StreamClosed("the broadcast is closed")
            dtype, shape = describe(frame)
            header = FrameHeader(
                self.sequence,
                time.time_ns() if timestamp_ns is None else timestamp_ns,
                dtype,
                shape,
                pixel_format,
                key,
                len(metadata),
                _native.nbytes(frame),
            )
            published = self._taken(frame, header, metadata)
            self.sequence += 1
            self._remember(published)
            await self._deliver_all(published)
        self._spent += 1 + (published.nbytes >> 14)

    async def _let_others_run(self) -> None:
        self._spent = 0
        await anyio.lowlevel.checkpoint()

    def _remember(self, published: Published) -> None:
        """For newcomers: borrowed as long as it is the newest, then copied."""
        if published.key:
            self._last = published if self._keeps_last else None
            self._messages.clear()
        elif self._last is not None:
            self._last.keep()
            for message in self._messages.values():
                message.keep()

    def _taken(
        self, frame: Buffer | Frame, header: FrameHeader, metadata: bytes
    ) -> Published:
        """The frame in memory that nobody changes."""
        head = header.pack() + metadata
        if isinstance(frame, (Frame, bytes)):
            view = frame.view if isinstance(frame, Frame) else memoryview(frame)
            return Published(header, metadata, view, (head, view))
        # Header and payload in one piece are cheaper to send, a thousand times.
        start = -(-len(head) // _ALIGN) * _ALIGN
        end = start + header.payload_length
        memory = self._memory(end)
        memory[start - len(head) : start] = head
        view = memory[start:end]
        copy_into(view, frame)
        return Published(header, metadata, view, (memory[start - len(head) : end],))

    def _memory(self, n: int) -> memoryview:
        if n < _POOLED:
            return fresh(n)
        if self._pool is None or self._pool.frame_bytes < n:
            self._pool = FramePool(n + n // 4, slots=self._slots)
        try:
            return self._pool.acquire_nowait().view
        except anyio.WouldBlock:
            return fresh(n)

    async def _deliver_all(self, published: Published) -> None:
        encoders = list(self._clients)
        if len(encoders) == 1:
            await self._deliver(encoders[0], published)
        elif encoders:
            async with anyio.create_task_group() as tasks:
                for encode in encoders:
                    tasks.start_soon(self._deliver, encode, published)

    async def _deliver(self, encode: Encode, published: Published) -> None:
        message = await self._encoded(encode, published)
        if message is None:
            return
        started = anyio.current_time()
        waiting = []
        for client in tuple(self._clients.get(encode, ())):
            if client._is_full:
                waiting.append(client)
            else:
                client._offer(message)
            self._spent += 1
            if self._spent >= _TURN:
                await self._let_others_run()
        for client in waiting:
            await client._offer_in_time(message, started)

    async def _encoded(self, encode: Encode, published: Published) -> Message | None:
        """One encoding; None if that failed, which disconnects all who use it."""
        if published is self._last and encode in self._messages:
            return self._messages[encode]
        try:
            message = Message(published, await encode(published))
        except Exception as error:
            for client in tuple(self._clients.get(encode, ())):
                client._fail(error)
            return None
        if published is self._last:
            self._messages[encode] = message
        return message

    # -- the end ----------------------------------------------------------------------

    async def aclose(self, grace: float = GRACE) -> None:
        """Detach all clients, once what they have queued is out or the grace is over.

        The streams stay open: they are whose they were.
        """
        self._closed = True
        with anyio.move_on_after(grace):
            for client in self.clients:
                await client._idle()
        for client in self.clients:
            client.detach()
        self._last = None
        self._messages.clear()
        if self._pool is not None:
            self._pool.close()
        await anyio.lowlevel.checkpoint()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.aclose(GRACE if exc_val is None else 0)

    def __repr__(self) -> str:
        return f"<Broadcast of {self.sequence} frames to {len(self.clients)} clients>"
