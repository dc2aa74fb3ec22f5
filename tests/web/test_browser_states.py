"""What the viewer says of itself in a real browser: each state of its page."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import browser as chromium
import numpy as np
import pytest
from browser import Page
from links import until
from web_client import needs_jpeg

from aiozerocopy import web
from aiozerocopy.broadcast import Broadcast
from aiozerocopy.web import site, websocket
from aiozerocopy.web.request import Refused

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    chromium.NEEDED,
    pytest.mark.timeout(60),
]

PICTURE = np.full((90, 160, 3), (200, 40, 90), np.uint8)
publishing = partial(chromium.publishing, picture=PICTURE)
SOON = 3000  # ms: before its picture is this old, the page says that it is not live
LIVE = "document.body.dataset.state === 'live'"
# How old the picture was when the page said that it is not live.
NOTE_AGE = f"""new MutationObserver(() => {{
    if (!({LIVE})) window.ageThen ??= performance.now() - viewer.lastFrame;
}}).observe(document.body, {{attributes: true}})"""
NOTE_STATES = """window.states = [];
new MutationObserver(() => window.states.push(document.body.dataset.state)).observe(
    document.body, {attributes: true}
)"""
# From the next picture on the page is hidden, until `show` is called.  It still gets
# animation frames, as hidden pages do in Firefox.
HIDE = """{
    const real = requestAnimationFrame;
    self.requestAnimationFrame = (paint) => {
        Object.defineProperty(document, "hidden", {value: true, configurable: true});
        self.show = () => {
            delete document.hidden;
            document.dispatchEvent(new Event("visibilitychange"));
        };
        self.requestAnimationFrame = real;
        return real(paint);
    };
}"""

# The page's clock is quicker than its timers: it is out of patience sooner.
HASTE = """{
    const real = performance.now.bind(performance);
    performance.now = () => 4 * real();
}"""

each_mode = pytest.mark.parametrize("mode", ["h264", "mjpeg", "raw"])


@asynccontextmanager
async def serving(hub: Broadcast, mode: str = "raw", **options: Any) -> Any:
    async with web.serve(hub, modes=[mode], **options) as server:
        if server.modes != (mode,):
            pytest.skip(f"{mode} needs a package or FFmpeg")
        yield server


@dataclass
class Link:
    """The way from the server to the page."""

    is_stuck: bool = False  # no picture gets through

    def wrap(self, buffers: Any) -> Any:
        return (b"",) if self.is_stuck else websocket.in_a_frame(buffers)


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    link = Link()
    monkeypatch.setattr(websocket.WebSocket, "wrap", staticmethod(link.wrap))
    return link


async def test_connecting(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    go, send_status = anyio.Event(), site.Site._send_status

    async def late(*args: Any) -> None:
        await go.wait()
        await send_status(*args)

    monkeypatch.setattr(site.Site, "_send_status", late)
    async with Broadcast() as hub, serving(hub) as server, publishing(hub):
        await page.open(server.url)
        assert await page.says("connecting") == "Connecting to the server"
        go.set()
        await page.says("live")


@each_mode
async def test_a_source_that_begins_and_pauses(page: Page, mode: str) -> None:
    async with Broadcast() as hub, serving(hub, mode) as server:
        await page.open(server.url)
        assert await page.says("waiting") == "Connected, waiting for the first frame"
        assert await page.tell("document.getElementById('picture').hidden")
        async with publishing(hub):
            await page.says("live")
            await page.tell(NOTE_AGE)
        assert await page.until("window.ageThen") < SOON
        said = await page.says("paused")
        assert "The server answers: its source has paused." in said
        assert re.search(r"Last frame \d+ s ago", said)
        async with publishing(hub):
            await page.says("live")


@each_mode
async def test_a_server_that_is_frozen(page: Page, mode: str) -> None:
    """Its connections stay open, and nothing comes."""
    async with Broadcast() as hub, serving(hub, mode) as server, publishing(hub):
        await page.open(server.url)
        await page.says("live")
        await page.tell(NOTE_AGE)
        # Called in the loop's thread, this holds up the loop, and with it the server.
        assert page.browser.wait_until("window.ageThen") < SOON
        text = "document.getElementById('notice').innerText"
        page.browser.wait_until("document.body.dataset.state === 'lost'")
        assert "The server does not answer" in page.browser.evaluate(text)
        await page.says("live")


async def test_frames_that_do_not_get_through(page: Page, link: Link) -> None:
    async with Broadcast() as hub, serving(hub) as server, publishing(hub):
        await page.open(server.url)
        await page.says("live")
        link.is_stuck = True
        assert "the connection is too slow" in await page.says("stalled")
        link.is_stuck = False
        await page.says("live")


@pytest.mark.parametrize(
    ("offered", "query"), [(["raw"], ""), (["mjpeg", "raw"], "?mode=raw")]
)
async def test_the_first_frame_takes_long(
    page: Page, offered: list[str], query: str, link: Link
) -> None:
    """There is no other way, or the viewer has chosen this one: the page waits."""
    link.is_stuck = True
    async with page.changed_by(HASTE), Broadcast() as hub:
        async with web.serve(hub, modes=offered) as server, publishing(hub):
            await page.open(server.url + query)
            assert "the connection is too slow" in await page.says("stalled")
            await page.tell("self.first = viewer.connection")
            await page.until("first.answer - first.begin > 7000")
            assert await page.tell("first === viewer.connection")
            link.is_stuck = False
            await page.says("live")


@needs_jpeg
async def test_a_way_that_shows_nothing(page: Page, link: Link) -> None:
    """The page takes another one; if that is lost, it begins again with the best."""
    link.is_stuck = True
    async with page.changed_by(HASTE), Broadcast() as hub:
        async with web.serve(hub, modes=["mjpeg", "raw"]) as server, publishing(hub):
            await page.open(server.url)
            await page.until("viewer.connection && viewer.mode === 'mjpeg'")
            await page.until("viewer.connection && viewer.mode === 'raw'")
            await until(lambda: len(hub.clients) == 1)
            hub.clients[0].stream.abort()  # type: ignore[attr-defined]
            link.is_stuck = False
            await page.until(f"viewer.mode === 'mjpeg' && {LIVE}")


@each_mode
async def test_frames_that_cannot_be_shown(page: Page, mode: str) -> None:
    picture, reason = PICTURE.astype(np.float32), "Its dtype is float32, not uint8."
    async with Broadcast() as hub, serving(hub, mode) as server:
        async with publishing(hub, picture=picture):
            await page.open(server.url)
            said = await page.says("unshowable")
            assert said.split("\n\n") == ["This frame cannot be shown", reason]
        async with publishing(hub):
            await page.says("live")
        await hub.publish(picture)
        assert reason in await page.says("unshowable")
        page.browser.wait_until("document.body.dataset.state === 'lost'")
        reason = page.browser.evaluate("document.getElementById('reason').innerText")
        assert reason == "Trying again until it does."


@each_mode
async def test_the_end_of_the_server(page: Page, mode: str) -> None:
    async with Broadcast() as hub, publishing(hub):
        async with serving(hub, mode) as server:
            port = server.port
            await page.open(server.url)
            await page.says("live")
        assert (await page.says("ended")).startswith("The stream has ended")
        async with serving(hub, mode, port=port):
            await page.says("live")


async def test_an_end_while_the_page_asks(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer fails just before the stream ends: the page still notices the end."""
    asked = anyio.Event()

    async def fail(*_: object) -> None:
        asked.set()
        raise Refused(503, "the server is about to end")

    async with Broadcast() as hub:
        async with serving(hub) as server:
            async with publishing(hub):
                await page.open(server.url)
                await page.says("live")
            monkeypatch.setitem(server._site._routes, "/status", fail)
            await page.tell(NOTE_STATES)
            await asked.wait()
        await page.says("ended")
        assert "lost" not in await page.tell("window.states")


