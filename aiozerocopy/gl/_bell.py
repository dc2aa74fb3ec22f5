"""Tasks that wait for something which another thread may bring about."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import current_token

if TYPE_CHECKING:
    from collections.abc import Callable


class Bell:
    """`ring` from any thread, even out of a garbage collection: `wait` looks again."""

    def __init__(self) -> None:
        self._wakes: set[Callable[[], Any]] = set()

    async def wait(self, ready: Callable[[], bool]) -> None:
        """Return once ``ready()``; without a checkpoint where it is so already."""
        while not ready():
            event = anyio.Event()
            wake = partial(_in_loop(), event.set)
            self._wakes.add(wake)
            try:
                if not ready():  # it may have become so just before we were heard
                    await event.wait()
            finally:
                self._wakes.discard(wake)

    def ring(self) -> None:
        for wake in tuple(self._wakes):
            with contextlib.suppress(RuntimeError):  # its loop is over
                wake()


def _in_loop() -> Callable[..., Any]:
    """What runs a function in the running loop's thread."""
    loop: Any = current_token().native_token
    call: Callable[..., Any] = getattr(loop, "call_soon_threadsafe", None) or (
        loop.run_sync_soon
    )
    return call
