"""Our connections, closed at the end of the test."""

from collections.abc import AsyncIterator

import pytest
from transports import End, opened


@pytest.fixture
async def end(anyio_backend: object) -> AsyncIterator[End]:
    async with opened() as end:
        yield end
