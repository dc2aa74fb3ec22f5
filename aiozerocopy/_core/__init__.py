"""How a send is done, and how its promise is kept.

docs/pages/architecture.md says what each module is for, and tests/test_architecture.py
which ones it may import.
"""

from __future__ import annotations

import importlib
import sys


def _is_main_interpreter() -> bool:
    # (the module that knows has had two names)
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        current, main = interpreters.get_current(), interpreters.get_main()
        # (from 3.13 on each is a pair, whose first part is the id)
        if isinstance(current, tuple):
            current, main = current[0], main[0]
        return bool(current == main)
    return True


if not _is_main_interpreter():
    raise ImportError(
        "aiozerocopy cannot be imported in a subinterpreter: its threads, and what it "
        "does at a fork and at the end, are the whole process's"
    )

# What is noted about borrowed memory has no locks: an exception may come between any
# two of its lines, but no other thread at the same time.  cffi declares that what it
# makes can do without the GIL, so importing our C part does not bring it back.
if not getattr(sys, "_is_gil_enabled", lambda: True)():
    raise ImportError(
        "aiozerocopy needs the GIL, and this Python runs without: set PYTHON_GIL=1, or "
        "start it as `python -X gil=1`",
        name="aiozerocopy",
    )
