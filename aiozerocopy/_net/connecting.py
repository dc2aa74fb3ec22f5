"""TCP and UNIX clients: a connection, then a stream over it.

The socket is ours from the start: no transport of the event loop has read from it.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import ipaddress
import itertools
import math
import os
import socket
import sys
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, cast

import anyio
import anyio.lowlevel

from aiozerocopy._core.failure import Failure
from aiozerocopy._core.sending import check_concurrent
from aiozerocopy.opening import Opening, flags_for, stream_over

if sys.version_info < (3, 11):  # (anyio needs it there, too)
    from exceptiongroup import ExceptionGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozerocopy._core.sending import Concurrent
    from aiozerocopy.streams import Stream, UnixStream

    Candidate = tuple[socket.AddressFamily, tuple[Any, ...]]

LAST_PORT = 65535
DELAY = 0.25  # seconds until the next of a host's addresses is tried, too

AGAIN = 0.01  # seconds between attempts to connect to a UNIX server

DEAD_AFTER = 15.0  # seconds; see `limit_silence`
_RETRIES = 15  # of TCP, before it gives up (net.ipv4.tcp_retries2)
_TCP_RTO_MAX_MS = 44  # Linux 6.15


def connect_tcp(
    host: str,
    port: int,
    *,
    timeout: float | None = None,
    dead_after: float | None = DEAD_AFTER,
    concurrent: Concurrent = "queue",
) -> Opening[Stream]:
    """Connect to a TCP server; to be awaited, or used with ``async with``.

    The first of a name's addresses to answer wins; the next is also tried after a
    quarter of a second, or at once if one fails.  ``concurrent`` is as for
    `open_writer`.  If this is cancelled, no socket is left open.

    A peer that cannot be reached any more (a cut link, a machine that is off) breaks
    the stream after about ``dead_after`` seconds (ETIMEDOUT); None leaves that to the
    kernel's settings.  A peer that can be reached, but does not read, is waited for.
    While bytes are unacknowledged, ``dead_after`` needs Linux 6.15, and is at least 15
    seconds; older kernels give up after 15 minutes.

    Raises:
        OSError: nobody answered, the name is unknown, or ``timeout`` is over
            (TimeoutError); the text has host and port, and the addresses if several
            were tried, and the cause is the error of the only address, or an
            ExceptionGroup of all.
        TypeError, ValueError: an impossible host or port, ``timeout`` or ``dead_after``
            is not above 0, or an unknown ``concurrent``.
    """
    check_host(host)
    check_port(port)
    check_seconds(timeout=timeout, dead_after=dead_after)
    check_concurrent(concurrent)

    async def connect() -> Stream:
        try:
            with anyio.fail_after(timeout):
                sock = await connect_first(await look_up(host, port), None, DELAY)
        except OSError as error:
            place = f"cannot connect to {bracketed(host)}:{port}"
            raise located(error, place) from error.__cause__ or error
        with sock:
            with contextlib.suppress(OSError):  # the peer may have gone already
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                limit_silence(sock, dead_after)
            return stream_over(sock, concurrent)

    return Opening(connect())


def check_host(host: str | None) -> None:
    """Raises: TypeError: it is neither a name or address nor None."""
    if host is not None and not isinstance(host, str):
        raise TypeError(f"host must be a string, not {host!r}")


def check_port(port: int) -> None:
    """Raises: TypeError, ValueError: no port has this number."""
    if isinstance(port, bool) or not isinstance(port, Integral):
        raise TypeError(f"port must be a whole number, not {port!r}")
    if not 0 <= port <= LAST_PORT:
        raise ValueError(f"port must be from 0 to {LAST_PORT}, not {port}")


def bracketed(host: str | None) -> str:
    """Return the host as it is written before a port: IPv6 in brackets."""
    return f"[{host}]" if host and ":" in host else str(host)


def connect_unix(
    path: str | bytes | os.PathLike[str],
    *,
    peer: str = "unknown",
    concurrent: Concurrent = "queue",
) -> Opening[UnixStream]:
    """Connect to a UNIX server; to be awaited, or used with ``async with``.

    A path that begins with a zero byte is a name in Linux's abstract name space.
    ``peer`` and ``concurrent`` are as for `open_writer`.

    Raises:
        OSError: nobody listens there; the path is in the text.
        ValueError: an unknown ``peer`` or ``concurrent``.
    """
    flags_for(peer)
    check_concurrent(concurrent)

    async def connect() -> UnixStream:
        stream = stream_over(await connected_unix(path), concurrent, peer)
        return cast("UnixStream", stream)

    return Opening(connect())


def check_seconds(**limits: float | None) -> None:
    """Raises: ValueError, TypeError: one is neither a time above 0 nor None."""
    for name, seconds in limits.items():
        if seconds is None:
            continue
        if isinstance(seconds, bool) or not isinstance(seconds, Real):
            raise TypeError(
                f"{name} must be a number of seconds, or None, not {seconds!r}"
            )
        if not seconds > 0:
            raise ValueError(f"{name} must be above 0 seconds, or None, not {seconds}")


def check_counts(least: int, **counts: int | None) -> None:
    """Raises: ValueError, TypeError: one is neither None nor a number >= ``least``."""
    given = {name: count for name, count in counts.items() if count is not None}
    check_numbers(least, **given)


def check_numbers(least: int, **numbers: int) -> None:
    """Raises: ValueError, TypeError: one is no whole number >= ``least``."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, Integral):
            raise TypeError(f"{name} must be a whole number, not {number!r}")
        if number < least:
            raise ValueError(f"{name} must be at least {least}, not {number}")


