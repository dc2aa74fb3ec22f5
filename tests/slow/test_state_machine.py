"""Any calls in any order, on real links: see any_order.py."""

import os

import pytest
from links import linux_only

EXAMPLES = int(os.environ.get("AZC_EXAMPLES", "0"))


@linux_only
@pytest.mark.timeout(3600 if EXAMPLES else 300)
@pytest.mark.slow
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("link", ["pipe", "lending", "lending-unix", "unix", "tcp4"])
def test_any_calls_in_any_order(link: str, loop: str) -> None:
    # (Imported here, as these take long to import.)
    for name in ("hypothesis", loop):
        pytest.importorskip(name)
    import any_order

    any_order.run(link, loop)
