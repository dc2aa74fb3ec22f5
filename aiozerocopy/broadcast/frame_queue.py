"""The queue of frames that wait for a slow client."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator


class HasKey(Protocol):
    """A frame, in any form."""

    @property
    def key(self) -> bool:
        """Can the frame be decoded without those before it?"""


F = TypeVar("F", bound=HasKey)


class FrameQueue(Generic[F]):
    """Frames in order; the oldest are dropped, with all up to the next key frame.

    Methods that drop frames return them, so that the caller can count them.
    """

    def __init__(self) -> None:
        self.needs_key: bool = True  # frames are of no use before the next key frame
        self.frames: collections.deque[F] = collections.deque()

    def __len__(self) -> int:
        return len(self.frames)

    def __iter__(self) -> Iterator[F]:
        return iter(self.frames)

    def accepts(self, frame: F) -> bool:
        """Can the frame be decoded after those that were accepted before?"""
        if self.needs_key:
            self.needs_key = not frame.key
        return not self.needs_key

    def append(self, frame: F) -> None:
        """Add a frame that was accepted."""
        self.frames.append(frame)

    def pop(self) -> F:
        """Take the oldest."""
        return self.frames.popleft()

    def drop_to(self, limit: int) -> list[F]:
        """Drop the oldest until no more than ``limit`` wait.

        Those that cannot be decoded without a dropped one are dropped, too.
        """
        dropped = []
        while len(self.frames) > limit:
            dropped.append(self.frames.popleft())
            while self.frames and not self.frames[0].key:
                dropped.append(self.frames.popleft())
            self.needs_key = not self.frames
        return dropped
