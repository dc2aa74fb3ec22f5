"""Connections of ours, which are closed with the test."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from links import others_wait
from tls_ends import Contexts, Ends, Joined
from transports import End, opened


@pytest.fixture
async def end(anyio_backend: object) -> AsyncIterator[End]:
    async with opened() as end:
        yield end


@pytest.fixture
async def joined(tls: Contexts, anyio_backend: object) -> AsyncIterator[Joined]:
    """What makes both ends of TLS; their handshake has begun."""
    made: list[Ends] = []

    def join(contexts: Contexts = tls, **options: Any) -> Ends:
        made.append(Ends(contexts, **options))
        return made[-1]

    yield join
    for ends in made:
        ends.abort()
    await others_wait()


@pytest.fixture
async def ends(joined: Joined) -> Ends:
    """Their handshake is over."""
    return await joined().shake()
