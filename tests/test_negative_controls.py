"""Tests that cannot fail prove nothing: each deliberate fault must be caught."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sabotage

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]

# Which test must catch it
CAUGHT_BY = {
    "order": "test_order_of_calls_is_the_order_of_messages",
    "tail": "test_buffer_is_overwritten_the_instant_send_returns",
    "rescue": "test_after_a_cancel_the_message_is_as_it_was",
    "identity": "test_our_number_is_anothers_during_a_send",
    "unpin": "test_pending_send_locks_the_buffer",
}
CHOSEN = f"asyncio and (unix or adopted) and ({' or '.join(CAUGHT_BY.values())})"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source and the tests, with the faults compiled in."""
    folder = tmp_path_factory.mktemp("sabotaged")
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "sim")
    for name in ("aiozerocopy", "csrc", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=folder,
        env=os.environ | {"AZC_SABOTAGE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def runs(tree: Path) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """The chosen tests, with each fault, all at the same time."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    options = ["-k", CHOSEN, "--tb=line", "-o", "timeout=10"]
    files = ["tests/test_contract.py", "tests/test_lifetime.py"]
    path = os.pathsep.join([str(tree), *filter(None, sys.path)])
    started = {
        fault: subprocess.Popen(
            [*command, *options, *files],
            cwd=tree,
            env=os.environ | {sabotage.VARIABLE: fault, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for fault in ("none", *CAUGHT_BY)
    }
    yield started
    for process in started.values():
        process.kill()
        process.wait()


def test_without_a_fault_all_pass(runs: dict[str, subprocess.Popen[str]]) -> None:
    said, _ = runs["none"].communicate()
    assert runs["none"].returncode == 0, said
    assert re.search(r"^\d+ passed", said, re.MULTILINE), said


@pytest.mark.parametrize("fault", CAUGHT_BY)
def test_fault_is_caught(runs: dict[str, subprocess.Popen[str]], fault: str) -> None:
    said, _ = runs[fault].communicate()
    assert runs[fault].returncode == 1, said
    failed = re.findall(r"^FAILED \S+::(\w+)", said, re.MULTILINE)
    assert CAUGHT_BY[fault] in failed, said
