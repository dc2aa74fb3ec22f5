"""The first of a host's addresses that answers (RFC 8305, "Happy Eyeballs").

The socket is ours from the start: no transport of the event loop has read from it.
"""

from __future__ import annotations

import collections
import contextlib
import ipaddress
import os
import socket
from typing import TYPE_CHECKING

import anyio

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
    failures: list[OSError] | None = None,
) -> socket.socket:
    """A socket, not blocking, that is connected to the first candidate to answer.

    The next one is tried as well after ``delay`` seconds (None: never), and at once
    when one fails.  The sockets of the others are closed, and all of them when this is
    cancelled.  ``failures`` gets the error of each.

    Raises:
        OSError: nobody answered.  Its errno is that of the first to fail; if there are
            many, its text has each of them.
    """
    failures = [] if failures is None else failures
    if len(candidates) == 1:
        try:
            return await _connect(candidates[0], local)
        except OSError as error:
            failures.append(error)
            raise
    connected: list[socket.socket] = []
    texts: list[str] = []

    async def attempt(candidate: Candidate) -> None:
        try:
            sock = await _connect(candidate, local)
        except OSError as error:
            failures.append(error)
            texts.append(f"{candidate[1][0]}: {error.strerror}")
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
    finally:
        for sock in connected:
            sock.close()
    raise OSError(failures[0].errno, "; ".join(texts))


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
