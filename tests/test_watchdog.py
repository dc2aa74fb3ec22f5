"""A test that hangs fails, even if its clean-up hangs, too; and the run goes on."""

import subprocess
import sys
from pathlib import Path

import pytest
from scripts import environment, ran

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

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

@pytest.mark.timeout(5)
def test_it(afterwards):
    assert {passes}

def test_next():
    pass
"""


def run(
    folder: Path, *options: str, **settings: bool
) -> subprocess.CompletedProcess[str]:
    """Run two tests, with our own settings and a tenth of the time limits."""
    (folder / "test_it.py").write_text(PROGRAM.format(**settings))
    command = [sys.executable, "-m", "pytest", "-p", "conftest"]
    given = ["-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
    words = [*command, *given, *options, "."]
    return ran(words, cwd=folder, env=environment(AZC_PATIENCE="0.1"), timeout=110)


def test_teardown_that_hangs_ends_one_test(tmp_path: Path) -> None:
    done = run(tmp_path, "-n1", hangs=True, passes=True)
    assert "Timeout (" in done.stderr
    assert "in afterwards" in done.stderr
    assert "crashed while running 'test_it.py::test_it'" in done.stdout
    # Tests that passed before the teardown count, and so do the tests after it.
    assert "1 failed, 2 passed in" in done.stdout


def test_failed_test_leaves_no_thread_behind(tmp_path: Path) -> None:
    """The watchdog is a thread, which was once started again after a failure."""
    done = run(tmp_path, hangs=False, passes=False)
    assert "1 failed, 1 passed in" in done.stdout
