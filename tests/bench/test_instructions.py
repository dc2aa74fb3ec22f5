"""A small message takes no more instructions than before, relative to asyncio's.

`pytest bench/test_instructions.py -s` prints the counts.  When they have become fewer,
lower the bounds, which are 5 % above what was counted.
"""

import sys

import pytest

from bench.instructions import counted
from bench.processes import Lab
from bench.race import Lacking

VERSION = sys.version_info[:2]


@pytest.fixture(scope="module")
def counts() -> dict[str, float]:
    if not (3, 11) <= VERSION <= (3, 13):
        pytest.skip("the bounds are for Python 3.11 to 3.13")
    try:
        with Lab() as lab:
            found = counted(lab)
    except Lacking as lack:
        pytest.skip(str(lack))
    print("", *(f"{name}: {n:,.0f}" for name, n in found.items()), sep="\n")
    return found


@pytest.mark.parametrize(
    ("ours", "theirs", "most"),
    [
        ("send, bytes", "sock_sendall, bytes", (1.07, 0.94, 0.95)),
        ("send, memoryview", "sock_sendall, memoryview", (1.36, 1.23, 1.23)),
        ("send_many", "sock_sendall, memoryview", (0.228, 0.2, 0.194)),
        ("receive_exactly", "sock_recv_into", (1.66, 1.54, 1.55)),
        ("transport write", "asyncio's write", (0.77, 0.48, 0.4)),
    ],
)
def test_instructions_of_one_message(
    ours: str, theirs: str, most: tuple[float, ...], counts: dict[str, float]
) -> None:
    """On Python 3.11, 3.12 and 3.13."""
    assert counts[ours] / counts[theirs] < most[VERSION[1] - 11], counts
