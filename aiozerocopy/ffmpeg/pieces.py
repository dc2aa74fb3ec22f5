"""A stream of encoded bytes, in pieces that a client may begin with, or miss."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Piece(NamedTuple):
    """Bytes that belong together: a fragment, a cluster, a packet of a stream."""

    data: bytes
    key: bool  # it begins with a picture that can be decoded without those before it


class Cutter(Protocol):
    """Cuts one kind of container; what it is fed may end anywhere."""

    @property
    def header(self) -> bytes:
        """What a client needs before its first piece; known once there is a piece."""

    def feed(self, data: bytes) -> list[Piece]:
        """The pieces that are whole with these bytes.

        Raises:
            ValueError: this is no such container.
        """

    def rest(self) -> list[Piece]:
        """The last piece, once there are no more bytes."""

    def gap(self) -> Callable[[bytes], bytes]:
        """What all pieces go through after some that a client has missed."""


def unmarked(data: bytes) -> bytes:
    """As it is: in this container a player sees by itself that pieces are missing."""
    return data
