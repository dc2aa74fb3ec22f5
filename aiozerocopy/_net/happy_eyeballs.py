"""The first of a host's addresses that answers (RFC 8305, "Happy Eyeballs").

The socket is ours from the start: no transport of the event loop has read from it.
"""

from __future__ import annotations

import collections
import contextlib
import ipaddress
import os
import socket
import sys
from typing import TYPE_CHECKING

import anyio

if sys.version_info < (3, 11):  # (anyio needs it there, too)
    from exceptiongroup import ExceptionGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    SocketAddress = tuple[str, int]
    Candidate = tuple[socket.AddressFamily, SocketAddress]


async def look_up(
    host: str, port: int, family: int = socket.AF_UNSPEC
) -> list[Candidate]:
    """All addresses of a host, the families in turn; the best one comes first.

    An IP address is not looked up, and ``family`` does not matter for it.

    Raises:
        OSError: the name is unknown.
    """
    with contextlib.suppress(ValueError):
        is_v6 = ipaddress.ip_address(host).version == 6
        return [(socket.AF_INET6 if is_v6 else socket.AF_INET, (host, port))]
    found = await anyio.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
    before: collections.Counter[int] = collections.Counter()

    def rank(candidate: Candidate) -> int:
        family = candidate[0]
        before[family] += 1
        return before[family]

    candidates = dict.fromkeys((family, address) for family, *_, address in found)
    return sorted(candidates, key=rank)


async def connect_first(
    candidates: Sequence[Candidate],
    local: SocketAddress | None,
    delay: float | None,
) -> socket.socket:
    """A socket, not blocking, that is connected to the first candidate to answer.

    The next one is tried as well after ``delay`` seconds (None: never), and at once
    when one fails.  The sockets of the others are closed, and all of them when this is
    cancelled.

    Raises:
        OSError: nobody answered.  Its errno is that of the first to fail, its text has
            each of them, and its cause is the one error or a group of all.
    """
    if len(candidates) == 1:  # (a task group would double its time)
        try:
            return await _connect(candidates[0], local)
        except OSError as error:
            raise _nobody_answered([(candidates[0], error)]) from error
    connected: list[socket.socket] = []
    failures: list[tuple[Candidate, OSError]] = []

    async def attempt(candidate: Candidate) -> None:
        try:
            sock = await _connect(candidate, local)
        except OSError as error:
            failures.append((candidate, error))
            failed.set()
        else:
            connected.append(sock)
            attempts.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as attempts:
            for candidate in candidates:
                failed = anyio.Event()
                attempts.start_soon(attempt, candidate)
                with anyio.move_on_after(delay):
                    await failed.wait()
        if connected:
            return connected.pop()
        raise _nobody_answered(failures)
    finally:
        failures.clear()  # (else the errors' tracebacks refer to them: a cycle)
        for sock in connected:
            sock.close()


def _nobody_answered(failures: Sequence[tuple[Candidate, OSError]]) -> OSError:
    """The first words are anyio's, which programs look for."""
    errors = [error for _, error in failures]
    text = str(errors[0].strerror)
    cause: Exception = errors[0]
    if len(errors) > 1:
        text = "; ".join(f"{to[0]}: {error.strerror}" for (_, to), error in failures)
        cause = ExceptionGroup("the error of each address", errors)
    failure = OSError(errors[0].errno, f"All connection attempts failed ({text})")
    failure.__cause__ = cause
    return failure


async def _connect(candidate: Candidate, local: SocketAddress | None) -> socket.socket:
    family, address = candidate
    sock = socket.socket(family)
    try:
        sock.setblocking(False)
        if local is not None:
            sock.bind(local)
        with contextlib.suppress(BlockingIOError):  # connecting takes a while
            sock.connect(address)
        await anyio.wait_writable(sock)
        if failure := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(failure, os.strerror(failure))
    except BaseException:
        sock.close()
        raise
    return sock
