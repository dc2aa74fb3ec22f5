import anyio
import pytest

from aiozerocopy import sync


@pytest.fixture(scope="session", autouse=True)
def portal() -> None:
    """The first call makes the process's portal, which must not count as a leak."""
    sync.run(anyio.sleep, 0)
