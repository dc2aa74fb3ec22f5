"""The tests of threads in a Python without the GIL, such as `make python-t` builds."""

import os
import re

import figures
import pytest
import trees
from scripts import output, ran

pytestmark = [pytest.mark.slow, pytest.mark.builds, pytest.mark.timeout(900)]


def test_without_the_gil() -> None:
    names = [os.environ.get("AZC_PYTHON_T", "python3.15t"), "python3.14t"]
    found = ran([trees.ROOT / ".make/find-python", *names])
    if found.returncode:
        pytest.skip("needs make python-t")
    # (The script installs the wheel, and must not find another build before it.)
    ours = {name: it for name, it in os.environ.items() if name != "PYTHONPATH"}
    said = output([trees.ROOT / ".ci/free-threaded", found.stdout.strip()], env=ours)
    passed = re.findall(r"^(\d+) passed", said, re.MULTILINE)
    figures.count("tests without the GIL", sum(map(int, passed)))
