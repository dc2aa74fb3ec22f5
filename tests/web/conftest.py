"""What tests of the web server share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aiozerocopy.broadcast import Broadcast

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def hub() -> AsyncIterator[Broadcast]:
    async with Broadcast() as hub:
        yield hub