def check_hook(on_event: object) -> None:
    """Raises: TypeError: it is neither a plain function nor None."""
    if on_event is None:
        return
    if not callable(on_event):
        raise TypeError(f"on_event must be a function, not {on_event!r}")
    if is_async(on_event):
        raise TypeError(
            f"on_event must be a plain function, not the async {on_event!r}: nobody "
            "would await it"
        )


def is_async(function: object) -> bool:
    """Is the function, or the ``__call__`` of an object, async?"""
    call = getattr(function, "__call__", None)  # noqa: B004 - of an object, its method
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def limit_silence(sock: socket.socket, seconds: float | None) -> None:
    """Give up a TCP peer that has not answered for about ``seconds``; None: never.

    Accepted sockets inherit this from the listening one.  Keepalive probes an idle
    connection.  Linux sends unacknowledged bytes again after ever longer pauses, so
    these are limited.  (TCP_USER_TIMEOUT would also cut off a peer that answers, but
    does not read.)
    """
    if seconds is None or seconds == math.inf:
        return
    probes = 3
    pause = max(1, min(int(seconds / 5), 32767))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", max(1, min(int(seconds) - probes * pause, 32767))),
        ("TCP_KEEPINTVL", pause),
        ("TCP_KEEPCNT", probes),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if sys.platform == "linux":
        longest = max(1000, min(int(seconds * 1000 / _RETRIES), 120_000))
        with contextlib.suppress(OSError):  # an older kernel
            sock.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, longest)


async def connected_unix(
    path: str | bytes | os.PathLike[str], *, with_name: bool = False
) -> socket.socket:
    """Return a socket connected to a UNIX server; ``with_name``: with a unique name.

    Raises: as `connect_unix`.
    """
    await anyio.lowlevel.checkpoint()
    sock = socket.socket(socket.AF_UNIX)
    try:
        if with_name and sys.platform == "linux":
            sock.bind("")
        await connect_once_possible(sock, os.fspath(path))
        return sock
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError):
            raise located(error, f"cannot connect to {path!r}") from error
        raise


async def connect_once_possible(
    sock: socket.socket, path: str | bytes, *, is_patient: bool = False
) -> None:
    """Connect once the server's backlog has room; if patient, wait for a server, too.
    No event reports either, so it tries repeatedly."""
    sock.setblocking(False)
    while True:
        try:
            sock.connect(path)
            return
        except BlockingIOError:
            pass  # the backlog is full
        except (FileNotFoundError, ConnectionRefusedError):
            if not is_patient:
                raise
        await anyio.sleep(AGAIN)


def located(error: OSError, place: str) -> OSError:
    """Return the error with the place where it happened in its text."""
    if isinstance(error, TimeoutError) and error.errno is None:
        return TimeoutError(errno.ETIMEDOUT, f"{place}: timed out")
    if error.errno is None:
        return OSError(errno.EINVAL, f"{place}: {error}")
    return type(error)(error.errno, f"{place}: {error.strerror}")


# ---- the first of a host's addresses that answers (RFC 8305, "Happy Eyeballs") ------


