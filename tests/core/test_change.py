"""Who waits for a change is woken by it, in the loop's own thread or from any other."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import anyio
import pytest
from links import others_wait

from aiozerocopy._core import change
from aiozerocopy._core.change import Change, RemoteChange

pytestmark = [pytest.mark.anyio, pytest.mark.every_loop]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that only a change ends the wait."""
    monkeypatch.setattr(change, "LOOK_AGAIN", 1000.0)


class TestChange:
    async def test_all_who_wait_are_woken_once(self) -> None:
        it, woken = Change(), list[int]()

        async def wait(number: int) -> None:
            for _ in range(2):
                await it.next()
                woken.append(number)

        it.happen()  # nobody waits
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, 1)
            tasks.start_soon(wait, 2)
            for times in (1, 2):
                await others_wait()
                it.happen()
                it.happen()
                await others_wait()
                assert sorted(woken) == sorted([1, 2] * times)


@pytest.mark.usefixtures("patient")
class TestRemoteChange:
    def test_what_is_so_already_is_not_waited_for(self) -> None:
        """It needs no loop then."""
        coroutine = RemoteChange().wait(lambda: True)
        with pytest.raises(StopIteration):
            coroutine.send(None)

    async def test_another_thread_wakes_all(self) -> None:
        it, ready = RemoteChange(), list[None]()

        def happen() -> None:
            ready.append(None)
            it.happen()

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for _ in range(2):
                    tasks.start_soon(it.wait, lambda: bool(ready))
                await others_wait()
                assert len(it._wakes) == 2
                it.happen()  # too early: they look, and wait again
                await others_wait()
                assert len(it._wakes) == 2
                threading.Thread(target=happen).start()
        assert not it._wakes

    async def test_one_just_before_the_wait_is_seen(self) -> None:
        answers = iter([False, True])
        it = RemoteChange()
        with anyio.fail_after(10):
            await it.wait(lambda: next(answers))
        assert not it._wakes

    async def test_it_looks_once_in_a_while(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(change, "LOOK_AGAIN", 0.001)
        answers = iter([False] * 5 + [True])
        with anyio.fail_after(10):
            await RemoteChange().wait(lambda: next(answers))

    def test_loops_that_have_ended_are_passed_over(self) -> None:
        it, woken = RemoteChange(), list[str]()
        for _ in range(3):
            loop = asyncio.new_event_loop()
            loop.close()
            it._wakes.add(partial(loop.call_soon_threadsafe, print))
        it._wakes.add(lambda: woken.append("woken"))
        it.happen()
        assert woken == ["woken"]
