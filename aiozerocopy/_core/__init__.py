"""How a send is done, and how its promise is kept.

A module imports those above it, never those below.

    errors          errno -> exception, for streams
    failure         a failure that is remembered, to be raised again later
    extras          the messages for optional packages that are missing
    pipe_size       how much a pipe holds
    lock            a lock that a signal's exception never leaves taken
    binding         the C functions, as cffi offers them: the only file that sees cffi
    leases          memory lent to the program until it releases it: frames, pictures
    pins            a caller's buffer as memory that C may use
    colour          RGB and YUV: what Python asks of csrc/colour
    borrows         memory that C has borrowed, and ports, which report its end
    fds             open files that travel with bytes
    memory          a pool's slots, and views that report when the last of them is gone
    fork_and_exit   what happens in a forked child, and at interpreter exit
    channel         one fd, one direction
    groups          many messages in few system calls
    to_all          one message to many channels
    waiter          wakes the tasks that wait, on asyncio, uvloop and trio
    change          waiting for a change, and for a call's turn
    batches         many records in one receive
    lifetime        a stream's tie to its event loop, and its end
    receiving       ReceiveStream
    ahead           receives that begin before anybody waits for them
    files           an open file of the caller's: what its object has buffered
    relaying        from one stream to another, without Python
    sending         SendStream
    ring_end        one side of a ring through shared memory
"""

from __future__ import annotations

import importlib


def _is_main_interpreter() -> bool:
    # (the module's name differs between versions)
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
        "aiozerocopy cannot be imported in a subinterpreter: its threads, and its "
        "handlers of fork and exit, belong to the whole process"
    )
