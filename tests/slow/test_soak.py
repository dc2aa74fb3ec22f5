"""The soak for some seconds; faults that it must find; its measure of growth."""

import re
import sys
from pathlib import Path

import pytest
import sabotage
import trees
from links import linux_only
from proof.table import TESTS
from scripts import ran
from soak.samples import Sample, grown
from soak.ways import SHARES, shared_out

from aiozerocopy._core.binding import PORTABLE

pytestmark = [
    linux_only,
    pytest.mark.skipif(PORTABLE, reason="the soak needs the Linux build"),
]


def soak(
    cwd: Path, seconds: int, environment: dict[str, str] | None = None
) -> tuple[int, str]:
    """Run the soak; return its exit status and its output."""
    command = [sys.executable, "-m", "soak", "--seconds", seconds]
    done = ran(command, cwd=cwd, env=environment)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_byte_is_right_for_some_seconds() -> None:
    status, said = soak(TESTS, 15)
    assert status == 0, said[-8000:]
    assert " GB in " in said


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.sabotaged(tmp_path_factory.getbasetemp())


@pytest.mark.slow
@pytest.mark.builds
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("fault", "seen"),
    [("order", r"came where \d+ was due"), ("detach", "(poison|canary|wrong) byte")],
)
def test_fault_is_found(tree: Path, fault: str, seen: str) -> None:
    faulty = trees.environment(tree, **{sabotage.VARIABLE: fault})
    status, said = soak(tree / "tests", 60, faulty)
    assert status == 1
    assert "wrong bytes: " in said
    assert re.search(seen, said), said[-2000:]


def samples(**grows: float) -> list[Sample]:
    """Make samples of 200 seconds that grow this much each second, with noise."""
    begin = {"memory": 500e6, "fds": 200, "threads": 40}
    return [
        {
            what: value * (1 + second % 7 / 500) + grows.get(what, 0) * second
            for what, value in begin.items()
        }
        for second in range(200)
    ]


def test_what_grows_is_named() -> None:
    assert grown(samples()) == []
    for what, each_second in {"memory": 2e6, "fds": 1, "threads": 1}.items():
        found = grown(samples(**{what: each_second}))
        assert [line.split()[0] for line in found] == [what]


def test_every_way_has_its_share() -> None:
    ways = shared_out(128)
    assert len(ways) == 128
    assert set(ways) == set(SHARES)
