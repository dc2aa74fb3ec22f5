"""What receives do at their end, held up for a test."""

import threading
from typing import Any

from links import until

from aiozerocopy._core.binding import ffi


class Gate:
    """To be given to `Ahead.begin` in place of a conversion, or before one."""

    def __init__(self) -> None:
        self._begun, self._open = threading.Event(), threading.Event()
        self._callbacks: list[Any] = []  # which C has

    def before(self, then: Any = None) -> Any:
        """``then`` itself, which waits from now on."""
        then = Nothing() if then is None else then
        convert, with_what = then.function, then.argument

        def run(_: object) -> None:
            self._begun.set()
            assert self._open.wait(10)
            if convert is not None:
                convert(with_what)

        then.function = ffi.callback("void(void *)", run)
        self._callbacks.append(then.function)
        return then

    async def until_begun(self) -> None:
        await until(self._begun.is_set)

    def open(self) -> None:
        self._open.set()


class Nothing:
    """As a `ThenRgb`, but it does nothing."""

    def __init__(self) -> None:
        self.function = None
        self.argument = ffi.NULL
        self.borrowed: list[Any] = []