async def test_a_server_that_vanishes(page: Page) -> None:
    """It comes back: at first with the same token, and then with another."""
    async with Broadcast() as hub, publishing(hub):
        async with serving(hub, token="sesame") as server:
            port = server.port
            await page.open(server.url)
            await page.says("live")
            for client in hub.clients:
                client.stream.abort()  # type: ignore[attr-defined]
            assert "Trying again until it does." in await page.says("lost")
            await page.says("live")
        async with serving(hub, port=port, token="another"):
            assert "It says: this token is wrong." in await page.says("refused")


@pytest.mark.parametrize(
    ("given", "headline"),
    [("", "A token is needed"), ("?token=x", "This token is wrong")],
)
async def test_pages_without_a_token(page: Page, given: str, headline: str) -> None:
    async with Broadcast() as hub, publishing(hub):
        async with serving(hub, token="open sesame") as server:
            await page.open(f"http://127.0.0.1:{server.port}/{given}")
            assert await page.tell("document.querySelector('h1').innerText") == headline
            await page.until("document.activeElement.id === 'token'")
            await page.tell("document.activeElement.value = 'open sesame'")
            click = "document.querySelector('button').click()"
            await page.do(page.browser.follow, click)
            await page.says("live")
            assert await page.tell("location.search") == ""  # no token in the address


