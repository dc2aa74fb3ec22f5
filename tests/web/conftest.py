"""What tests of the web server share."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import browser as chromium
import pytest

from aiozerocopy.broadcast import Broadcast
from aiozerocopy.web.child import by_ffmpeg
from aiozerocopy.web.codecs import H264
from aiozerocopy.web.encoders import ffmpeg_if_any
from aiozerocopy.web.pyav import in_process


@pytest.fixture(autouse=True)
def quiet_asyncio() -> Iterator[None]:
    """Keep asyncio's warnings that a callback was slow out of ``caplog``."""
    log = logging.getLogger("asyncio")
    level = log.level
    log.setLevel(logging.ERROR)
    yield
    log.setLevel(level)


@pytest.fixture
async def hub() -> AsyncIterator[Broadcast]:
    async with Broadcast() as hub:
        yield hub


@pytest.fixture(params=["PyAV", "FFmpeg"])
def encoders(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the server encode H.264 in each of the two ways."""
    if request.param == "PyAV":
        pytest.importorskip("av")
        found: Any = partial(in_process, H264)
    else:
        ffmpeg = ffmpeg_if_any()
        if ffmpeg is None:
            pytest.skip("needs FFmpeg")
        found = partial(by_ffmpeg, ffmpeg)
    monkeypatch.setattr("aiozerocopy.web.modes.find_encoders", lambda *_, **__: found)
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Browser]:
    with chromium.running() as browser:
        browser.resize(1280, 800, 1, phone=False)
        yield browser


@pytest.fixture
async def page(browser: chromium.Browser) -> AsyncIterator[chromium.Page]:
    page = chromium.Page(browser)
    yield page
    await page.open("about:blank")
