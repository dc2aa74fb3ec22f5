"""What streams there are in this process, and their counters.

Everything is asked of C, by numbers: no stream is referred to, and so none is kept,
and no finalizer runs here.  It may be done in any thread.
"""

from __future__ import annotations

import errno
import fcntl
import struct
import termios
from typing import Any

from aiozerocopy._core.binding import ffi, lib
from aiozerocopy._core.channel import lane_of
from aiozerocopy._core.pipe_size import capacity_of

_ROOM = 256  # channels; more are asked for once more

COUNTERS = ("bytes", "messages", "calls", "waits", "rescued")
NOW = ("queued_bytes", "queued", "waiting")


def streams() -> list[dict[str, Any]]:
    """The open directions of all streams, in no order; each as JSON can tell it.

    A socket has two, with the same fd.
    """
    room = _ROOM
    while True:
        entries = ffi.new("azc_entry[]", room)
        count = lib.azc_census(entries, room)
        if count <= room:
            break
        room = 2 * count
    now = lib.azc_now()
    found = (_stream(entry.id, now - entry.since) for entry in entries[0:count])
    return [one for one in found if one is not None]


def _stream(id_: int, age: int) -> dict[str, Any] | None:
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
        "age": age / 1e9,
        **{name: getattr(stats, name) for name in (*COUNTERS, *NOW)},
        **_fill(fd),
        "error": errno.errorcode.get(-stats.error, ""),
    }


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
