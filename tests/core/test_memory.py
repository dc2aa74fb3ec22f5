"""Leases of memory, step by step: each lasts as long as its views, and no longer.

Pools, which use leases, have their tests in core/test_pool.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
import mmap
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from answering import interrupt
from interruption import hit_after_each_call
from links import FREE_THREADED, linux_only

from aiozerocopy._core import memory as core
from aiozerocopy._core.memory import (
    Claim,
    FileMemory,
    Memory,
    Slots,
    _Terms,
    finalizing_view,
    is_over,
)

if TYPE_CHECKING:
    Ending = Callable[[], object]
    Lease = Callable[[Ending], memoryview]

UNUSED = -1  # not the key of a real lease


def nothing() -> None:
    pass


def claim(slots: Slots) -> tuple[int | None, _Terms]:
    """Claim a slot; return its index, and the object that keeps it leased."""
    life = object()
    _, number = slots.claim(_Terms(life, nothing)) or (0, None)
    return number, _Terms(life, nothing)


class TestInterruptedLeases:
    """Leases without a holder that have not ended."""

    @pytest.fixture
    def ends(self) -> Iterator[list[str]]:
        ends: list[str] = []
        core._leases[UNUSED] = _Terms(object(), partial(ends.append, "ended"))
        yield ends
        core._leases.pop(UNUSED, None)

    def test_who_asks_ends_it(self, ends: list[str]) -> None:
        assert is_over(UNUSED)
        assert is_over(UNUSED)
        assert ends == ["ended"]

    def test_a_sweep_ends_it(self, ends: list[str]) -> None:
        core.sweep()
        assert ends == ["ended"]
        assert UNUSED not in core._leases

    def test_one_that_is_held_does_not_end(self, ends: list[str]) -> None:
        life = core._leases[UNUSED].life
        assert not is_over(UNUSED)
        core.sweep()
        assert not ends
        del life
        assert is_over(UNUSED)


class Witness:
    """Notes its finalization, and the content of its memory at that time."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.view: memoryview | None = None
        self.others: object = None

    def __del__(self) -> None:
        assert self.view is not None
        self.events.append(bytes(self.view[:4]).decode())


@pytest.fixture(params=["pool", "file", "other memory"])
def lease(request: pytest.FixtureRequest) -> Iterator[Lease]:
    """Lease four bytes, which stay mapped even after the lease."""
    if request.param == "file" and sys.platform != "linux":
        pytest.skip("Linux only")
    kinds: dict[str, Callable[[], Memory]] = {
        "pool": partial(Memory, 4, 1),
        "file": partial(FileMemory, 4, 1),
    }
    kept = [kinds.get(request.param, partial(bytearray, 4))()]

    def lease_it(on_end: Ending) -> memoryview:
        (memory,) = kept
        if isinstance(memory, bytearray):
            return finalizing_view(memory, on_end)
        view: memoryview | None = memory.lease(on_end)
        assert view is not None
        return view

    yield lease_it
    memory = kept.pop()  # (pytest keeps the function for longer)
    if isinstance(memory, FileMemory):
        memory.file.close()


def lost_in_a_cycle(lease: Lease) -> list[str]:
    """Lose a lease in a cycle with an older and a younger witness; return events."""
    events: list[str] = []
    older, view = Witness(events), lease(partial(events.append, "end"))
    younger = Witness(events)
    view[:4] = b"seen"
    older.view = younger.view = view[:4]
    older.others, younger.others = younger, older
    keeps_them = weakref.ref(older, lambda _: events.append("callback"))
    del older, younger, view
    assert not events
    gc.collect()
    assert keeps_them() is None
    return events


