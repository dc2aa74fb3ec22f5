"""The links on which every clause of the contract is tested."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from links import EACH_WAY, KINDS, STALLING, Link, open_link

OF_ALL_KINDS = ("link", "clogged", "source")  # fixtures


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all links on asyncio; on other loops, one link for each way in and out."""
    here = Path(__file__).parent
    items[:] = [it for it in items if it.path.parent != here or not _is_spare(it)]


def _is_spare(item: pytest.Item) -> bool:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    kinds = {parameters[name] for name in OF_ALL_KINDS if name in parameters}
    return parameters.get("anyio_backend", "asyncio") != "asyncio" and not (
        kinds <= {*EACH_WAY}
    )


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
    """Like clogged, for tests that depend only on how bytes are read and written."""
    with open_link(request.param, tmp_path) as opened:
        yield opened


@pytest.fixture(params=[True, False], ids=["ours", "plain"])
def ours(request: pytest.FixtureRequest) -> bool:
    """Whether a stream of ours reads at the other end, or a thread with plain calls."""
    return bool(request.param)
