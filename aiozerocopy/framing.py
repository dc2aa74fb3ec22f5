"""Frames over any byte stream: `FrameSender`, `FrameReceiver`, and the wire format.

The colours of frames are in `frames`.

A frame on the wire is a header of 128 bytes (docs/pages/wire-format.md), its metadata,
and its payload.  Over our own streams the three go out in one gathered send, without a
copy, and the payload is received straight into its place.  Memory is allocated only
after the header's checksum and limits were checked.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import anyio

from aiozerocopy._core.batches import give_back
from aiozerocopy._core.borrows import or_undo
from aiozerocopy._core.errors import IncompleteReceive
from aiozerocopy._core.failure import Failure
from aiozerocopy._core.leases import Lease, buffer_of
from aiozerocopy._core.receiving import Receives
from aiozerocopy._net.connecting import check_counts, check_seconds
from aiozerocopy._net.foreign_streams import exact_receiver, whole_sender
from aiozerocopy._net.frame_header import DTYPES as DTYPES
from aiozerocopy._net.frame_header import HEADER_SIZE as HEADER_SIZE
from aiozerocopy._net.frame_header import MAX_BYTES as MAX_BYTES
from aiozerocopy._net.frame_header import MAX_METADATA as MAX_METADATA
from aiozerocopy._net.frame_header import CorruptHeader as CorruptHeader
from aiozerocopy._net.frame_header import Described, bytes_of_metadata
from aiozerocopy._net.frame_header import FrameError as FrameError
from aiozerocopy._net.frame_header import FrameHeader as FrameHeader
from aiozerocopy._net.frame_header import FrameTooLarge as FrameTooLarge
from aiozerocopy._net.frame_header import FrameTooSlow as FrameTooSlow
from aiozerocopy._net.frame_header import TruncatedFrame as TruncatedFrame
from aiozerocopy._net.frame_header import UnknownVersion as UnknownVersion
from aiozerocopy._net.frame_header import WrongMagic as WrongMagic
from aiozerocopy._net.frame_header import describe as describe
from aiozerocopy.pool import FramePool

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from anyio.abc import ByteReceiveStream, ByteSendStream

    from aiozerocopy._core.batches import Source
    from aiozerocopy._core.leases import AnyBuffer
    from aiozerocopy.pool import Frame

    Memory = bytearray | memoryview


FRAME_TIMEOUT = 30.0  # seconds, and a second more for each SLOWEST bytes
SLOWEST = 128 << 10  # bytes a second: a link of 1 Mbit/s


# ---- sending --------------------------------------------------------------------


class FrameSender:
    """Sends arrays and frames over a stream, which stays the caller's to close.

    Any number of tasks may send.  ``sequence`` is the number of the next frame.
    """

    def __init__(self, stream: ByteSendStream) -> None:
        self.sequence: int = 0
        self._stream = whole_sender(stream)

    async def send(
        self,
        frame: AnyBuffer | Frame,
        *,
        timestamp_ns: int | None = None,
        pixel_format: str | None = "",
        key: bool = True,
        metadata: bytes = b"",
    ) -> None:
        """Send one frame; when this returns, its memory is yours again.

        The array is borrowed until then; over our own streams it is not copied.
        ``timestamp_ns`` is by default the time of day.  If this is cancelled, the frame
        goes out whole or not at all; over a stream of another package a frame that was
        cut off breaks the sender.

        Raises:
            TypeError, ValueError, BufferError: a frame or a field that cannot travel;
                nothing was sent.
            StreamBroken, StreamClosed: as the stream's own ``send``.
        """
        metadata = bytes_of_metadata(metadata)
        header = FrameHeader.of(
            frame, self.sequence, timestamp_ns, pixel_format, key, metadata
        )
        head = header.pack()
        self.sequence += 1
        payload: Any = frame  # (a tensor is not a buffer to the type checker)
        await self._stream.send(head, metadata, payload)


# ---- receiving ------------------------------------------------------------------


class ReceivedFrame(Described, Lease):
    """A frame that was received, in memory of its own, a slot, or the caller's."""

    def __init__(
        self,
        header: FrameHeader,
        metadata: bytes,
        view: memoryview,
        slot: Frame | None = None,
    ) -> None:
        self.header = header
        self.metadata = metadata
        Lease.__init__(self, view)
        self._slot = slot

    def release(self) -> None:
        super().release()
        if self._slot is not None:
            self._slot.release()
            self._slot = None

    def __repr__(self) -> str:
        return f"<ReceivedFrame {self.sequence}: {self.dtype} {self.shape}>"


