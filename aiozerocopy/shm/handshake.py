"""How two processes come to share a ring: who connects asks, who listens offers.

The messages are csrc/azc_ring.h's; here they wait for their sockets.  A peer that
cannot take part (another user's, of another version, one that only looks whether
somebody listens) is turned away and does not disturb the listener.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import anyio

from aiozerocopy._core import ring_end
from aiozerocopy._core.ring_end import ANY, CONSUMER, PRODUCER, RingEnd

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

PATIENCE = 10.0  # seconds for the other side's part
_AGAIN = -errno.EAGAIN

_REFUSALS = {
    errno.EACCES: (PermissionError, "the other process is another user's"),
    errno.EPROTO: (ConnectionError, "what is there does not speak this protocol"),
    errno.EPERM: (ConnectionError, "the memory that was offered is not sealed"),
    errno.EPROTONOSUPPORT: (
        ConnectionError,
        "the other side has another version of the ring's layout",
    ),
    errno.ECONNRESET: (ConnectionResetError, "the other side hung up"),
    errno.EPIPE: (ConnectionResetError, "the other side hung up"),
}
_SAME_ROLE = {
    PRODUCER: "both sides want to send: one of them has to be the consumer",
    CONSUMER: "both sides want to receive: one of them has to send",
}


def checked(result: int, role: int = ANY) -> int:
    """The result, unless it is an error.

    Raises:
        OSError: it was one, in words.
    """
    if result >= 0:
        return result
    code = -result
    if code == errno.EADDRINUSE and role in _SAME_ROLE:
        raise ConnectionError(code, _SAME_ROLE[role])
    kind, text = _REFUSALS.get(code, (OSError, os.strerror(code)))
    raise kind(code, text)


async def _when_ready(sock: socket.socket, step: Callable[[], int]) -> int:
    """Call it until it does not ask to be called again."""
    while (result := step()) == _AGAIN:
        await anyio.wait_readable(sock)
    return result


async def offer(sock: socket.socket, end: RingEnd, any_user: bool) -> None:
    """The listener's part, on a connection that was accepted.

    Raises:
        OSError: the ring was not taken.  (The other side may have its memory, though.)
    """
    number = sock.fileno()
    with anyio.fail_after(PATIENCE):
        if not any_user:
            _refusing(number, ring_end.check_user(number))
        asked = await _when_ready(sock, lambda: ring_end.hear_ask(number))
        _refusing(number, asked)
        if asked == end.role:
            _refusing(number, -errno.EADDRINUSE, end.role)
        checked(end.offer(number))
        checked(await _when_ready(sock, lambda: end.hear_answer(number)))


def _refusing(number: int, result: int, role: int = ANY) -> None:
    if result < 0:
        ring_end.refuse(number, result)
        checked(result, role)


async def ask(sock: socket.socket, role: int, any_user: bool) -> RingEnd:
    """The part of who has connected.

    Raises:
        OSError: why there is no ring.
    """
    number = sock.fileno()
    end = RingEnd()
    with anyio.fail_after(PATIENCE):
        if not any_user:
            checked(ring_end.check_user(number))
        asked = ring_end.ask(number, role)
        if asked != -errno.EPIPE:  # (who has refused us at once has said why)
            checked(asked)
        checked(await _when_ready(sock, lambda: end.hear_offer(number)), role)
    return end
