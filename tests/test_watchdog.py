"""A test that hangs ends the run, even in what cleans up after it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

TESTS = Path(__file__).parent
HANGS = """
import signal, threading
import pytest

@pytest.fixture
def hangs():
    yield
    # (else it is interrupted, as the test itself is)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    threading.Event().wait()

@pytest.mark.timeout(20)
def test_it(hangs):
    assert {passes}
"""


@pytest.mark.parametrize("passes", [True, False])
def test_teardown_that_hangs_ends_the_run(tmp_path: Path, passes: bool) -> None:
    (tmp_path / "test_it.py").write_text(HANGS.format(passes=passes))
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider"],
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
        cwd=tmp_path,
        env={
            **os.environ,
            "AZC_PATIENCE": "0.1",
            "PYTHONPATH": os.pathsep.join(map(str, (TESTS / "support", TESTS))),
        },
    )
    assert run.returncode == 1
    assert "Timeout (" in run.stderr
    assert "in hangs" in run.stderr
