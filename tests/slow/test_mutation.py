"""Small faults in the core, made by a machine: does something notice them?

In C the simulation must, in Python a few quick tests.  AZC_MUTANTS=12 is how many are
tried of each, always the same; 0 is all of them, which takes a second or two of one
core for each.  tests/mutation/mutation.py and python_core.py say more.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import figures
import pytest

PROGRAMS = Path(__file__).parents[1] / "mutation"
MUTANTS = int(os.environ.get("AZC_MUTANTS", "12"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.builds,
    pytest.mark.timeout(180 if MUTANTS else 7200),
    pytest.mark.skipif(not importlib.util.find_spec("tomllib"), reason="needs tomllib"),
]


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or not shutil.which("cc"),
    reason="needs a C compiler and glibc's contexts",
)
def test_survivors_are_known() -> None:
    told = _tried("mutation.py", "--no-threads", "--seeds", "1500")
    figures.count("mutants of the C core", _counted(told))
    figures.remark("mutation scores of the C core", told)


@pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info < (3, 12),
    reason="needs Linux, and sys.monitoring (Python 3.12)",
)
@pytest.mark.skipif(
    not importlib.util.find_spec("cosmic_ray"), reason="needs cosmic-ray"
)
@pytest.mark.timeout(600 if MUTANTS else 7200)  # (a minute is for tests without one)
def test_survivors_in_python_are_known() -> None:
    told = _tried("python_core.py")
    figures.count("mutants of the Python core", _counted(told))
    figures.remark("mutation scores of the Python core", told)


def _tried(program: str, *options: str) -> str:
    sample = ["--sample", str(MUTANTS)] if MUTANTS else []
    command = [sys.executable, str(PROGRAMS / program), *options, *sample]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _counted(told: str) -> int:
    rows = re.findall(r"^\w+\.(?:c|py) \| (\d+) \|", told, re.MULTILINE)
    tried = sum(map(int, rows))
    assert tried
    return tried
