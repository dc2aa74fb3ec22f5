"""Gates that hold up the C work at the end of a receive."""

import threading
from typing import Any

from links import until

from aiozerocopy._core.binding import ffi


class Gate:
    """Holds up a conversion that ends a receive, or stands in for one."""

    def __init__(self) -> None:
        self._begun, self._open = threading.Event(), threading.Event()
        self._callbacks: list[Any] = []  # C calls these

    def before(self, then: Any = None) -> Any:
        """Return ``then``, which from now on waits for the gate."""
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
    """Like a `ThenRgb`, but it does nothing."""

    def __init__(self) -> None:
        self.function = None
        self.argument = ffi.NULL
        self.borrowed: list[Any] = []
