"""A lock for ``with`` that an exception of a signal handler never leaves taken.

Up to Python 3.13 nothing comes between a lock's ``__enter__`` and the block.  Python
3.14 runs signal handlers there if ``__enter__`` is a function in C, and an exception of
theirs would leave the lock taken for ever.

The thread that has the lock may take it again, since a handler or a finalizer that runs
in the block may come here, too, and would wait for itself.
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
            # (one line: signal handlers run before and after it, not within)
            for taken in iter(self.acquire, None): return taken  # noqa: E701  # fmt: skip
            return False
