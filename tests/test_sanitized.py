"""What concerns memory, once more with every access checked (AddressSanitizer).

Python's own objects come from malloc there, so that a buffer which C looks at after
its end is found out as well.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import trees

TESTS = [
    "contract/test_p0_done_means_yours.py",
    "contract/test_p2_no_later_bytes.py",
    "contract/test_p3_no_leak.py",
    "test_copied_sends.py",
    "test_fds.py",
    "test_finalizers.py",
    "test_gate.py",
    "test_interruptions.py",
    "test_lending.py",
    "test_lifetime.py",
    "test_pool.py",
    "test_relay.py",
    "test_splitter.py",
]

pytestmark = [pytest.mark.slow, pytest.mark.builds, pytest.mark.timeout(400)]


def library() -> str:
    """The sanitizer's, or "" if this compiler has none."""
    if not shutil.which("cc"):
        return ""
    command = ["cc", "-print-file-name=libasan.so"]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return path.strip() if Path(path.strip()).is_absolute() else ""


@pytest.mark.skipif(not library(), reason="this compiler has no AddressSanitizer")
def test_memory(tmp_path: Path) -> None:
    checked = "-fsanitize=address"
    tree = trees.build(tmp_path, CFLAGS=f"{checked} -g", LDFLAGS=checked)
    (built,) = (tree / "aiozerocopy").glob("_azc*.so")
    assert b"__asan_report_load" in built.read_bytes()
    process = trees.start_tests(
        tree,
        *("-m", "not slow", "-k", "not trio and not uvloop and not tcp"),
        *(f"tests/{name}" for name in TESTS),
        LD_PRELOAD=library(),
        ASAN_OPTIONS="detect_leaks=0",  # what Python leaves behind at its end
        PYTHONMALLOC="malloc",
        AZC_PATIENCE="4",  # every access takes its time
    )
    with process:
        said, _ = process.communicate()
    assert process.returncode == 0, said[-8000:]
    assert re.search(r"^\d{3,} passed", said, re.MULTILINE), said
