"""Small faults in the C core, made by a machine: does the simulation notice them?

AZC_MUTANTS=12 is how many are tried, always the same; 0 is all of them, which takes
a second or two of one core for each.  tests/mutation/mutation.py says more.
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

PROGRAM = Path(__file__).parent / "mutation" / "mutation.py"
MUTANTS = int(os.environ.get("AZC_MUTANTS", "12"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.builds,
    pytest.mark.timeout(180 if MUTANTS else 7200),
    pytest.mark.skipif(
        platform.libc_ver()[0] != "glibc" or not shutil.which("cc"),
        reason="needs a C compiler and glibc's contexts",
    ),
    pytest.mark.skipif(not importlib.util.find_spec("tomllib"), reason="needs tomllib"),
]


def test_survivors_are_known() -> None:
    sample = ["--sample", str(MUTANTS)] if MUTANTS else []
    command = [sys.executable, str(PROGRAM), "--no-threads", "--seeds", "1500", *sample]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^\w+\.c \| (\d+) \|", done.stdout, re.MULTILINE)
    tried = sum(map(int, rows))
    assert tried
    figures.count("mutants of the C core", tried)
    figures.remark("mutation scores of the C core", done.stdout)
