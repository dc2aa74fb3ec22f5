"""One encoder to many clients: each gets the pieces in order, from a key frame on.

How a piece travels
    FFmpeg's bytes are cut into pieces once, and all clients share them.  What waits for
    a client is bounded: one that is slow goes on at a key frame, or is ended.  No
    client holds up the encoder, or another one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, Protocol

import anyio
import anyio.lowlevel
from anyio.abc import ObjectReceiveStream

from aiozerocopy._core.change import Change
from aiozerocopy._core.errors import StreamBroken, StreamClosed
from aiozerocopy._net.block import Block
from aiozerocopy.broadcast.clients import ClientTooSlow
from aiozerocopy.broadcast.frame_queue import FrameQueue
from aiozerocopy.ffmpeg.cutter import unmarked

if TYPE_CHECKING:
    import contextlib
    from collections.abc import AsyncIterator, Callable

    from aiozerocopy.ffmpeg.cutter import Cutter, Piece

LIMIT = 8 << 20  # bytes that may wait for one client


class Film(Protocol):
    """An `Encoder`, as its clients know it."""

    @property
    def is_finished(self) -> bool:
        """No more frames will come."""

    def abort(self) -> None:
        """Make no more of it."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Its chunks."""


class Subscription(ObjectReceiveStream[bytes]):
    """What one client gets; close it when the client has left.

    First comes the header, then pieces, each as it is: together they are a film that
    begins with a key frame.
    """

    def __init__(self, clients: Clients, when_slow: Literal["skip", "end"]) -> None:
        self.skipped: int = 0  # pieces, because the client was slow
        self._clients = clients
        self._ends_when_slow = when_slow == "end"
        self._pieces: FrameQueue[Piece] = FrameQueue()
        self._waiting = 0  # bytes
        self._limit = clients._limit
        self._has_header = False
        self._ended = self._closed = False
        self._error: Exception | None = None
        self._mark: Callable[[bytes], bytes] = unmarked
        self._change = Change()

    async def receive(self) -> bytes:
        """The header, and then the next piece.

        Raises:
            EndOfStream: there will be none.
            ClientTooSlow: too much waited, and ``when_slow`` is "end".
            FFmpegError: FFmpeg failed; what was encoded before has come.
            StreamClosed: this was closed.
        """
        await anyio.lowlevel.checkpoint()
        while not self._pieces:
            if self._closed:
                raise StreamClosed("the subscription was closed")
            if self._error is not None:
                raise self._error
            if self._ended:
                raise anyio.EndOfStream
            await self._change.next()
        if not self._has_header:
            self._has_header = True
            if header := self._clients._cutter.header:
                return header
        piece = self._pieces.pop()
        self._waiting -= len(piece.data)
        return self._mark(piece.data)

    async def aclose(self) -> None:
        """Want no more; a task that waits for a piece gets `StreamClosed`."""
        self._closed = True
        self._forget_pieces()
        self._clients._subscriptions.discard(self)
        self._change.happen()
        await anyio.lowlevel.checkpoint()

    def _begin_with(self, pieces: FrameQueue[Piece]) -> None:
        """Let these wait beyond the limit: the client cannot have taken them yet."""
        for piece in pieces:
            self._add(piece)
        self._limit += self._waiting

    def _push(self, piece: Piece) -> None:
        self._add(piece)
        while self._waiting > self._limit and len(self._pieces) > 1:
            if self._ends_when_slow:
                self._forget_pieces()
                self._end(ClientTooSlow(f"more than {self._limit:,} bytes waited"))
                self._clients._subscriptions.discard(self)
                return
            for dropped in self._pieces.drop_to(len(self._pieces) - 1):
                self._waiting -= len(dropped.data)
                self._skip()

    def _add(self, piece: Piece) -> None:
        if self._pieces.accepts(piece):
            self._pieces.append(piece)
            self._waiting += len(piece.data)
            self._change.happen()
        elif self._has_header:
            self._skip()

    def _skip(self) -> None:
        self.skipped += 1
        self._mark = self._clients._cutter.gap()

    def _end(self, error: Exception | None) -> None:
        self._ended, self._error = True, error
        self._change.happen()

    def _forget_pieces(self) -> None:
        self._pieces.drop_to(0)
        self._waiting = 0


class Clients(Block):
    """Those who want what an encoder makes: what `Encoder.clients` returns.

    Its ``async with`` block takes the encoder's chunks, so nobody else may.  At the end
    of the block, if the encoder is finished, all that it still makes is given out.
    Subscriptions keep what waits for them, and then end.
    """

    def __init__(self, encoder: Film, cutter: Cutter, limit: int) -> None:
        self._encoder = encoder
        self._cutter = cutter
        self._limit = limit
        self._subscriptions: set[Subscription] = set()
        self._latest: FrameQueue[Piece] = FrameQueue()  # from the last key frame on
        self._latest_bytes = 0
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()
        self._error: Exception | None = None

    def __len__(self) -> int:
        """How many there are."""
        return len(self._subscriptions)

    def subscribe(self, when_slow: Literal["skip", "end"] = "skip") -> Subscription:
        """All pieces from the last key frame on, for one client.

        A client that leaves more than the limit waiting goes on at a later key frame,
        or with ``when_slow="end"`` gets `ClientTooSlow`: for players that cannot skip.

        Raises:
            ValueError: another ``when_slow``.
        """
        if when_slow not in ("skip", "end"):
            raise ValueError(f"when_slow is 'skip' or 'end', not {when_slow!r}")
        subscription = Subscription(self, when_slow)
        subscription._begin_with(self._latest)
        if self._ended.is_set():
            subscription._end(self._error)
        else:
            self._subscriptions.add(subscription)
        return subscription

    # -- the pieces ---------------------------------------------------------------

    async def _begin(self, undo: contextlib.AsyncExitStack) -> None:
        tasks = await undo.enter_async_context(anyio.create_task_group())
        tasks.start_soon(self._run)

    async def _run(self) -> None:
        try:
            with self._scope:
                async for chunk in self._encoder:
                    self._give(self._cutter.feed(chunk))
                self._give(self._cutter.rest())
        except (StreamBroken, StreamClosed) as error:
            self._give(self._cutter.rest())
            self._error = error
        except ValueError as error:
            self._error = error
            self._encoder.abort()  # or it would wait for ever: nobody takes its chunks
        finally:
            self._ended.set()
            for subscription in tuple(self._subscriptions):
                subscription._end(self._error)
            self._subscriptions.clear()

    def _give(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            self._remember(piece)
            for subscription in tuple(self._subscriptions):
                subscription._push(piece)

    def _remember(self, piece: Piece) -> None:
        """Keep it for newcomers; but not a group without end."""
        if piece.key:
            self._forget()
        if self._latest.accepts(piece):
            self._latest.append(piece)
            self._latest_bytes += len(piece.data)
        if self._latest_bytes > self._limit and len(self._latest) > 1:
            self._forget()

    def _forget(self) -> None:
        self._latest = FrameQueue()
        self._latest_bytes = 0

    async def aclose(self, grace: float = math.inf) -> None:
        """Give out what a finished encoder still makes, then end all subscriptions."""
        try:
            if self._encoder.is_finished:
                with anyio.move_on_after(grace):
                    await self._ended.wait()
        finally:
            self._scope.cancel()
        await anyio.lowlevel.checkpoint()

    def __repr__(self) -> str:
        return f"<Clients: {len(self)} of {self._encoder!r}>"
