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
PATIENCE = 2.0  # seconds for something that happens at once or never


@dataclass
class Inventory:
    """What the process has at one moment."""

    fds: set[str]
    threads: set[str]
    children: set[str]
    leases: set[str]
    watched: set[str]  # fds that asyncio's selector watches
    tasks: set[str]  # asyncio's

    @classmethod
    def take(cls) -> Inventory:
        # The pools of trio and others keep idle threads for a while.
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
    """After the block everything is as it was before.  With ``collects``, garbage is
    collected: a reference that a thread held until now may be part of a cycle."""
    async with azc.pipe():  # (opens the loop's port before the block)
        await anyio.to_thread.run_sync(int)  # (starts anyio's thread before the block)
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
    except RuntimeError:  # trio's loop, or none
        return None


def open_files() -> dict[str, str]:
    """Return the numbers of all open fds, and the file behind each."""
    found = {}
    for name in os.listdir(FDS):
        with contextlib.suppress(OSError):  # the fd of this listing
            found[name] = os.readlink(FDS / name)
    return found


def _children() -> Iterator[int]:
    for thread in thread_ids():
        try:
            children = (TASKS / str(thread) / "children").read_text()
            yield from map(int, children.split())
        except OSError:  # noqa: PERF203 - the thread has ended, or the kernel is old
            continue


def thread_ids() -> set[int]:
    """Return all threads of this process, those of C and of libraries included.

    If a thread is just ending, the kernel ends a listing early, and later threads are
    missing.  That thread is in at most one listing, and does not count as a link of
    the folder: a listing is whole if the next equals it and the links are as many.
    """
    while True:
        names = os.listdir(TASKS)
        count = os.stat(TASKS).st_nlink - len((".", ".."))
        if names == os.listdir(TASKS) and len(names) == count:
            return set(map(int, names))


def held() -> list[Any]:
    """Return the memory that C still has, or may have.

    (A prepared operation has None in place of memory.)
    """
    lists = list(borrows.borrowed.values())
    return [view for views in lists for view in views if view is not None]


class _Mallinfo(ctypes.Structure):
    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks cost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def memory_in_use() -> dict[str, int]:
    """Return the count of Python's blocks, and with glibc the bytes from malloc."""
    # (the methods' cache keeps strings until it is full, which takes long)
    getattr(sys, "_clear_internal_caches", sys._clear_type_cache)()
    gc.collect()
    used = {"blocks": sys.getallocatedblocks()}
    if ask := getattr(ctypes.CDLL(None), "mallinfo2", None):
        ask.restype = _Mallinfo
        used["bytes"] = (info := ask()).uordblks + info.hblkhd
    return used
