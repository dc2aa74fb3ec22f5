"""What streams and rings there are in this process, and their counters.

Everything is asked of C, by numbers: no stream is referred to, and so none is kept,
and no finalizer runs here.  It may be done in any thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import socket
import struct
import termios
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.binding import constants, ffi, lib
from aiozerocopy._core.channel import lane_of
from aiozerocopy._core.pipe_size import capacity_of

if TYPE_CHECKING:
    from collections.abc import Callable

_CREDENTIALS = struct.Struct("3i")
_ROOM = 256  # if there are more, they are asked for once more

COUNTERS = ("bytes", "messages", "calls", "waits", "rescued")
NOW = ("queued_bytes", "queued", "waiting")


def streams() -> list[dict[str, Any]]:
    """The open directions of all streams, in no order; each as JSON can tell it.

    A socket has two, with the same fd.
    """
    return _all(lib.azc_census, _stream)


def rings() -> list[dict[str, Any]]:
    """Our sides of all rings, in the same words: `messages` are records, and what is
    `unread` is what the producer cannot use."""
    return _all(lib.azc_shm_census, _ring)


def _all(
    census: Callable[[Any, int], int],
    describe: Callable[[int, float], dict[str, Any] | None],
) -> list[dict[str, Any]]:
    """What is told of each by its number and its age."""
    room = _ROOM
    while True:
        entries = ffi.new("azc_entry[]", room)
        count = census(entries, room)
        if count <= room:
            break
        room = 2 * count
    now = lib.azc_now()
    ages = [(entry.id, (now - entry.since) / 1e9) for entry in entries[0:count]]
    return [told for id_, age in ages if (told := describe(id_, age)) is not None]


def _stream(id_: int, age: float) -> dict[str, Any] | None:
    """None: it was closed meanwhile."""
    stats = ffi.new("azc_stats *")
    fd = lib.azc_fd(id_)
    if fd < 0 or lib.azc_get_stats(id_, stats) < 0:
        return None
    return {
        "id": id_,
        "fd": fd,
        "direction": "out" if stats.outward else "in",
        "lane": lane_of(stats),
        "age": age,
        **{name: getattr(stats, name) for name in (*COUNTERS, *NOW)},
        **_fill(fd),
        "error": errno.errorcode.get(-stats.error, ""),
    }


def _ring(id_: int, age: float) -> dict[str, Any] | None:
    """None: it was closed meanwhile."""
    stats = ffi.new("azc_shm_stats *")
    if lib.azc_shm_get_stats(id_, stats) < 0 or stats.bell < 0:
        return None
    return {
        "id": id_,
        "fd": stats.bell,
        "direction": "out" if stats.role == constants.AZC_PRODUCER else "in",
        "lane": "ring",
        "age": age,
        "bytes": stats.bytes,
        "messages": stats.records,
        "calls": stats.rings,
        "waits": stats.waits,
        "held": stats.held,
        **dict.fromkeys(NOW, 0),
        "unread": stats.used,
        "capacity": stats.capacity,
        "peer_pid": _peer(stats.socket),
        "error": _ending(stats),
    }


def _ending(stats: Any) -> str:
    if stats.fault:
        return "EPROTO"
    return "closed" if stats.left else "died" if stats.gone else ""


def _peer(fd: int) -> int:
    """The process at the other end of a socket; 0 if it is not known."""
    if fd < 0 or socket.getdefaulttimeout() is not None:
        return 0  # (a timeout would be set for this one, too)
    with contextlib.suppress(OSError):
        borrowed = socket.socket(fileno=fd)
        try:
            told = borrowed.getsockopt(
                socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
            )
        finally:
            borrowed.detach()
        pid, _user, _group = _CREDENTIALS.unpack(told)
        return int(pid)
    return 0


def _fill(fd: int) -> dict[str, int]:
    """How much a pipe holds, and could; empty for anything else.

    (The fd may be closed at this moment, and even be another file's: then these two
    numbers are wrong once.)
    """
    capacity = capacity_of(fd)
    if capacity is None:
        return {}
    try:
        answer = fcntl.ioctl(fd, termios.FIONREAD, bytes(4))
    except OSError:
        return {}
    (unread,) = struct.unpack("i", answer)
    return {"unread": unread, "capacity": capacity}
