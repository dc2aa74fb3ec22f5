"""Batches: many messages, cut into groups that are worth one system call each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from aiozerocopy import _native
from aiozerocopy._native import Lease

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from typing_extensions import Buffer

# Messages up to this size on average are copied into one block: measured, pinning one
# buffer costs as much as copying 8 KiB.
_JOIN_BELOW = 8 << 10
_GROUP_BYTES = 512 << 10
_GROUP_MESSAGES = 512
_PLAIN = frozenset((bytes, bytearray))


class Group(NamedTuple):
    """Messages that go to the kernel together; each stays a message."""

    messages: Sequence[Any]
    sizes: list[int]
    nbytes: int

    def is_cheaper_joined(self) -> bool:
        return self.nbytes <= _JOIN_BELOW * len(self.sizes)


def groups(messages: Iterable[Buffer]) -> Iterable[Group]:
    """Cut a batch, of which no more is taken at a time than fits into a group.

    Raises:
        TypeError, BufferError: one of them is not a buffer that can be sent.
    """
    if isinstance(messages, (list, tuple)):
        # All there is, and its sizes, are known: most batches are one group.
        sizes = _plain_sizes(messages)
        if 0 < len(sizes) <= _GROUP_MESSAGES:
            nbytes = sum(sizes)
            if nbytes <= _GROUP_BYTES:
                return (Group(messages, sizes, nbytes),)
    return _cut(messages)


def _plain_sizes(messages: Sequence[Any]) -> list[int]:
    """The sizes of messages that are nothing but bytes; empty if one may not be."""
    kinds = set(map(type, messages))
    if kinds <= _PLAIN:
        return list(map(len, messages))
    if kinds != {memoryview}:
        return []
    plain = [v.nbytes for v in messages if v.itemsize == 1 and v.c_contiguous]
    return plain if len(plain) == len(messages) else []


def _cut(messages: Iterable[Buffer]) -> Iterator[Group]:
    group: list[Any] = []
    sizes: list[int] = []
    total = 0
    for message in messages:
        size = _native.nbytes(message)
        # (join takes a frame for a buffer from Python 3.12 on only)
        group.append(message.view if isinstance(message, Lease) else message)
        sizes.append(size)
        total += size
        if total >= _GROUP_BYTES or len(group) == _GROUP_MESSAGES:
            yield Group(group, sizes, total)
            group, sizes, total = [], [], 0
    if group:
        yield Group(group, sizes, total)
