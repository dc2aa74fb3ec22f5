"""The C functions of csrc/azc.h and csrc/colour/yuv.h: the only file that sees cffi."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, Protocol, cast

try:
    import aiozerocopy._azc as _azc
except ModuleNotFoundError as error:
    if error.name != "aiozerocopy._azc":
        raise  # it is there, and misses something else
    raise ImportError(
        f"The C part of aiozerocopy is not built in {Path(__file__).parents[2]}: "
        "run `pip install -e .` there, or start Python from another folder to use "
        "an installed aiozerocopy.",
        name="aiozerocopy",  # so named, `python -m aiozerocopy` says it in one line
    ) from error


class _Lib(Protocol):
    """Their signatures, for the type checker.

    An azc_id is an int here; what C fills in, or reads from, is a cdata object.
    """

    AZC_IN: int
    AZC_OUT: int
    AZC_OWN: int
    AZC_UNTRUSTED: int
    AZC_READS: int
    AZC_DROPPED: int
    AZC_RESCUED: int
    AZC_LATER: int
    AZC_OVER: int
    AZC_UNKNOWN: int
    AZC_REFUSED: int
    AZC_KEPT: int
    AZC_ROOM: int
    AZC_COPIED: int

    def azc_portable(self) -> int: ...
    def azc_port_open(self, port: Any) -> int: ...
    def azc_port_fd(self, port: int) -> int: ...
    def azc_port_take(
        self, port: int, recorded: int, events: Any, most: int
    ) -> int: ...
    def azc_port_close(self, port: int) -> int: ...
    def azc_open(self, fd: int, flags: int, channel: Any) -> int: ...
    def azc_open_opposite(self, channel: int, opposite: Any) -> int: ...
    def azc_set_limit(self, channel: int, nbytes: int) -> int: ...
    def azc_bind_port(
        self, channel: int, port: int, token: int, budget: int
    ) -> int: ...
    def azc_send_bound(self, channel: int, data: Any, n: int) -> int: ...
    def azc_put_bound(self, channel: int, data: Any, n: int) -> int: ...
    def azc_send_copied(
        self, channel: int, port: int, token: int, data: Any, copy: Any, n: int
    ) -> int: ...
    def azc_send_batch(self, channel: int, data: Any, n: int, count: int) -> int: ...
    def azc_set_sizes(
        self, channel: int, token: int, sizes: Any, nsizes: int
    ) -> int: ...
    def azc_sendv(
        self,
        channel: int,
        port: int,
        token: int,
        vec: Any,
        count: int,
        sizes: Any,
        nsizes: int,
        ask_room: bool,
    ) -> int: ...
    def azc_send_to_all(
        self, channels: Any, n: int, vec: Any, count: int, results: Any
    ) -> int: ...
    def azc_recv(
        self, channel: int, port: int, token: int, data: Any, n: int, need: int
    ) -> int: ...
    def azc_cancel(self, channel: int, token: int, limit: int, event: Any) -> int: ...
    def azc_copy_message(self, to: Any, vec: Any, count: int) -> int: ...
    def azc_move_to_copy(
        self,
        channels: Any,
        tokens: Any,
        n: int,
        copy: Any,
        total: int,
        vec: Any,
        count: int,
        results: Any,
    ) -> int: ...
    def azc_close(self, channel: int, port: int, token: int) -> int: ...
    def azc_free(self, channel: int) -> int: ...
    def azc_pool_open(self, slot_bytes: int, slots: int, pool: Any) -> int: ...
    def azc_pool_slot(self, pool: int, slot: int) -> Any: ...
    def azc_pool_bytes(self, pool: int) -> int: ...
    def azc_pool_close(self, pool: int) -> int: ...
    def azc_fd(self, channel: int) -> int: ...
    def azc_shutdown(self, channel: int) -> int: ...
    def azc_get_stats(self, channel: int, stats: Any) -> int: ...
    def azc_census(self, entries: Any, most: int) -> int: ...
    def azc_now(self) -> int: ...
    def azc_stop(self, ms: int) -> int: ...
    def azc_unsent(self) -> int: ...
    def azc_rgb_to_yuv(self, how: Any, rgb: Any, stride: int, yuv: Any) -> int: ...
    def azc_yuv_to_rgb(self, how: Any, yuv: Any, rgb: Any, stride: int) -> int: ...
    def azc_yuv_kind(self, plain: int) -> Any: ...


ffi: Any = _azc.ffi
lib: _Lib = cast("_Lib", _azc.lib)

PORTABLE: bool = bool(lib.azc_portable())

# What the functions that send return, besides 0, 1 and errors.
IN_PROGRESS = -errno.EINPROGRESS
BUSY = -errno.EBUSY

# For `SendStream.send`, which has no time for a function of Python's in between.
send_bound = lib.azc_send_bound
send_batch = lib.azc_send_batch


def check(result: int) -> int:
    """The result, unless it is an error.

    Raises:
        OSError: it was one.
    """
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result
