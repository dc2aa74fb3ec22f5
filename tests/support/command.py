"""The `aiozerocopy` command, in a process of its own."""

import subprocess
import sys
from typing import Any

import scripts

PROGRAM = [sys.executable, "-m", "aiozerocopy"]


def environment() -> dict[str, str]:
    """Return ours, as it is now, in which warnings are errors."""
    return scripts.environment(PYTHONWARNINGS="error")


def start(*words: object, **options: Any) -> subprocess.Popen[str]:
    """Start it, with pipes from its output unless ``options`` say otherwise."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    given: dict[str, Any] = {**pipes, "env": environment(), **options}
    return subprocess.Popen([*PROGRAM, *map(str, words)], text=True, **given)


def run(*words: object) -> tuple[int, str, str]:
    """Return its exit status, and what it said on stdout and stderr."""
    with start(*words) as process:
        said, complained = process.communicate(timeout=15)
    return process.returncode, said, complained
