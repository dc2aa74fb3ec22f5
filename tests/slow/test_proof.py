"""`make proof` runs its table's slices, ends those that hang, and writes the page."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from links import is_gone, linux_only
from proof import page, results, running
from proof.running import run_all
from proof.table import SLICES, TESTS, Slice

pytestmark = linux_only


def run(folder: Path, *slices: Slice, seconds: float = 60) -> dict[str, Any]:
    """Run these slices; return the results of the proof."""
    return results.gather(run_all(slices, folder, seconds), 1.0)


def program(name: str, text: str, *, alone: bool = False) -> Slice:
    return Slice(name, "", 1, f"python -c {shlex.quote(text)}", alone)


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["verdict"] for each in found["slices"]}


# ---- running ------------------------------------------------------------------------

COUNTS = """
import sys
sys.path.insert(0, "support")
import figures as f
f.count("kills", 2)
f.count("kills", 3)
f.count("bytes <moved>", 200e9, "B")
f.worst("gap", 12.25, "ms")
f.worst("gap", 5, "ms")
f.remark("pipe | size", "as *this* one")
f.remark("pipe | size", "as *this* one")
"""
TRIES = """
import os, pytest
def test_good(): assert os.environ["AZC_N"] == "7"
def test_bad(): raise AssertionError("canary byte 0xca for 0x01")
@pytest.mark.skip(reason="no root")
def test_left_out(): pass
@pytest.mark.timeout(0.1)
def test_long():
    while True: pass
"""


def test_what_is_found_comes_onto_the_page(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(TRIES)
    tests = f"AZC_N=7 python -m pytest {file} -c {os.devnull} -p timeout"
    slices = program("one", COUNTS), program("two", "1 / 0"), Slice("it", "", 1, tests)
    found = run(tmp_path / "logs", *slices)
    assert verdicts(found) == {"one": "passed", "two": "failed", "it": "failed"}
    assert not results.succeeded(found)
    page.write(found, tmp_path)
    text = (tmp_path / "proof.md").read_text()
    for line in (
        "| kills | 5 |  |",
        "| bytes <moved> | 200 GB |  |",
        "| gap | 12.2 ms | at most |",
        r"* pipe \| size: as \*this\* one",
        "* left out, 1: no root",
        "::test_bad`",
        "::test_long`",
        "| [it](#it) | **failed** | 3 | 1 |",
        "| wrong bytes | 1 | 0 B compared |",
        "| leaks | 0 | 0 looks for leaks |",
        "| hangs | 1 | 6 tests and programs with a limit |",
    ):
        assert line in text
    assert text.count("as \\*this") == 1
    again = json.loads((tmp_path / "proof.json").read_text())
    assert page.render(again) == text


@pytest.mark.slow
def test_slice_that_hangs_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "TIDY", 0.2)
    child = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    text = f"import subprocess, sys\nchild = {child + 'time.sleep(100)'!r}\n"
    text += "print(subprocess.Popen([sys.executable, '-c', child]).pid, flush=True)\n"
    text += child + "signal.signal(signal.SIGABRT, signal.SIG_IGN); time.sleep(100)"
    began = time.monotonic()
    found = run(tmp_path, program("stuck", text), program("good", "pass"), seconds=5)
    assert verdicts(found) == {"stuck": "hung", "good": "passed"}
    assert found["zeros"][-1]["found"] == 1
    pid = int((tmp_path / "stuck" / running.LOG).read_text())
    while not is_gone(pid):
        time.sleep(0.01)
    assert time.monotonic() - began < 60  # instead of 100


def test_when_time_is_over_the_rest_is_not_run(tmp_path: Path) -> None:
    found = run(tmp_path, program("late", "pass"), seconds=0)
    assert verdicts(found) == {"late": "not run"}
    assert not results.succeeded(found)


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "proof", *words],
        cwd=TESTS,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_ctrl_c_ends_all() -> None:
    with start("races", "contract") as process:
        assert process.stdout is not None
        begun = [process.stdout.readline().split() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate()
    shutil.rmtree(begun[0][1])
    assert process.returncode == 130, said
    assert sorted(words[:2] for words in begun[1:]) == [
        ["contract", "runs"],
        ["races", "runs"],
    ]


@pytest.mark.slow
def test_unknown_slice_is_refused() -> None:
    with start("races, nonsense") as process:
        said, _ = process.communicate()
    assert "no such slice: nonsense" in said
    assert process.returncode == 2


# ---- the table ----------------------------------------------------------------------


def test_slices_have_names_of_their_own_and_what_they_run_exists() -> None:
    names = [each.name for each in SLICES]
    assert len(set(names)) == len(names)
    assert not [name for name in names if not name.replace("-", "").isalnum()]
    text = "".join(path.read_text() for path in TESTS.rglob("*.py"))
    for each in SLICES:
        numbers, words = each.parsed()
        files = [word for word in words if word.endswith(".py")]
        assert [file for file in files if not (TESTS / file).exists()] == []
        unread = [name for name in numbers if f'environ.get("{name}"' not in text]
        assert unread == [], "no test reads these"


# ---- the page -----------------------------------------------------------------------


def kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(page.JSON.read_text())
    return found


def test_page_is_what_its_results_say() -> None:
    assert page.PAGE.read_text() == page.render(kept())


def test_page_has_the_commands_of_the_table() -> None:
    """Otherwise a reader could type a command that no longer exists."""
    commands = {each.name: each.command for each in SLICES}
    assert {each["name"]: each["command"] for each in kept()["slices"]} == commands
