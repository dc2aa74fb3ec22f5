"""The viewer in Firefox: the most important tests in Chromium, and what is its own.

Without a GPU it shows the blue of H.264 up to 12 off, as Chromium does: both turn
BT.709 into RGB by coarse arithmetic.  It was not tried with a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

import firefox
import pytest
from browser import Browser, Page
from web.test_browser import (
    look,
    publishing,
    test_a_browser_without_webcodecs_or_webgl,
    test_frames_on_the_screen_are_those_sent,
    test_numbers_that_are_shown,
    test_the_screen_shows_the_canvas,
    watch,
)
from web.test_browser_colours import SD, off, shown
from web.test_browser_states import (
    test_a_server_that_vanishes,
    test_pages_without_a_token,
    test_the_choice_of_a_way_by_keys,
    test_the_clock_of_the_quickest_answer,
    test_the_end_of_the_server,
)

from aiozerocopy import web
from aiozerocopy.broadcast import Broadcast
from aiozerocopy.web import jpeg

__all__ = [
    "test_a_browser_without_webcodecs_or_webgl",
    "test_a_server_that_vanishes",
    "test_frames_on_the_screen_are_those_sent",
    "test_numbers_that_are_shown",
    "test_pages_without_a_token",
    "test_the_choice_of_a_way_by_keys",
    "test_the_clock_of_the_quickest_answer",
    "test_the_end_of_the_server",
    "test_the_screen_shows_the_canvas",
]
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    firefox.NEEDED,
    pytest.mark.timeout(60),
]

NEAR = {"h264": 12, "av1": 15, "mjpeg": 3, "raw": 0}  # of 255, in the first pictures


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with firefox.running() as browser:
        browser.resize(1280, 800, 1, phone=False)
        yield browser


@pytest.mark.parametrize("mode", NEAR)
async def test_colours(page: Page, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jpeg, "lower", lambda quality: quality)
    seen = await shown(page, mode, "", SD, "rgb24", NEAR[mode])
    assert off(seen) <= NEAR[mode], seen


async def test_errors_are_noticed(page: Page) -> None:
    """The other tests check that there are none."""
    await page.open("about:blank")
    assert page.browser.complaints() == []
    await page.tell("setTimeout(() => { later = 1; throw new Error('one'); })")
    await page.until("self.later")
    await page.tell("console.error('two'); console.warn('three')")
    assert page.browser.complaints() == ["Error: one", "two"]


async def test_without_a_decoder() -> None:
    """As on a system without libavcodec: Firefox has WebCodecs, but no H.264."""
    with firefox.running({"media.ffmpeg.enabled": False}) as browser:
        page = Page(browser)
        async with Broadcast() as hub, web.serve(hub) as server, publishing(hub):
            if "h264" not in server.modes:
                pytest.skip("needs PyAV or FFmpeg")
            await watch(page, server.url)
            await look(page, next(mode for mode in server.modes if mode != "h264"))
            assert await page.tell("[...viewer.failed]") == ["h264"]
            assert browser.complaints() == []
            await page.open(f"{server.url}?mode=h264")
            assert "No H.264 decoder" in await page.says("unable")
            await page.open("about:blank")
