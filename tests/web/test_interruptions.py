"""A request to the page that is disturbed anywhere leaves nothing, and nobody feels it.

As in ../core/test_interruptions.py, each request runs once to note the lines that it
goes through, and then once for each of them, where an exception comes.  It also runs
once for each turn of the event loop, where its task is cancelled or its client
disappears.  All this happens at one page, which others watch: they get every picture,
and the next client is served.

What is hit here is the request.  If an encoder is hit, its broadcast fails, as a task
group fails with its tasks; then the request ends, and the rest is the same.  The
broadcast must not be a fixture: its failure ends the task that entered it, which would
be the one that runs the fixtures, and pytest would wait for ever.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest

pytest.importorskip("numpy")
pytest.importorskip("h11")
pytest.importorskip("wsproto")

from guests import FACES, HEIGHT, STREAM, WATCHED, WIDTH, Guest, Invite
from interruption import LOOPS, Lines, Place, hit_each_line, run_on
from links import linux_only, until

import aiozerocopy as azc
from aiozerocopy.broadcast import Broadcast
from aiozerocopy.web import encoding, jpeg
from aiozerocopy.web.encoders import find_encoders

pytestmark = linux_only

ROOMS = ("web", "broadcast", "_net", "_core")
PATIENCE = 5.0  # seconds for what happens at once, or never
SHAPE = (HEIGHT, WIDTH, 3)
PICTURES = 2  # that a viewer looks at
SLOTS = 5  # for the newest two frames, the kept one, and one for each slow encoder
TURNS = 300  # more than any request takes

# What is asked for, and who watches meanwhile.
CASES = {
    "page": ("/", "/raw"),
    "part": ("/viewer.js", "/raw"),
    "health": ("/healthz", "/raw"),
    "status": ("/status", "/raw"),
    "metrics": ("/metrics", "/raw"),
    "no such page": ("/nothing", "/raw"),
    "raw": ("/raw", "/raw"),
    "raw, the first": ("/raw", STREAM),
    "jpeg": (STREAM, STREAM),
    "jpeg, the first": (STREAM, "/raw"),
    "h264": ("/h264", "/h264"),
}


class Page:
    """A page on a hub, a viewer that stays, and complaints."""

    def __init__(self, hub: Broadcast, invite: Invite, pool: azc.FramePool) -> None:
        self.complaints: list[str] = []
        self.seen = 0  # pictures, by the last visitor
        self._hub = hub
        self._invite = invite
        self._pool = pool
        self._other: Guest | None = None
        self._tasks: set[Any] = set()  # that stay
        self._clients = 0

    async def let_watch(self, path: str) -> None:
        """Let the viewer that stays begin to watch."""
        await self._publish()
        self._other = other = self._invite(path)
        await self._soon(lambda: other.pictures, "the first viewer sees nothing")
        self._tasks = asyncio.all_tasks()
        self._clients = len(self._hub.clients)

    def close(self) -> None:
        if self._other is not None:
            self._other.forget()

    def belongs_here(self) -> bool:
        """Is this a task that stays, one of the hub's, or the loop?

        (An exception in here would turn the tracing off.)
        """
        task = asyncio.current_task()
        if task is None:
            return True
        parent = anyio.get_current_task().parent_id
        return task in self._tasks or parent in {id(each) for each in self._tasks}

    async def visit(self, path: str, disturb: Callable[[Guest], object]) -> None:
        """Request a path, look at some pictures, and leave; ``disturb`` interferes."""
        guest = self._invite(path)
        disturb(guest)
        if path in WATCHED:
            await self._watch(guest)
        await self._soon(lambda: guest.is_over, "the call does not end")
        self.seen = guest.pictures
        guest.forget()

    async def _watch(self, guest: Guest) -> None:
        for count in range(1, PICTURES + 1):
            await self._soon(
                lambda: guest.is_over or guest.pictures >= count,  # noqa: B023
                "neither a picture nor an end",
            )
            await self._publish()
        guest.leave()

    async def look_around(self, path: str) -> None:
        """Publish a picture, which may clear up; then check that nothing is left."""
        gc.collect()
        await self._publish()
        tasks = self._tasks
        await self._soon(lambda: asyncio.all_tasks() <= tasks, "a task is left")
        await self._soon(
            lambda: len(self._hub.clients) == self._clients, "a client is left"
        )
        await self.visit(path, lambda _: None)
        if path in WATCHED and self.seen < PICTURES:
            self.complaints.append("a seat is still taken, and nobody else gets it")
        with anyio.move_on_after(PATIENCE) as scope:
            while await self._viewers() != 1:
                await self._publish()
        if scope.cancelled_caught:
            self.complaints.append("a viewer is left")

    async def _viewers(self) -> int:
        guest = self._invite("/status")
        await self._soon(lambda: guest.is_over, "no status")
        viewers: int = json.loads(guest.answer)["viewers"]
        guest.forget()
        return viewers

    async def _publish(self) -> None:
        """Publish a picture, which the viewer that stays must get."""
        try:
            frame = self._pool.acquire_nowait()
        except anyio.WouldBlock:
            self.complaints.append("a slot of the pool does not come back")
            return
        other = self._other
        before = other.pictures if other is not None else 0
        with frame:
            frame.view[:] = bytes([self._hub.sequence % 251]) * len(frame.view)
            await self._hub.publish(frame)
        if other is not None:
            await self._soon(
                lambda: other.pictures > before, "another viewer sees nothing"
            )

    async def _soon(self, condition: Callable[[], object], complaint: str) -> None:
        with anyio.move_on_after(PATIENCE) as scope:
            await until(condition)
        if scope.cancelled_caught:
            self.complaints.append(complaint)


@asynccontextmanager
async def opened(face: str, other: str) -> AsyncIterator[Page]:
    """A page that has room for one viewer beside the one that stays."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    with azc.FramePool(SHAPE, slots=SLOTS) as pool:
        async with Broadcast() as hub, FACES[face](hub, max_viewers=2) as invite:
            page = Page(hub, invite, pool)
            try:
                await page.let_watch(other)
                yield page
            finally:
                page.close()
        gc.collect()
        assert pool.stats.free == SLOTS


