"""No figure in the tables of the README and the documentation is typed by hand."""

import shutil
import sys
from pathlib import Path

import pytest
from scripts import output

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


def test_tables_are_those_of_the_results(copy: Path) -> None:
    output([sys.executable, SCRIPT, ROOT / RESULTS, copy])
    for name in (Path("README.md"), PAGE, RESULTS):
        assert (copy / name).read_text() == (ROOT / name).read_text(), (
            f"{name}: run make bench-table"
        )
