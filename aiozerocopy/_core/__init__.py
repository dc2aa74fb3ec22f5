"""How a send is done, and how its promise is kept.

A module imports those above it, never those below.

    errors          errno -> exception, the only table
    pipe_size       how much a pipe holds
    binding         the C functions, as cffi offers them: the only file that sees cffi
    leases          memory that is somebody's until he releases it: frames, pictures
    pins            a caller's buffer as memory that C may be given
    borrows         what C has borrowed, and who hears of its end
    memory          memory of our own: a pool's slots, and views that tell their end
    fork_and_exit   what becomes of it all in a forked child, and at the end
    channel         one fd, one direction
    batches         many messages in few system calls
    waiter          completions -> whoever awaits, on asyncio, uvloop and trio
    change          waiting for something to change
    lifetime        a stream's tie to its event loop, and its end
    receiving       ReceiveStream
    sending         SendStream
"""

from __future__ import annotations

import importlib


def _is_main_interpreter() -> bool:
    """Python's own name for the module that knows has changed twice."""
    for name in ("_interpreters", "_xxsubinterpreters"):
        try:
            interpreters = importlib.import_module(name)
        except ImportError:
            continue
        current, main = interpreters.get_current(), interpreters.get_main()
        # (from 3.13 on each is a pair, and its second part says who made it)
        if isinstance(current, tuple):
            current, main = current[0], main[0]
        return bool(current == main)
    return True


if not _is_main_interpreter():
    raise ImportError(
        "aiozerocopy cannot be imported in a subinterpreter: its threads, and what it "
        "does at a fork and at the end, are the whole process's"
    )
