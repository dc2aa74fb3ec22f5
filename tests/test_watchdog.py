"""A test that hangs ends the run, even in what cleans up after it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

ROOT = Path(__file__).parents[1]
PROGRAM = """
import contextlib, signal, threading
import pytest

with contextlib.suppress(ImportError):
    import trio, uvloop  # now, and not in the time of the test

@pytest.fixture
def afterwards():
    yield
    if {hangs}:
        # (else it is interrupted, as the test itself is)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
        threading.Event().wait()

@pytest.mark.timeout(30)
def test_it(afterwards):
    assert {passes}
"""


def run(folder: Path, **settings: bool) -> subprocess.CompletedProcess[str]:
    """One test, with our own settings and time limits of a tenth."""
    (folder / "test_it.py").write_text(PROGRAM.format(**settings))
    command = [sys.executable, "-m", "pytest", "-p", "conftest"]
    options = ["-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *options, "."],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        cwd=folder,
        env={
            **os.environ,
            "AZC_PATIENCE": "0.1",
            "PYTHONPATH": os.pathsep.join(
                map(str, (ROOT / "tests" / "support", ROOT / "tests"))
            ),
        },
    )


@pytest.mark.parametrize("passes", [True, False])
def test_teardown_that_hangs_ends_the_run(tmp_path: Path, passes: bool) -> None:
    done = run(tmp_path, hangs=True, passes=passes)
    assert done.returncode == 1
    assert "Timeout (" in done.stderr
    assert "in afterwards" in done.stderr


def test_failed_test_leaves_no_thread_behind(tmp_path: Path) -> None:
    """The watchdog is a thread, and was once started anew after a failure."""
    done = run(tmp_path, hangs=False, passes=False)
    assert "1 failed in" in done.stdout
