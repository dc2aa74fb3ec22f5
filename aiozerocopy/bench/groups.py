"""Processes that end with whoever has started them, at whatever moment Ctrl-C comes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from typing import TYPE_CHECKING, Any

from aiozerocopy._process.child import NEW_GROUP

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Group:
    """Processes: neither they nor what they start outlive the ``with`` block."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def start(self, argv: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        """As Popen, but Ctrl-C cannot lose the process that has just begun."""
        with _ctrl_c_waits():
            process = subprocess.Popen(argv, **options, **NEW_GROUP)
            self.processes.append(process)
        return process

    def kill(self) -> None:
        for process in self.processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def end(self) -> None:
        self.kill()
        for process in self.processes:
            with process:  # it closes the pipes to it, too
                pass


@contextlib.contextmanager
def _ctrl_c_waits() -> Iterator[None]:
    """Its exception is raised at the end of the block.

    A handler does this, and no mask, which the new process would have as well.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(handler):
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        for number in came[:1]:
            signal.raise_signal(number)
