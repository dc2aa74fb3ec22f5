import anyio
import pytest

from aiozerocopy import sync


@pytest.fixture(scope="session", autouse=True)
def portal() -> None:
    """There is one for the process, from the first call on: that is no leak."""
    sync.run(anyio.sleep, 0)
