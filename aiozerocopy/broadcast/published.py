"""A published frame, and what is made of it: one message for each encoding."""

from __future__ import annotations

import copy
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from aiozerocopy._core.leases import array_over
from aiozerocopy._core.pins import nbytes
from aiozerocopy._core.to_all import Shared
from aiozerocopy._net.frame_header import Described

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Buffer

    from aiozerocopy._net.frame_header import FrameHeader


class Published(Described):
    """A published frame, as encoders see it.

    Its memory belongs to a pool or to the hub: do not change it.  An encoder may keep
    views of it; the slot stays leased as long as a view lives.
    """

    __slots__ = ("header", "metadata", "published_ns", "view", "wire")

    def __init__(
        self,
        header: FrameHeader,
        metadata: bytes,
        view: memoryview,
        wire: tuple[Buffer, ...],
    ) -> None:
        self.header: FrameHeader = header
        self.metadata: bytes = metadata
        self.view: memoryview = view
        self.published_ns: int = time.monotonic_ns()
        # Header, metadata and payload, in few pieces.
        self.wire: tuple[Buffer, ...] = wire

    def keep(self) -> None:
        """Copy borrowed memory, so that its slot is free."""
        if not self.view.readonly:  # (such a copy is, and so are ``bytes``)
            payload = self.view.tobytes()
            self.view = memoryview(payload)
            self.wire = (self.header.pack() + self.metadata, payload)

    @property
    def array(self) -> npt.NDArray[Any]:
        """The frame as a NumPy array, without a copy."""
        return array_over(self.view, self.dtype, self.shape)


# An encoder: it returns the buffers that are sent as one message.
Encode: TypeAlias = Callable[[Published], Sequence[Any] | Awaitable[Sequence[Any]]]


class Message:
    """One frame in one encoding, shared by all clients that use it."""

    __slots__ = (
        *("_is_borrowed", "_shared", "buffers", "key", "nbytes"),
        *("published_ns", "sequence"),
    )

    def __init__(self, published: Published, buffers: Sequence[Any]) -> None:
        self.buffers: Sequence[Any] = buffers
        try:
            self.nbytes: int = sum(map(nbytes, buffers))
        except TypeError:
            given = type(buffers).__name__
            if isinstance(buffers, (list, tuple)):
                given += f" of {', '.join(type(each).__name__ for each in buffers)}"
            raise TypeError(
                f"encode must return a list of buffers, not {given}"
            ) from None
        self.sequence: int = published.sequence
        self.key: bool = published.key
        self.published_ns: int = published.published_ns
        self._is_borrowed = any(type(buffer) is not bytes for buffer in buffers)
        self._shared: Shared | None = None

    def shared(self) -> Shared:
        """Return its memory, pinned once for all clients that send it."""
        if self._shared is None:
            self._shared = Shared(self.buffers)
        return self._shared

    def without_memory(self) -> Message:
        """Return a copy without the memory, for the counters."""
        message = copy.copy(self)
        message.buffers, message._shared = (), None
        return message

    def keep(self) -> None:
        """Copy borrowed memory, once for all clients, so that its slot is free."""
        if self._is_borrowed:
            self.buffers = (self.shared().copied(),)
            self._shared = None
            self._is_borrowed = False