async def test_states_are_announced(page: Page) -> None:
    region = "document.querySelector('[aria-live=polite]').textContent"
    async with Broadcast() as hub, serving(hub) as server:
        await page.open(server.url)
        await page.says("waiting")
        assert await page.tell(region) == "Connected, waiting for the first frame"
        async with publishing(hub):
            await page.says("live")
            assert await page.tell(region) == "Live"
        await page.says("paused")
        before = await page.tell(region)
        assert before == "No new frames. The server answers: its source has paused."
        age = "document.getElementById('age').innerText"
        first = await page.tell(age)
        await page.until(f"{age} !== '{first}'")
        assert await page.tell(region) == before  # the seconds are not read out


async def test_the_choice_of_a_way_by_keys(page: Page) -> None:
    """Arrows choose, and the focus stays where it is."""
    focused = "document.activeElement.value"
    async with Broadcast() as hub, web.serve(hub) as server, publishing(hub):
        if server.modes != ("h264", "mjpeg", "raw"):
            pytest.skip("needs FFmpeg, and simplejpeg or Pillow")
        await page.open(server.url)
        await page.says("live")
        await page.tell("document.querySelector('#modes :checked').focus()")
        for key, mode in (("ArrowLeft", "raw"), ("ArrowLeft", "mjpeg")):
            await page.do(page.browser.press, key)
            await page.until(f"viewer.mode === '{mode}' && {LIVE}")
            assert await page.tell(focused) == mode
            chosen = "document.querySelector('#modes :checked').value"
            assert await page.tell(chosen) == mode


@each_mode
async def test_what_counts_as_dropped(page: Page, mode: str) -> None:
    """Frames that a busy page misses count, but not those that a hidden one skips."""
    shown = "document.getElementById('dropped').textContent"
    hold = "for (const end = performance.now() + 1000; performance.now() < end;);"
    async with Broadcast() as hub, serving(hub, mode) as server, publishing(hub):
        await page.open(server.url)
        await page.until("viewer.numbers.history.length > 0")
        await page.tell(HIDE)
        await page.until("self.show")
        before = await page.tell("viewer.sequence")
        await page.until(f"viewer.connection.newest > {before} + 30")
        assert await page.tell("viewer.sequence") == before
        await page.tell("viewer.numbers.history = []; show()")
        await page.until("viewer.numbers.history.length > 0")
        assert await page.tell("viewer.numbers.dropped") < 10
        await page.tell(hold)
        await page.until(f"Number({shown}) >= 10")
        await page.tell(f"viewer.want('{mode}')")
        await page.until(f"{LIVE} && {shown} === '0'")


async def test_the_clock_of_the_quickest_answer(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks how far the server's clock is ahead: here both have the same clock."""
    send_status, late = site.Site._send_status, 0.0

    async def send(*args: Any) -> None:
        await anyio.sleep(late)
        await send_status(*args)

    monkeypatch.setattr(site.Site, "_send_status", send)
    ask = "viewer.ask().then(() => viewer.numbers.ahead)"
    async with Broadcast() as hub, serving(hub) as server:
        await page.open(server.url)
        await page.says("waiting")
        ahead = await page.tell(ask)
        late = 0.4  # (the page assumes that the server looked halfway)
        assert await page.tell(ask) == ahead
    assert abs(ahead) < 100


async def test_the_axis_of_the_latency(page: Page) -> None:
    """Its top is round, without the first frame, which may have waited for hours."""
    async with Broadcast() as hub, serving(hub) as server:
        await hub.publish(PICTURE, timestamp_ns=1)
        await page.open(server.url)
        await page.until("viewer.numbers.total === 1")
        async with publishing(hub):
            await page.until("viewer.numbers.history.length > 10")
            await page.tell("viewer.graph.top = 0")  # until it is drawn again
            top = await page.until("viewer.graph.top")
        assert top in {step * 10**n for step in (1, 2, 5) for n in range(1, 4)}