class FrameReceiver(Receives["ReceivedFrame"]):
    """Receives frames from a stream, which stays the caller's to close.

    If there is a ``pool``, payloads go into its slots; the limit is ``max_bytes``, or
    the size of a slot if that is less.  One task at a time may receive.  A cancelled
    `receive` loses nothing.  After a `FrameError` the beginning of the next frame is
    unknown, and each further call raises the same error: close the stream.

    A slot is taken once the header and the metadata of a frame have come.  So that a
    peer cannot keep it by sending a byte now and then, the payload has to come within
    ``frame_timeout`` seconds plus one for each 128 KiB, which lets a large frame come
    over a slow link; the metadata likewise.  With None there is no limit.
    """

    def __init__(
        self,
        stream: ByteReceiveStream,
        pool: FramePool | None = None,
        max_bytes: int = MAX_BYTES,
        *,
        frame_timeout: float | None = FRAME_TIMEOUT,
    ) -> None:
        self._check(pool, max_bytes, frame_timeout)
        self._timeout = frame_timeout
        self._stream: Source = exact_receiver(stream)
        self._pool = pool
        self._limit = min(max_bytes, pool.frame_bytes) if pool else max_bytes
        self._head = bytearray(HEADER_SIZE)
        self._failure: Failure[FrameError] | None = None
        self._is_busy = False  # a task receives
        self._waits_for_slot: Callable[[], AbstractContextManager[object]] = nullcontext

    @staticmethod
    def _check(
        pool: FramePool | None, max_bytes: int, frame_timeout: float | None
    ) -> None:
        """Raises: TypeError, ValueError: one of a receiver's options cannot be used."""
        check_seconds(frame_timeout=frame_timeout)
        check_counts(0, max_bytes=max_bytes)
        if max_bytes is None:
            raise TypeError("max_bytes must be a whole number, not None")
        if pool is not None and not isinstance(pool, FramePool):
            raise TypeError(f"pool must be a FramePool or None, not {pool!r}")

    async def receive(self, into: AnyBuffer | None = None) -> ReceivedFrame:
        """Return the next frame; with ``into`` its payload is received there.

        ``into`` is any writable buffer that is large enough, an array say.  It is
        borrowed until this returns.

        Raises:
            EndOfStream: no more frames will come.
            FrameError: no acceptable frame has come; the subclass says why.
            StreamBroken, StreamClosed, BusyResourceError: as receiving from the stream.
            ValueError: ``into`` is too small; the frame can still be received.
        """
        if self._failure is not None:
            raise self._failure.again()
        if self._is_busy:
            raise anyio.BusyResourceError("reading from")
        try:
            return await self._receive(into)
        except FrameError as error:
            self._failure = Failure(error)
            raise

    async def _receive(self, into: AnyBuffer | None) -> ReceivedFrame:
        come: list[Memory] = []  # the parts that have come
        slot: Frame | None = None
        view: memoryview | None = None

        async def receive() -> ReceivedFrame:
            nonlocal come, slot, view
            try:
                self._is_busy = True
                # (one statement: no signal handler runs before `come` has it)
                come += await self._stream.receive_exactly(self._head) or (self._head,)
            except IncompleteReceive as error:
                raise TruncatedFrame(error.received, HEADER_SIZE) from error
            header = FrameHeader.unpack(self._head, self._limit)
            metadata = bytearray(header.metadata_length)
            await self._fill(metadata, come, header)
            if self._pool and into is None:
                with self._waits_for_slot():
                    slot = await self._pool.acquire()
            view = _payload_view(header.payload_length, into, slot)
            await self._fill(view, come, header)
            frame = ReceivedFrame(header, bytes(metadata), view, slot)
            self._is_busy = False
            return frame

        async def undo(_: BaseException) -> None:
            give_back(self._stream, come, view, slot)
            self._is_busy = False

        return await or_undo(receive, undo)

    async def _fill(
        self, memory: Memory, come: list[Memory], header: FrameHeader
    ) -> None:
        """Receive the next part of the frame, and append it to ``come``."""
        if not len(memory):
            return
        before = sum(map(len, come))
        total = HEADER_SIZE + header.metadata_length + header.payload_length
        seconds = math.inf
        if self._timeout is not None:
            seconds = self._timeout + len(memory) / SLOWEST
        try:
            with anyio.move_on_after(seconds) as scope:
                # (one statement, as in `_receive`)
                come += await self._stream.receive_exactly(memory) or (memory,)
        except anyio.EndOfStream:
            raise TruncatedFrame(before, total) from None
        except IncompleteReceive as error:
            raise TruncatedFrame(before + error.received, total) from error
        if scope.cancelled_caught:
            raise FrameTooSlow(
                f"{len(memory):,} bytes of a frame did not come within {seconds:.0f} "
                f"seconds (frame_timeout={self._timeout:g})"
            )


_look: Callable[[memoryview], tuple[int, bool, bool]] = attrgetter(
    "nbytes", "readonly", "c_contiguous"
)


def _payload_view(n: int, into: AnyBuffer | None, slot: Frame | None) -> memoryview:
    """Return memory for the payload: the caller's, a slot's, or new."""
    if slot is not None:
        return slot.view[:n]
    if into is None:
        return fresh(n)
    data = buffer_of(into, writable=True)
    # (no variable refers to the view, which a traceback would keep)
    nbytes, is_readonly, is_contiguous = _look(memoryview(data))
    if nbytes < n:
        raise ValueError(f"{n:,} bytes do not fit into {nbytes:,}")
    if is_readonly or not is_contiguous:
        raise BufferError("this memory is read-only, or not contiguous")
    # (memoryview.cast knows only native formats)
    if not isinstance(data, (bytes, bytearray, memoryview)) and hasattr(data, "dtype"):
        data = data.reshape(-1).view("u1")
    return memoryview(data).cast("B")[:n]


def fresh(n: int) -> memoryview:
    """Return new memory, which is not cleared first if NumPy is installed."""
    try:
        import numpy
    except ImportError:
        return memoryview(bytearray(n))
    return memoryview(numpy.empty(n, "u1"))
