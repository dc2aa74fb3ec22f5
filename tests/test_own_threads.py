"""The look for threads that were left sees all of them, whatever ends meanwhile."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from links import linux_only
from own_threads import thread_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = linux_only


@pytest.mark.timeout(60)
def test_none_is_missed_while_another_one_ends() -> None:
    """A single listing misses about one of 3,000 (twenty each round)."""
    for _ in range(1000):
        go, hold = threading.Event(), threading.Event()
        ending = threading.Thread(target=go.wait)
        lasting = threading.Thread(target=hold.wait)
        ending.start()
        lasting.start()
        go.set()
        looks = [thread_ids() for _ in range(20)]
        hold.set()
        ending.join()
        lasting.join()
        assert all(lasting.native_id in look for look in looks)


@pytest.mark.parametrize(
    "listings",
    [
        (["1", "2"], ["1", "3", "4"]),  # one ended early at 2, which has ended since
        (["1", "3"], ["1", "3"]),  # both ended early, where something takes its time
        (["1", "3"], ["1", "3", "4"]),  # 4 has begun between them
    ],
)
def test_listings_until_two_agree_and_are_whole(
    monkeypatch: pytest.MonkeyPatch, listings: Sequence[list[str]]
) -> None:
    whole = ["1", "3", "4"]
    told = iter((*listings, whole, whole))
    with monkeypatch.context() as patches:
        patches.setattr(os, "listdir", lambda _: next(told))
        patches.setattr(os, "stat", lambda _: SimpleNamespace(st_nlink=2 + 3))
        found = thread_ids()
    assert found == {1, 3, 4}
    assert not [*told]
