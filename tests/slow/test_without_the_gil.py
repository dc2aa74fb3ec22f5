"""Tests on a Python without the GIL, which `make python-t` builds.

Where `.make/python-t --tsan` has built one for it, ThreadSanitizer looks at every
access in Python, cffi and the package.
"""

import os
import re
from pathlib import Path

import figures
import pytest
import trees
from scripts import output

PLAIN = trees.ROOT / ".python-t"
FOR_TSAN = trees.ROOT / ".python-tsan"

pytestmark = [pytest.mark.slow, pytest.mark.builds, pytest.mark.timeout(1200)]


def python_in(folder: Path, command: str) -> str:
    python = folder / "bin/python3.14t"
    if not python.exists():
        pytest.skip(f"needs {command}")
    return str(python)


def passed(tree: Path, python: tuple[str, ...], *tests: str, **settings: str) -> int:
    process = trees.start_tests(
        tree, *tests, python=python, PYTHONPATH=str(tree), **settings
    )
    with process:
        said, _ = process.communicate()
    print(said)
    assert process.returncode == 0
    count = re.search(r"^(\d+) passed", said, re.MULTILINE)
    assert count is not None
    return int(count[1])


def test_without_the_gil(tmp_path: Path) -> None:
    python = python_in(PLAIN, "make python-t")
    tree = trees.build(tmp_path / "tree", (python,))
    look = "import sys, aiozerocopy.sync; print(sys._is_gil_enabled())"
    assert output([python, "-c", look], cwd=tree).strip() == "False"
    rooms = ("tests/contract", "tests/sync")
    count = passed(tree, (python,), "-m", "not slow and not quiet", *rooms)
    count += passed(tree, (python,), "tests/slow/test_threads.py")
    figures.count("tests without the GIL", count)


def test_races_without_the_gil(tmp_path: Path) -> None:
    """The threads that share a pool, in a Python that is itself built for it."""
    python = python_in(FOR_TSAN, ".make/python-t --tsan")
    start = ("setarch", "-R", python)  # (it wants fixed addresses)
    flags = dict.fromkeys(("CFLAGS", "LDFLAGS"), "-fsanitize=thread -g")
    tree = trees.build(tmp_path / "tree", start, TSAN_OPTIONS="report_bugs=0", **flags)
    known, reports = tmp_path / "known", tmp_path / "reports"
    ours = Path(__file__).with_name("tsan_known.txt").read_text()
    known.write_text((FOR_TSAN / "known.txt").read_text() + ours)
    count = passed(
        tree,
        start,
        "tests/slow/test_threads.py",
        AZC_PATIENCE="10",
        AZC_THREADS_SECONDS=os.environ.get("AZC_THREADS_SECONDS", "20"),
        TSAN_OPTIONS=f"suppressions={known}:log_path={reports}:history_size=7"
        ":exitcode=0:report_thread_leaks=0",
    )
    found = [path.read_text() for path in tmp_path.glob("reports.*")]
    assert not found, found[0][:8000]
    assert count == 2
