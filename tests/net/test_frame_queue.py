"""What a queue of frames keeps, and what it drops: a capital letter is a key frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from aiozerocopy.broadcast.frame_queue import FrameQueue

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Letter:
    name: str

    @property
    def key(self) -> bool:
        return self.name.isupper()


def names(letters: Iterable[Letter]) -> str:
    return "".join(letter.name for letter in letters)


def filled(text: str) -> tuple[FrameQueue[Letter], str]:
    """A queue of those letters that it accepts, and the others."""
    queue: FrameQueue[Letter] = FrameQueue()
    refused = []
    for letter in map(Letter, text):
        if queue.accepts(letter):
            queue.append(letter)
        else:
            refused.append(letter)
    return queue, names(refused)


@pytest.mark.parametrize(
    ("text", "limit", "kept", "dropped"),
    [
        ("ABC", 3, "ABC", ""),
        ("ABC", 2, "BC", "A"),
        ("ABC", 0, "", "ABC"),
        ("AbC", 2, "C", "Ab"),  # b cannot be decoded without A
        ("AbcD", 3, "D", "Abc"),
        ("AbCd", 2, "Cd", "Ab"),
        ("Abc", 2, "", "Abc"),
    ],
)
def test_down_to_a_key_frame(text: str, limit: int, kept: str, dropped: str) -> None:
    queue, _ = filled(text)
    assert names(queue.drop_to(limit)) == dropped
    assert names(queue) == kept
    assert len(queue) == len(kept)
    assert queue.needs_key is not bool(kept)


def test_nothing_is_accepted_before_a_key_frame() -> None:
    queue, refused = filled("abCdE")
    assert (names(queue), refused) == ("CdE", "ab")
    queue.drop_to(0)
    assert not queue.accepts(Letter("f"))
    assert queue.accepts(Letter("G"))
    assert queue.accepts(Letter("h"))
