"""Small faults in the core, made by a program: does a test notice them?

Faults in C must be noticed by the simulation or by a situation, faults in Python by the
tests that reach their lines.  AZC_MUTANTS=12 sets how many of each are tried, always
the same; 0 means all.  Each takes a second or two of one core.  CI tries six in C, and
none in Python, as that needs a run of all tests before; for both it checks that the
lists of survivors are current.
See tests/mutation/mutation.py and python_core.py.
"""

import importlib.util
import os
import platform
import re
import shutil
import sys
from pathlib import Path

import figures
import pytest
from scripts import output

PROGRAMS = Path(__file__).parents[1] / "mutation"
MUTANTS = os.environ.get("AZC_MUTANTS", "")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.builds,
    pytest.mark.timeout(7200 if MUTANTS else 180),
    pytest.mark.skipif(not importlib.util.find_spec("tomllib"), reason="needs tomllib"),
]


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not shutil.which("cc"),
    reason="needs a C compiler and glibc's contexts",
)
def test_survivors_are_known() -> None:
    _try("C core", "mutation.py", 6, "--seeds", "10000")


@pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info < (3, 12),
    reason="needs Linux, and sys.monitoring (Python 3.12)",
)
def test_survivors_in_python_are_known() -> None:
    _try("Python core", "python_core.py", 0)


def _try(core: str, program: str, few: int, *options: str) -> None:
    sample = [] if MUTANTS == "0" else ["--sample", MUTANTS or str(few)]
    command = [sys.executable, str(PROGRAMS / program), *options, *sample]
    said = output(command)
    rows = re.findall(r"^\w+\.(?:c|py) \| (\d+) \|", said, re.MULTILINE)
    assert rows or not (few or MUTANTS)
    figures.count(f"mutants of the {core}", sum(map(int, rows)))
    figures.remark(f"mutation scores of the {core}", said)
