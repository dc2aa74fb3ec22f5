"""The `aiozerocopy` command, in a process of its own."""

from __future__ import annotations

import codecs
import fcntl
import os
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import scripts

PROGRAM = [sys.executable, "-m", "aiozerocopy"]


def environment() -> dict[str, str]:
    """Return our environment, with warnings as errors."""
    return scripts.environment(PYTHONWARNINGS="error")


def start(*words: object, **options: Any) -> subprocess.Popen[str]:
    """Start the command, with pipes from its output unless ``options`` differ."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    given: dict[str, Any] = {**pipes, "env": environment(), **options}
    return subprocess.Popen([*PROGRAM, *map(str, words)], text=True, **given)


def run(*words: object) -> tuple[int, str, str]:
    """Run the command; return its exit status, stdout and stderr."""
    with start(*words) as process:
        said, complained = process.communicate(timeout=15)
    return process.returncode, said, complained


class Terminal:
    """A terminal with a program in it."""

    def __init__(self, words: list[str], folder: Path, **environment: str) -> None:
        self.said = ""
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._screen, keyboard = os.openpty()
        size = struct.pack("4H", 24, 200, 0, 0)  # rows and columns
        fcntl.ioctl(keyboard, termios.TIOCSWINSZ, size)
        self.process = subprocess.Popen(
            words,
            cwd=folder,
            stdin=keyboard,
            stdout=keyboard,
            stderr=keyboard,
            env=os.environ | {"TERM": "xterm", "TMPDIR": str(folder)} | environment,
            start_new_session=True,
        )
        os.close(keyboard)

    def read_until(self, words: str | None) -> None:
        """Read until the program has written these words; with None, to the end."""
        while words is None or words not in self.said:
            try:
                more = os.read(self._screen, 65536)
            except OSError:  # no process has the terminal open any more
                more = b""
            if not more:
                assert words is None, self.said
                return
            self.said += self._decode(more)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._screen)