async def look_up(
    host: str | None,
    port: int | str | None,
    first: int = 1,
    *,
    family: int = 0,
    proto: int = 0,
    flags: int = 0,
) -> list[Candidate]:
    """Return all addresses of a host, the best one first (see `interleaved`).

    An IP address without a scope is not looked up.  Options and errors: as
    `anyio.getaddrinfo`, and as `check_port` for a number that no port has.
    """
    if isinstance(port, str) and port.isdecimal():
        port = int(port)
    if isinstance(port, int):
        check_port(port)  # (glibc takes 70000 for 4464)
    if isinstance(host, str) and isinstance(port, int) and "%" not in host:
        with contextlib.suppress(ValueError):  # (the host is a name)
            is_v6 = ipaddress.ip_address(host).version == 6
            kind = socket.AF_INET6 if is_v6 else socket.AF_INET
            if family in (0, kind):
                return [(kind, (host, port))]
    found = await anyio.getaddrinfo(
        *(host or None, port),
        family=family,
        type=socket.SOCK_STREAM,
        proto=proto,
        flags=flags,
    )
    if not found:
        raise OSError("getaddrinfo() returned empty list")
    candidates = dict.fromkeys((family, _scoped(*at)) for family, *_, at in found)
    return interleaved(list(candidates), first)


def _scoped(host: str, port: int) -> tuple[Any, ...]:
    """Return anyio's form of an address, such as fe80::1%2, in the form of sockets."""
    host, _, scope = host.partition("%")
    return (host, port, 0, int(scope)) if scope else (host, port)


def interleaved(candidates: Sequence[Candidate], first: int) -> list[Candidate]:
    """Alternate families after ``first`` addresses of the best family; 0: do not."""
    if not first:
        return list(candidates)
    families: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        families.setdefault(candidate[0], []).append(candidate)
    best = next(iter(families.values()))
    head = best[: first - 1]
    del best[: first - 1]
    turns = itertools.zip_longest(*families.values())
    return [*head, *(each for turn in turns for each in turn if each is not None)]


async def connect_first(
    candidates: Sequence[Candidate],
    local: Sequence[Candidate] | None,
    delay: float | None,
) -> socket.socket:
    """Return a socket that is connected to the first candidate to answer.

    It is bound to the first of the ``local`` addresses that has its family and is free.
    The next one is also tried after ``delay`` seconds (None: never), and at once when
    one fails.  All other sockets are closed.

    Raises:
        OSError: nobody answered.  Its errno is that of the first error, its text has
            all of them, and its cause is the only error, or a group of all.
    """
    if len(candidates) == 1:  # (a task group would double the time)
        try:
            return await _connect(candidates[0], local)
        except OSError as error:
            raise _nobody_answered([(candidates[0], error)]) from error
    connected: list[socket.socket] = []
    failures: list[tuple[Candidate, Failure[OSError]]] = []

    async def attempt(candidate: Candidate) -> None:
        try:
            sock = await _connect(candidate, local)
        except OSError as error:
            failures.append((candidate, Failure(error)))
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
        raise _nobody_answered([(to, failure.again()) for to, failure in failures])
    finally:
        for sock in connected:
            sock.close()


def _nobody_answered(failures: Sequence[tuple[Candidate, OSError]]) -> OSError:
    """Return one error for all; it begins with anyio's words, which programs match."""
    errors = [error for _, error in failures]
    text = str(errors[0].strerror)
    cause: Exception = errors[0]
    if len(errors) > 1:
        text = "; ".join(f"{to[0]}: {error.strerror}" for (_, to), error in failures)
        cause = ExceptionGroup("the error of each address", errors)
    failure = OSError(errors[0].errno, f"All connection attempts failed ({text})")
    failure.__cause__ = cause
    return failure


async def _connect(
    candidate: Candidate, local: Sequence[Candidate] | None
) -> socket.socket:
    family, address = candidate
    sock = socket.socket(family)
    try:
        sock.setblocking(False)
        if local is not None:
            _bind(sock, local)
        with contextlib.suppress(BlockingIOError):  # connecting takes a while
            sock.connect(address)
        await anyio.wait_writable(sock)
        if failure := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(failure, os.strerror(failure))
    except BaseException:
        sock.close()
        raise
    return sock


def _bind(sock: socket.socket, places: Sequence[Candidate]) -> None:
    failure = Failure(OSError(errno.EAFNOSUPPORT, "no local address of this family"))
    for family, address in places:
        if family == sock.family:
            try:
                return sock.bind(address)
            except OSError as error:
                failure = Failure(error)
    raise failure.again()
