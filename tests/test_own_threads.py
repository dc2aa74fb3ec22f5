"""The look for threads that were left sees all of them, whatever ends meanwhile."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from links import linux_only
from own_threads import thread_ids

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


def test_listings_until_two_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one ended early, at thread 2; then thread 4 began."""
    listings = iter((["1", "2"], ["1", "3"], ["1", "3", "4"], ["1", "3", "4"]))
    with monkeypatch.context() as patches:
        patches.setattr(os, "listdir", lambda _: next(listings))
        found: set[Any] = thread_ids()
    assert found == {1, 3, 4}
    assert not [*listings]