# ---- a signal's exception ---------------------------------------------------------


async def be_hit(page: Page, path: str, lines: Lines) -> list[str]:
    """Visit the page, hit at these lines, and look around; return the complaints."""
    with lines:
        await page.visit(path, lambda _: None)
    await page.look_around(path)
    complaints, page.complaints = page.complaints, []
    return complaints


def skip_what_cannot_be(face: str, loop: str, *paths: str) -> None:
    if face == "aiohttp":
        pytest.importorskip("aiohttp")
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    if "/h264" in paths and sys.version_info < (3, 11):
        pytest.skip("a tracer makes it leak an exception that no object refers to")
    if "/h264" in paths and find_encoders() is None:
        pytest.skip("needs PyAV or FFmpeg")
    if STREAM in paths and jpeg.find_compressor() is None:
        pytest.skip("needs simplejpeg or Pillow")


@pytest.fixture(autouse=True)
def finalizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep exceptions quiet in finalizers, which may be hit, too."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)


@pytest.fixture(autouse=True)
def short_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait less for a key frame, and between looks at aiohttp's viewers."""
    monkeypatch.setattr(encoding, "KEY_SECONDS", 0.0)
    if importlib.util.find_spec("aiohttp"):
        monkeypatch.setattr("aiozerocopy.web.on_aiohttp.LOOK_SECONDS", 0.01)
        # (guests answer no pings, so on a busy machine they would be sent away)
        monkeypatch.setattr("aiozerocopy.web.on_aiohttp.PING_SECONDS", 1000.0)


@pytest.fixture
def encoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encode without a thread, whose turns of the loop cannot be foreseen."""

    async def run_sync(call: Callable[..., Any], *args: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        return call(*args)

    monkeypatch.setattr(anyio.to_thread, "run_sync", run_sync)


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.usefixtures("encoded_at_once")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("name", CASES)
def test_one_line_after_the_other(name: str, face: str, loop: str) -> None:
    """Each loop hits every other of the places that it passes."""
    path, other = CASES[name]
    skip_what_cannot_be(face, loop, path, other)

    def some(places: list[Place]) -> list[Place]:
        places = [place for place in places if place[2] <= 2]
        return places[list(LOOPS).index(loop) :: 2]

    async def main() -> None:
        async with opened(face, other) as page:
            play = partial(be_hit, page, path)
            await hit_each_line(play, ROOMS, some, lambda: not page.belongs_here())

    run_on(loop, main)


# ---- a cancel, and a client who disappears, at each turn of the loop ----------------


class AtTurn:
    """Does something to a guest at this turn of the event loop after its arrival."""

    def __init__(self, turn: int, what: str) -> None:
        self.was_in_time = False
        self._left = turn
        self._what = what

    def __call__(self, guest: Guest) -> None:
        if guest.is_over:
            return
        if self._left:
            self._left -= 1
            asyncio.get_running_loop().call_soon(self, guest)
            return
        self.was_in_time = True
        gc.collect() if self._what == "collect" else getattr(guest, self._what)()


@pytest.mark.usefixtures("encoded_at_once")
@pytest.mark.parametrize("what", ["cancel", "vanish", "leave", "collect"])
@pytest.mark.parametrize(
    "loop", ["asyncio", pytest.param("uvloop", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    "name",
    [
        *("page", "raw"),
        pytest.param("raw, the first", marks=pytest.mark.slow),
        pytest.param("jpeg, the first", marks=pytest.mark.slow),
    ],
)
def test_one_turn_after_the_other(name: str, face: str, loop: str, what: str) -> None:
    """Go on until a turn comes too late: then each await has been disturbed."""
    path, other = CASES[name]
    skip_what_cannot_be(face, loop, path, other)

    async def main() -> None:
        async with opened(face, other) as page:
            for turn in range(TURNS + 1):
                disturbance = AtTurn(turn, what)
                await page.visit(path, disturbance)
                await page.look_around(path)
                assert not page.complaints, f"at turn {turn}: {page.complaints}"
                if what == "collect" and path in WATCHED:
                    assert page.seen >= PICTURES, f"at turn {turn}"
                if not disturbance.was_in_time:
                    break
            assert TURNS > turn > 1

    run_on(loop, main)
