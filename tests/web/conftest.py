"""What tests of the web server share."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator

import browser as chromium
import pytest

from aiozerocopy.broadcast import Broadcast


@pytest.fixture(autouse=True)
def quiet_asyncio() -> Iterator[None]:
    """Keep its warnings of slow callbacks, on a busy machine, out of ``caplog``."""
    log = logging.getLogger("asyncio")
    level = log.level
    log.setLevel(logging.ERROR)
    yield
    log.setLevel(level)


@pytest.fixture
async def hub() -> AsyncIterator[Broadcast]:
    async with Broadcast() as hub:
        yield hub


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
