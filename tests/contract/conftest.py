"""The links that every clause is tested on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from links import EACH_WAY, KINDS, STALLING, Link, open_link

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=KINDS)
def link(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Link]:
    """One link of each kind."""
    with open_link(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture(params=STALLING)
def clogged(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Link]:
    """One link of each kind on which a send of `BIG` bytes waits for the reader."""
    with open_link(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture(params=EACH_WAY)
def some(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Link]:
    """As clogged, for what only depends on how the bytes go in and out."""
    with open_link(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Link]:
    """A pipe, for what does not depend on the kind of link."""
    with open_link("pipe", tmp_path) as opened:
        yield opened


@pytest.fixture(params=[True, False], ids=["ours", "plain"])
def ours(request: pytest.FixtureRequest) -> bool:
    """Does a stream of ours read at the other end, or a thread with plain calls?"""
    return bool(request.param)
