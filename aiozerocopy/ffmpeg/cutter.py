"""A cutter makes pieces of encoded bytes, which a client may begin with, or miss."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Piece(NamedTuple):
    """Bytes that belong together: a fragment, a cluster, a packet of a stream."""

    data: bytes
    key: bool  # it begins with a picture that can be decoded without those before it


class Cutter:
    """Cuts one kind of container; what it is fed may end anywhere."""

    # What a client needs before its first piece; known once there is a piece.
    header: bytes = b""

    def feed(self, data: bytes) -> list[Piece]:
        """The pieces that are whole with these bytes.

        Raises:
            ValueError: this is no such container.
        """
        raise NotImplementedError

    def rest(self) -> list[Piece]:
        """The last piece, once there are no more bytes.

        None, where each piece says how long it is.
        """
        return []

    def gap(self) -> Callable[[bytes], bytes]:
        """What all pieces go through after some that a client has missed."""
        return unmarked


def unmarked(data: bytes) -> bytes:
    """As it is: in this container a player sees by itself that pieces are missing."""
    return data
