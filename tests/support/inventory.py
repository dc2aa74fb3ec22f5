"""The fds, threads, children and tasks of a process, to find what a test leaves."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import anyio

import aiozerocopy as azc
from aiozerocopy._core import borrows, memory

FDS, TASKS = Path("/proc/self/fd"), Path("/proc/self/task")
PATIENCE = 2.0  # seconds for what is over at once, or never


@dataclass
class Inventory:
    """All of it at one moment."""

    fds: set[str]
    threads: set[str]
    children: set[str]
    leases: set[str]
    watched: set[str]  # fds, by asyncio's selector
    tasks: set[str]  # of asyncio

    @classmethod
    def take(cls) -> Inventory:
        # trio keeps the threads of its pool for ten seconds, others those of theirs.
        pooled = {
            thread.native_id
            for thread in threading.enumerate()
            if thread.name.startswith(("Trio thread", "Dask-Offload", "asyncio_"))
        }
        loop = _loop()
        selector = getattr(loop, "_selector", None)
        return cls(
            fds={f"fd {fd}: {target}" for fd, target in open_files().items()},
            threads={f"thread {each}" for each in thread_ids() - pooled},
            children={f"child {each}" for each in _children()},
            leases={f"lease {key:#x}" for key in list(memory._leases)},
            watched={f"watched {fd}" for fd in selector.get_map()}
            if selector
            else set(),
            tasks={f"{task!r}" for task in asyncio.all_tasks(loop)} if loop else set(),
        )

    def leaked_since(self, before: Inventory) -> list[str]:
        names = [field.name for field in fields(self)]
        sets = [getattr(self, name) - getattr(before, name) for name in names]
        return sorted(set().union(*sets))


@asynccontextmanager
async def nothing_left(*, collects: bool = False) -> AsyncIterator[None]:
    """After the block all is as it was before; if wanted, with collections: what a
    thread kept until now may be in a cycle."""
    async with azc.pipe():  # else the loop's port would be opened by the block
        await anyio.to_thread.run_sync(int)  # and anyio's thread
        gc.collect()
        gc.disable()
        try:
            before = Inventory.take()
            yield
            with anyio.move_on_after(PATIENCE):
                while Inventory.take().leaked_since(before):
                    borrows.sweep()
                    memory.sweep()
                    gc.collect() if collects else None
                    await anyio.sleep(0.001)
            left = Inventory.take().leaked_since(before)
            assert not left, "; ".join(left)
        finally:
            gc.enable()


def _loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:  # trio's, or none
        return None


def open_files() -> dict[str, str]:
    """The numbers, with what they stand for."""
    found = {}
    for name in os.listdir(FDS):
        with contextlib.suppress(OSError):  # the fd that listed the others
            found[name] = os.readlink(FDS / name)
    return found


def _children() -> Iterator[int]:
    for thread in thread_ids():
        try:
            children = (TASKS / str(thread) / "children").read_text()
            yield from map(int, children.split())
        except OSError:  # noqa: PERF203 - it ended just now, or an old kernel
            continue


def thread_ids() -> set[int]:
    """All threads of this process, those of C and of the libraries included.

    The kernel ends a listing early at a thread that is just ending, and then later ones
    are missing.  Such a thread is listed at most once, and not counted as a link of the
    folder; so a listing is whole if the next one is the same and the count is right.
    """
    while True:
        names = os.listdir(TASKS)
        count = os.stat(TASKS).st_nlink - len((".", ".."))
        if names == os.listdir(TASKS) and len(names) == count:
            return set(map(int, names))


def held() -> list[Any]:
    """The memory that C still has, or may have.

    (An operation that is ready has room for one, and no memory.)
    """
    lists = list(borrows.borrowed.values())
    return [view for views in lists for view in views if view is not None]


class _Mallinfo(ctypes.Structure):
    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks cost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def memory_in_use() -> dict[str, int]:
    """Python's blocks, and where glibc counts them, the bytes that malloc has given."""
    # (the cache of methods keeps strings until it is full, which takes long)
    getattr(sys, "_clear_internal_caches", sys._clear_type_cache)()
    gc.collect()
    used = {"blocks": sys.getallocatedblocks()}
    if ask := getattr(ctypes.CDLL(None), "mallinfo2", None):
        ask.restype = _Mallinfo
        used["bytes"] = (info := ask()).uordblks + info.hblkhd
    return used
