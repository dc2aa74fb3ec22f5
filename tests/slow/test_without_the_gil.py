"""The tests of threads in a Python without the GIL, such as `make python-t` builds."""

import os
import re
import subprocess
import sys

import figures
import pytest
import trees
from scripts import output

pytestmark = [pytest.mark.slow, pytest.mark.builds, pytest.mark.timeout(900)]


def test_without_the_gil() -> None:
    find = [trees.ROOT / ".make/find-python"]
    find += filter(None, [os.environ.get("AZC_PYTHON_T")])
    found = subprocess.run([*find, "python3.15t", "python3.14t"], capture_output=True)
    if found.returncode:
        pytest.skip("needs make python-t")
    # (It installs the wheel, so it must not find another build first.)
    ours = {name: it for name, it in os.environ.items() if name != "PYTHONPATH"}
    script = trees.ROOT / ".ci/free-threaded"
    said = output([script, found.stdout.decode().strip()], env=ours)
    passed = re.findall(r"^(\d+) passed", said, re.MULTILINE)
    figures.count("tests without the GIL", sum(map(int, passed)))