class TestCycles:
    """The collector finalizes in any order; a lease ends after all the witnesses."""

    def test_it_ends_after_all_finalizers(self, lease: Lease) -> None:
        assert lost_in_a_cycle(lease) == ["callback", "seen", "seen", "end"]

    @pytest.mark.skipif(FREE_THREADED, reason="the collector has another order")
    def test_a_lease_that_the_collector_tracks_is_caught(
        self, lease: Lease, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The negative control: a lease that is tracked, as subclasses of int are."""
        monkeypatch.setattr(core, "_untrack", gc.is_tracked)
        assert lost_in_a_cycle(lease).index("end") < 3

    def test_one_that_is_taken_out_of_the_garbage_goes_on(self, lease: Lease) -> None:
        class Rescuer(Witness):
            def __del__(self) -> None:
                super().__del__()
                rescued.append(self)

        rescued: list[Rescuer] = []
        events: list[str] = []
        it = Rescuer(events)
        it.view, it.others = lease(partial(events.append, "end")), it
        it.view[:4] = b"seen"
        del it
        gc.collect()
        (it,) = rescued
        rescued.clear()
        assert it.view is not None
        assert bytes(it.view) == b"seen"
        assert events == ["seen"]
        del it
        gc.collect()
        assert events == ["seen", "end"]

    def test_frozen_or_without_a_collector(self, lease: Lease) -> None:
        events: list[str] = []
        view = lease(partial(events.append, "end"))
        gc.disable()
        gc.freeze()
        try:
            del view
            assert events == ["end"]
        finally:
            gc.unfreeze()
            gc.enable()


class TestSlots:
    def test_two_pools_have_slots_of_their_own(self) -> None:
        pools = Slots(2), Slots(2)
        claims = [claim(slots) for slots in (*pools, *pools)]
        assert [index for index, _ in claims] == [0, 0, 1, 1]

    def test_the_same_again(self) -> None:
        slots = Slots(3, in_circle=False)
        assert claim(slots)[0] == 0
        first, held = claim(slots)
        second, also_held = claim(slots)
        assert (first, second) == (0, 1)
        assert claim(slots)[0] == 2
        del held, also_held
        assert claim(slots)[0] == 2  # (the slot whose memory is still in caches)

    def test_a_lease_that_ends_late_ends_no_other(self) -> None:
        """Without the GIL, another thread may deallocate the lease late."""
        slots = Slots(1)
        _, held = claim(slots)
        late = core._Lease(slots._keys[0])
        del held
        again = claim(slots)
        assert again[0] == 0
        del late
        assert slots.free() == 0


class TestMemory:
    @linux_only
    def test_that_of_a_lost_pool_is_given_back(self) -> None:
        def size() -> int:
            return int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE

        before = size()
        for _ in range(3):
            memory = Memory(64 << 20, 4)
            cycle: list[object] = [memory, memory.lease(nothing), memory.lease(nothing)]
            cycle.append(cycle)
            assert size() > before + (200 << 20)
            del memory, cycle
            gc.collect()
            assert size() < before + (32 << 20)

    def test_nothing_is_leased_after_its_end(self) -> None:
        """A finalizer that runs after the memory's own may try this."""
        memory = Memory(10, 1)
        memory.__del__(lambda: False)
        with pytest.raises(ValueError, match="given back"):
            memory.lease(nothing)
        assert memory.slots.free() == 1

    def test_one_that_was_never_mapped(self) -> None:
        Memory.__new__(Memory).__del__()
        with pytest.raises((OSError, OverflowError)):
            Memory(1 << 62, 4)


class TestClaims:
    def test_without_a_view_it_ends_with_itself(self) -> None:
        ends: list[str] = []
        first = Claim(partial(ends.append, "first"))
        second = Claim(partial(ends.append, "second"))
        assert first.key != second.key
        core.sweep()  # (another thread may do this, before the claims have views)
        del first
        assert ends == ["first"]
        del second
        assert ends == ["first", "second"]


@contextlib.contextmanager
def file_memory() -> Iterator[FileMemory]:
    memory = FileMemory(mmap.PAGESIZE + 1, 3)
    try:
        yield memory
    finally:
        memory.file.close()


@linux_only
class TestFileMemory:
    def test_the_file_has_what_is_in_the_views(self) -> None:
        with file_memory() as memory:
            views = [memory.lease(nothing) for _ in range(3)]
            for n, view in enumerate(views):
                assert view is not None
                view[:3] = b"%03d" % n
                assert memory.number_of(view) == n
                data = os.pread(memory.file.fileno(), 3, n * memory.stride)
                assert data == b"%03d" % n

    def test_nobody_can_make_it_shorter(self) -> None:
        with file_memory() as memory:
            wanted = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            assert fcntl.fcntl(memory.file.fileno(), fcntl.F_GET_SEALS) == wanted
            assert not os.get_inheritable(memory.file.fileno())
            for size in (0, 2 * memory.nbytes):
                with pytest.raises(PermissionError):
                    os.ftruncate(memory.file.fileno(), size)

    @pytest.mark.filterwarnings("ignore:unclosed")
    def test_an_interruption_leaves_no_fd(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "unraisablehook", lambda _: None)

        async def make() -> None:
            FileMemory(mmap.PAGESIZE, 1).file.close()

        asyncio.run(hit_after_each_call(make, "_core.memory"))

    def test_a_failure_leaves_no_fd(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(ValueError, match="empty"):
            FileMemory(1, 0)
        monkeypatch.setattr(core, "pin", interrupt)
        with pytest.raises(KeyboardInterrupt):
            FileMemory(1, 1)
