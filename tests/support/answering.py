"""Answers of C that a test cannot provoke at the right moment."""

from collections.abc import Callable
from typing import Any

import pytest

from aiozerocopy._core.binding import lib
from aiozerocopy._core.channel import Channel
from aiozerocopy._core.waiter import Waiter


class Answering:
    """Stand in for ``lib``, with other functions or answers for the given names."""

    def __init__(
        self,
        name: str,
        answer: int | Callable[..., int],
        **others: int | Callable[..., int],
    ) -> None:
        for one, gives in {name: answer, **others}.items():
            setattr(self, one, gives if callable(gives) else lambda *_, it=gives: it)

    def __getattr__(self, name: str) -> Any:
        return getattr(lib, name)


def interrupt(*_: object) -> Any:
    """Stand in for a function that a signal's handler interrupts."""
    raise KeyboardInterrupt


class InUse:
    """A system call still uses the buffers when they are taken back.

    ``waits`` tells how the package waited for the end of that call.
    """

    def __init__(self, waiter: Waiter | None, patched: pytest.MonkeyPatch) -> None:
        assert waiter is not None
        self.waits: set[str] = set()
        take_back = Channel.take_back

        def still_used(*arguments: Any) -> bool:
            take_back(*arguments)
            return False

        async def wait_shielded(*_: object) -> None:
            self.waits.add("awaits")

        patched.setattr(Channel, "take_back", still_used)
        patched.setattr(waiter.port, "wait", lambda *_: self.waits.add("blocks"))
        patched.setattr(waiter, "wait_shielded", wait_shielded)


class TwiceInterrupted:
    """Interrupt `place`, and then the first of the ``tries`` to take buffers back."""

    def __init__(self, place: str, patched: pytest.MonkeyPatch) -> None:
        self.tries = 0
        take_back = Channel.take_back

        def interrupt(*_: object) -> Any:
            raise KeyboardInterrupt("first")

        def try_to_take_back(*arguments: Any) -> bool:
            self.tries += 1
            if self.tries == 1:
                raise KeyboardInterrupt("second")
            return take_back(*arguments)

        patched.setattr(f"aiozerocopy._core.{place}", interrupt)
        patched.setattr(Channel, "take_back", try_to_take_back)
