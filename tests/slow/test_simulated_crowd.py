"""The cost of one channel among 100,000, with the simulation of tests/sim/crowd.c.

AZC_CROWD sets the largest number of channels (10,000).  The figures are memory and work
of the C part only; Python's objects and a kernel's sockets are not included.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import figures
import pytest
from scripts import output

ROOT = Path(__file__).parents[2]
MOST = int(os.environ.get("AZC_CROWD", "10000"))
SIZES = [10**power for power in range(1, 10) if 10**power <= MOST]
MANY = 1000  # with this many, costs shared by all channels hardly count
BYTES = 1500  # of memory for a channel with a queued message
RUNS = 3
SLOWER = 6.0  # caches are small; a search of all channels would take 100 times as long

pytestmark = [
    pytest.mark.slow,
    pytest.mark.builds,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        sys.platform != "linux" or not shutil.which("cc"),
        reason="needs Linux and a C compiler",
    ),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """Run the program for each size; return its figures, and its least times.

    (Neighbours that are busy empty its caches, so that it takes more processor time.)
    """
    program = tmp_path_factory.mktemp("crowd") / "crowd"
    sources = [
        *(path for path in (ROOT / "csrc").glob("*.c") if path.stem != "poller_poll"),
        ROOT / "tests" / "sim" / "crowd.c",
    ]
    flags = ["-std=c11", "-D_GNU_SOURCE=1", "-Wall", "-Wextra", "-O2"]
    command = ["cc", *flags, f"-I{ROOT / 'csrc'}", *map(str, sources)]
    subprocess.run([*command, "-lpthread", "-o", str(program)], check=True)
    told = {}
    for size in SIZES:
        runs = [json.loads(output([program, size])) for _ in range(RUNS)]
        least = {
            what: min(each[what] for each in runs) for what in ("one_us", "round_us")
        }
        told[size] = runs[0] | least
    return told


def values(found: dict[int, dict[str, Any]], what: str) -> Sequence[float]:
    return [each[what] for size, each in found.items() if size >= MANY]


def test_one_thread_serves_all(found: dict[int, dict[str, Any]]) -> None:
    assert {each["threads"] for each in found.values()} == {1}


def test_memory_of_each_stays_the_same(found: dict[int, dict[str, Any]]) -> None:
    assert max(values(found, "idle")) <= max(values(found, "stuck")) < BYTES


def test_who_is_stuck_costs_the_others_nothing(
    found: dict[int, dict[str, Any]],
) -> None:
    """A send takes as many calls, and about as much time, however many are stuck."""
    for what in ("one", "round"):
        assert {each[f"{what}_sends"] for each in found.values()} == {2}
        assert max(values(found, f"{what}_waits")) < 4
        assert max(values(found, f"{what}_us")) < SLOWER * found[MANY][f"{what}_us"]


def test_figures(found: dict[int, dict[str, Any]]) -> None:
    most = found[SIZES[-1]]
    for what, value, unit in (
        ("memory of a socket", most["idle"], "bytes"),
        ("memory of a socket with half a message", most["stuck"], "bytes"),
        ("processor for a message, all at once", most["round_us"], "µs"),
        ("processor for a message, all others stuck", most["one_us"], "µs"),
    ):
        figures.worst(what, value, unit)
    figures.worst("threads for all sockets", most["threads"])
    figures.worst("sockets in one process", SIZES[-1])
    figures.remark(
        "not shown", "what Python's objects and a real kernel's sockets need for each"
    )
