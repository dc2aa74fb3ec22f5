"""A lock for ``with``, which the exception of a signal's handler never leaves taken.

Up to Python 3.13 nothing comes between a lock's ``__enter__`` and the block.  Python
3.14 looks for signals there if that is a function in C, and what their handlers raise
then leaves the lock taken for ever.

The thread that has it may take it again: a handler or a finalizer that runs in the
block, and comes here too, would wait for itself.
"""

from __future__ import annotations

import sys
import threading

if sys.version_info < (3, 14):
    Lock = threading.RLock
else:
    from _thread import RLock

    class Lock(RLock):
        def __enter__(self) -> bool:
            # One line: signals are looked for at its start and after it, not within.
            for taken in iter(self.acquire, None): return taken  # noqa: E701  # fmt: skip
            return False
