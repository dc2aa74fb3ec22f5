"""Many messages, in groups that are handed to C in one call: `SendStream.send_many`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from aiozerocopy._core.channel import CHANGED
from aiozerocopy._core.leases import memory_of
from aiozerocopy._core.pins import nbytes, steady_total

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from aiozerocopy._core.leases import AnyBuffer

# Messages up to this size on average are copied into one block: measured, pinning one
# buffer costs as much as copying 8 KiB.
_JOIN_BELOW = 8 << 10
_GROUP_BYTES = 512 << 10
_GROUP_MESSAGES = 512


def joined(messages: Sequence[Any]) -> bytes:
    """Join small messages into one block; return b"" if they do not seem small.

    This is the fast path, in which every step costs as much as a message.  So it checks
    only the first message.  If the length of another counts rows or items instead of
    bytes, the block does not have the expected size, and is not used.
    """
    if not 0 < len(messages) <= _GROUP_MESSAGES or not _is_plain(messages[0]):
        return b""
    total = steady_total(messages)
    if total < 0 or total > min(_GROUP_BYTES, _JOIN_BELOW * len(messages)):
        return b""
    try:
        block = b"".join(messages)
    except TypeError:  # one of them is not contiguous
        return b""
    return block if len(block) == total else b""


def _is_plain(message: object) -> bool:
    """Return whether the object's length counts bytes."""
    if type(message) is memoryview:
        return message.itemsize == 1 and message.ndim == 1
    return type(message) is bytes or type(message) is bytearray


class Group(NamedTuple):
    """Messages that go to the kernel together; each stays contiguous."""

    messages: Sequence[Any]
    sizes: Sequence[int]
    nbytes: int

    def pieces(self) -> Sequence[Any]:
        """Return what to send: the messages, or one block if that is cheaper.

        Raises:
            ValueError: the size of a message has changed.
        """
        is_large = self.nbytes > _JOIN_BELOW * len(self.sizes)
        if is_large or steady_total(self.messages) < 0:
            return self.messages
        block = b"".join(self.messages)
        if len(block) != self.nbytes:
            raise ValueError(CHANGED)
        return (block,)


def groups(messages: Iterable[AnyBuffer]) -> Iterator[Group]:
    """Cut a batch into groups; take no more messages at a time than a group needs.

    Raises:
        TypeError, BufferError: one of them is not a buffer that can be sent.
    """
    group: list[Any] = []
    sizes: list[int] = []
    total = 0
    for message in messages:
        size = nbytes(message)
        # (before Python 3.12 `join` does not accept a frame as a buffer)
        group.append(memory_of(message))
        sizes.append(size)
        total += size
        if total >= _GROUP_BYTES or len(group) == _GROUP_MESSAGES:
            yield Group(group, sizes, total)
            group, sizes, total = [], [], 0
    if group:
        yield Group(group, sizes, total)
