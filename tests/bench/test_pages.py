"""No figure in the tables of the README and the documentation is typed by hand."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".make" / "bench_table.py"
PAGE = Path("docs", "pages", "benchmarks.md")
RESULTS = PAGE.with_suffix(".json")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Of what the script writes to."""
    (tmp_path / PAGE).parent.mkdir(parents=True)
    for name in (Path("README.md"), PAGE):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def write_tables(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(ROOT / RESULTS), str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_tables_are_those_of_the_results(copy: Path) -> None:
    done = write_tables(copy)
    assert done.returncode == 0, done.stderr
    for name in (Path("README.md"), PAGE, RESULTS):
        assert (copy / name).read_text() == (ROOT / name).read_text(), (
            f"{name}: run make bench-table"
        )
