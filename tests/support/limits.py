"""Limits on this process, for the length of a block."""

import contextlib
import resource
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def limited(which: int, most: int) -> Iterator[None]:
    before = resource.getrlimit(which)
    resource.setrlimit(which, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(which, before)


@contextlib.contextmanager
def files_up_to(nbytes: int) -> Iterator[None]:
    """Let no file grow beyond this many bytes."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with limited(resource.RLIMIT_FSIZE, nbytes):
            yield
    finally:
        signal.signal(signal.SIGXFSZ, handler)
