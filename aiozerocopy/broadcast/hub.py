"""The `Broadcast` itself: it takes frames, and holds the clients."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from aiozerocopy._core.change import Turns, in_turn
from aiozerocopy._core.errors import StreamClosed
from aiozerocopy._core.pins import copy_into
from aiozerocopy._net.block import Block
from aiozerocopy._net.connecting import check_numbers, is_async
from aiozerocopy._net.frame_header import bytes_of_metadata
from aiozerocopy.broadcast.clients import FedClient
from aiozerocopy.broadcast.direct_client import DirectClient
from aiozerocopy.broadcast.encodings import Burst, Encoding, SlowEncoding
from aiozerocopy.broadcast.published import Published
from aiozerocopy.framing import FrameHeader, fresh
from aiozerocopy.pool import Frame, FramePool
from aiozerocopy.streams import SendStream

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Coroutine, Sequence

    from anyio.abc import ByteSendStream, TaskGroup
    from typing_extensions import Buffer

    from aiozerocopy.broadcast.clients import Client, Event, Policy
    from aiozerocopy.broadcast.published import Encode

SLOTS = 3
GRACE = 1.0  # seconds that closing gives to frames which are on their way
_POOLED = 64 << 10  # bytes; a shorter copied frame is not worth a slot
_ALIGN = 64  # bytes: where the copied payload begins, behind header and metadata


def wire(published: Published) -> Sequence[Any]:
    """Encode in the wire format of `framing`, for a `FrameReceiver`."""
    return published.wire


class Broadcast(Block):
    """Frames for any number of clients: each is a stream that was `attach`-ed.

    Frames that must be copied go to ``slots`` slots that are used again and again; to
    the heap if they have less than 64 KiB, or while slow clients hold all slots.  Pool
    frames are leased, and copied only for clients that fall behind: with three slots,
    and one more for each async encoder, a producer never waits for a slot, whatever the
    clients do.

    The last key frame is kept for clients that come later.

    Async encoders run in the ``async with`` block of the broadcast.
    """

    def __init__(self, slots: int = SLOTS) -> None:
        check_numbers(1, slots=slots)
        self.sequence: int = 0  # of the next frame
        self._slots = slots
        self._pool: FramePool | None = None
        self._encodings: dict[Encode, Encoding] = {}  # those in use
        self._last: Published | None = None
        self._turns = Turns()
        self._burst = Burst()
        self._tasks: TaskGroup | None = None
        self._closed = False

    @property
    def clients(self) -> tuple[Client, ...]:
        """The clients that are attached now."""
        return tuple(
            client
            for encoding in self._encodings.values()
            for client in encoding.clients
        )

    # -- clients ----------------------------------------------------------------------

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
        ``"block"``        ``limit`` frames wait (1), then `publish` waits
        ``"disconnect"``   ``limit`` bytes wait (64 MiB), then it is disconnected

        Whatever the policy, a client for which a frame takes more than ``deadline``
        seconds is disconnected at the next frame: its stream is aborted.

        ``encode`` turns a `Published` into the buffers that are sent as one message.
        It is called once for each frame, not for each client.  `publish` calls a plain
        function itself.  An async one runs in the background, on the newest frame
        whenever it is done with another.  Its clients miss the frames between, unless
        one of them has the policy "block": then `publish` waits for the encoder.  If an
        encoder raises an exception, that is logged, and its clients are disconnected.

        ``on_event(client, event, sequence)``, a plain function, is called when a frame
        was "sent" or "dropped", and when the client was "closed".

        The stream is borrowed until `Client.wait_closed` returns; you may send on it
        too, between two frames.  A stream that is not a `SendStream` is fed by
        `wait_closed`, and stays attached while anything refers to the client.

        Raises:
            StreamClosed: the stream, or this broadcast, is closed.
            TypeError, ValueError: nothing that can send, an unknown policy, a limit
                below one, a deadline that is not above 0, or an ``on_event`` that is
                not a plain function.
            RuntimeError: an async encoder, without the ``async with`` of the broadcast.
        """
        if self._closed:
            raise StreamClosed("the broadcast is closed")
        kind = DirectClient if isinstance(stream, SendStream) else FedClient
        client = kind(self._forget, stream, policy, limit, deadline, encode, on_event)
        if isinstance(stream, SendStream):
            stream._enter()
        encoding = self._encoding(encode)
        try:
            encoding.welcome(client, self._last, self.sequence)
            return client
        except BaseException:  # a signal's
            client.detach()
            raise

    def _encoding(self, encode: Encode) -> Encoding:
        found = self._encodings.get(encode)
        if found is not None:
            return found
        kind = SlowEncoding if is_async(encode) else Encoding
        made = kind(encode, self._burst)
        if isinstance(made, SlowEncoding):
            self._start_soon(partial(self._run, made), "an async encoder")
        self._encodings[encode] = made
        return made

    def _start_soon(
        self, run: Callable[[], Coroutine[Any, Any, object]], who: str
    ) -> None:
        """Run an encoder, until the end of the ``async with`` block at most.

        Raises: StreamClosed, RuntimeError.
        """
        if self._closed:
            raise StreamClosed("the broadcast is closed")
        if self._tasks is None:
            raise RuntimeError(f"{who} needs `async with` the broadcast")
        self._tasks.start_soon(run)

    async def _run(self, encoding: SlowEncoding) -> None:
        try:
            await encoding.run()
        finally:
            if not encoding.clients:  # if there are some, this was cancelled
                self._remove(encoding)

    def _forget(self, client: Client) -> None:
        encoding = self._encodings.get(client.encode)
        if encoding is not None:
            encoding.forget(client)
            if encoding.is_over:
                self._remove(encoding)

    def _remove(self, encoding: Encoding) -> None:
        """Remove the encoding if it is there: a signal may have kept it out."""
        if self._encodings.get(encoding.encode) is encoding:
            del self._encodings[encoding.encode]

    # -- frames -----------------------------------------------------------------------

    @in_turn
    async def publish(
        self,
        frame: Buffer | Frame,
        *,
        pixel_format: str | None = "",
        key: bool = True,
        metadata: bytes = b"",
        timestamp_ns: int | None = None,
    ) -> None:
        """Send one frame to all clients.  When this returns, the array is yours again.

        A pool frame is leased until the last client has it: release it, and do not
        change its contents.  ``bytes`` are sent as they are; anything else is copied,
        once.  It waits only for clients with the policy "block".  If it is cancelled
        then, some clients may have got the frame.

        Raises:
            StreamClosed: the broadcast is closed.
            TypeError, ValueError, BufferError: the frame or a field cannot be sent.
        """
        await self._burst.add(0)
        if self._closed:
            raise StreamClosed("the broadcast is closed")
        metadata = bytes_of_metadata(metadata)
        header = FrameHeader.of(
            frame, self.sequence, timestamp_ns, pixel_format, key, metadata
        )
        published = self._prepared(frame, header, metadata)
        self.sequence += 1
        self._remember(published)
        await self._deliver(published)
        self._burst.spent += 1 + (published.nbytes >> 14)

    def _remember(self, published: Published) -> None:
        """Keep the last key frame for newcomers, borrowed while it is the newest."""
        if published.key:
            self._last = published
        elif self._last is not None:
            self._last.keep()
        for encoding in self._encodings.values():
            encoding.on_published(published)

    def _prepared(
        self, frame: Buffer | Frame, header: FrameHeader, metadata: bytes
    ) -> Published:
        """Return the frame, in memory that nobody changes."""
        head = header.pack() + metadata
        if isinstance(frame, (Frame, bytes)):
            view = frame.view if isinstance(frame, Frame) else memoryview(frame)
            return Published(header, metadata, view, (head, view))
        # Header and payload in one piece are cheaper to send to a thousand clients.
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

    async def _deliver(self, published: Published) -> None:
        started = anyio.current_time()
        for encoding in tuple(self._encodings.values()):
            if encoding.is_over:  # its last client went without `_forget`
                self._remove(encoding)
        encodings = tuple(self._encodings.values())
        if len(encodings) == 1:
            await encodings[0].publish(published, started)
        elif encodings:
            async with anyio.create_task_group() as tasks:
                for encoding in encodings:
                    tasks.start_soon(encoding.publish, published, started)

    # -- the end ----------------------------------------------------------------------

    async def aclose(self, grace: float = GRACE) -> None:
        """Detach all clients once their queues are empty or the grace is over.

        The streams stay open: the caller still owns them.
        """
        self._closed = True
        try:
            with anyio.move_on_after(grace):
                for encoding in tuple(self._encodings.values()):
                    await encoding.wait_idle()
                for client in self.clients:
                    await client._idle()
        finally:
            for client in self.clients:
                client.detach()
            for encoding in tuple(self._encodings.values()):
                encoding.stop()
            self._last = None
            if self._pool is not None:
                self._pool.close()
        await anyio.lowlevel.checkpoint()

    async def _begin(self, undo: contextlib.AsyncExitStack) -> None:
        self._tasks = await self._tasks_until(undo)

    def __repr__(self) -> str:
        return f"<Broadcast of {self.sequence} frames to {len(self.clients)} clients>"
