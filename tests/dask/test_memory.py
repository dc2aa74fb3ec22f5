"""Memory of large buffers is reused, once no view of it is left."""

from typing import Any

import pytest

pytest.importorskip("distributed", reason="needs Dask")
np = pytest.importorskip("numpy")

from aiozerocopy.dask import messages  # noqa: E402
from aiozerocopy.dask.messages import LARGE, UNIT, memory_for  # noqa: E402


@pytest.fixture(autouse=True)
def nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "_waiting", {})


def address(view: Any) -> int:
    return int(np.asarray(view).ctypes.data)


@pytest.mark.parametrize("nbytes", [0, 1, LARGE - 1, LARGE, LARGE + 1])
def test_memory_has_the_size_and_can_be_written(nbytes: int) -> None:
    view = memory_for(nbytes)
    assert (view.nbytes, view.format, view.ndim) == (nbytes, "B", 1)
    assert not view.readonly


def test_memory_is_used_again_when_it_is_gone() -> None:
    view = memory_for(2 * LARGE)
    place = address(view)
    del view
    assert len(messages._waiting) == 1
    assert address(memory_for(2 * LARGE - UNIT // 2)) == place


@pytest.mark.parametrize(
    "kept",
    [
        lambda view: view[1:2],
        lambda view: np.frombuffer(view, "u1")[5:6],
        lambda view: np.frombuffer(view, "u1").reshape(2, -1).T,
        lambda view: memoryview(np.asarray(view)),
    ],
)
def test_memory_that_can_still_be_seen_is_not(kept: Any) -> None:
    view = memory_for(LARGE)
    place = address(view)
    rest = kept(view)
    del view
    assert not messages._waiting
    assert address(memory_for(LARGE)) != place
    del rest
    assert place in map(address, messages._waiting.values())


def test_much_larger_memory_is_left_for_others() -> None:
    memory_for(4 * LARGE)  # dropped at once
    small = memory_for(LARGE)
    assert len(messages._waiting) == 1
    del small
    assert len(messages._waiting) == 2


@pytest.mark.parametrize("nbytes", [LARGE - 1, 4 * LARGE])
def test_small_memory_does_not_wait_nor_what_is_more_than_all(
    nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MOST", 3 * LARGE)
    memory_for(nbytes)
    assert not messages._waiting


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MOST", 3 * LARGE)
    views = [memory_for(LARGE) for _ in range(5)]
    places = [address(view) for view in views]
    while views:
        views.pop(0)
        assert sum(map(len, messages._waiting.values())) <= 3 * LARGE
    # (the oldest ones are gone)
    assert [address(one) for one in messages._waiting.values()] == places[2:]


def test_finalizer_in_the_middle_of_a_take() -> None:
    """Two takes never get the same memory, even if some comes back meanwhile."""
    views = [memory_for(LARGE) for _ in range(4)]
    held: list[Any] = []

    class Waiting(dict[int, Any]):
        def items(self) -> Any:
            found = super().items()
            if views:
                views.pop()  # its memory comes back now
                held.append(memory_for(LARGE))
            return found

    messages._waiting = Waiting()
    held.append(memory_for(LARGE))
    places = [address(view) for view in held]
    assert len(set(places)) == len(places)
    held.clear()
