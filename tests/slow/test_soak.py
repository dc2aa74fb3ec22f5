"""The soak for some seconds; faults that it must find; what it calls growth."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import sabotage
import trees
from links import linux_only
from proof.table import TESTS
from soak.samples import Sample, grown
from soak.ways import SHARES, shared_out

from aiozerocopy._core.binding import PORTABLE

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    linux_only,
    pytest.mark.skipif(PORTABLE, reason="the portable build has no rings"),
]


def soak(
    cwd: Path, seconds: int, environment: dict[str, str] | None = None
) -> tuple[int, str]:
    """Its exit status, and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "soak", "--seconds", str(seconds)],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_byte_is_right_for_some_seconds() -> None:
    status, said = soak(TESTS, 15)
    assert status == 0, said[-8000:]
    assert " GB in " in said


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package with the faults compiled in."""
    return trees.build(tmp_path_factory.mktemp("soaked"), AZC_SABOTAGE="1")


@pytest.mark.slow
@pytest.mark.builds
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("order", r"came where \d+ was due"),
        ("tail", "wrong byte"),
        ("rescue", "wrong byte"),
        ("detach", "(poison|canary|wrong) byte"),
        ("loan", "(poison|wrong) byte"),
    ],
)
def test_fault_is_found(tree: Path, fault: str, seen: str) -> None:
    faulty = trees.environment(tree, **{sabotage.VARIABLE: fault})
    status, said = soak(tree / "tests", 60, faulty)
    assert status == 1
    assert "wrong bytes: " in said
    assert re.search(seen, said), said[-2000:]


# ---- judging ------------------------------------------------------------------------


def samples(
    memory: float = 0, used: float = 0, fds: float = 0, threads: float = 0
) -> list[Sample]:
    """Minutes in which these are added each second, and a noise."""
    return [
        {
            "memory": 500e6 + memory * second + 1e6 * (second % 7),
            "used": 150e6 + used * second + 1e6 * (second % 5),
            "fds": 200 + fds * second + second % 5,
            "threads": 40 + threads * second + second % 3,
        }
        for second in range(200)
    ]


def test_what_is_flat_has_not_grown() -> None:
    assert grown(samples()) == []


@pytest.mark.parametrize(
    "what",
    [{"memory": 2e6}, {"used": 1e6}, {"fds": 1}, {"threads": 1}],
    ids=lambda what: next(iter(what)),
)
def test_what_grows_is_named(what: dict[str, float]) -> None:
    found = grown(samples(**what))
    assert [line.split()[0] for line in found] == [*what]


def test_every_way_has_its_share() -> None:
    ways = shared_out(128)
    assert len(ways) == 128
    assert set(ways) == set(SHARES)
