"""The temporary folder of a run, programs in C, and processes that report."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.race import Lacking, Work

HERE = Path(__file__).parent
PATIENCE = 120.0  # seconds for one run, before it is killed
COMPILER = os.environ.get("CC", "cc")
# The workers run in a folder of their own, but find these packages.
GIVEN = os.environ.get("PYTHONPATH", "").split(os.pathsep)
PATHS = [str(HERE.parent), *(str(Path(one).resolve()) for one in GIVEN if one)]
# Any four of these bytes are a float that can be averaged.
DIGITS = bytes(32 + byte % 32 for byte in range(256))
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}


class Lab(contextlib.ExitStack):
    """A temporary folder for compiled programs and for what is sent."""

    def __init__(self) -> None:
        super().__init__()
        folder = tempfile.TemporaryDirectory(prefix="bench-")
        self.path: Path = Path(self.enter_context(folder))
        self.log: Path = self.path / "stderr"

    def library(self, name: str) -> str:
        """As `program`, but a shared library."""
        return self.program(name, ".so", "-shared", "-fPIC")

    def program(self, name: str, suffix: str = "", *options: str) -> str:
        """The path of the C program of that name, compiled."""
        path, source = self.path / f"{name}{suffix}", HERE / f"{name}.c"
        if not path.exists():
            if shutil.which(COMPILER) is None:
                raise Lacking(f"{COMPILER}: no C compiler: on Debian, apt install gcc")
            command = [COMPILER, "-O2", f"-I{HERE.parents[1] / 'csrc'}", *options]
            subprocess.run([*command, "-o", path, source], check=True)
        return str(path)

    def pattern(self, work: Work) -> str:
        """The path of a file with the contents of all buffers."""
        n = work.size * work.buffers
        path = self.path / f"pattern-{n}"
        if not path.exists():
            path.write_bytes(random.Random(n).randbytes(n).translate(DIGITS))
        return str(path)

    def folder(self) -> Path:
        """Make a new folder, for the files of one run."""
        return Path(tempfile.mkdtemp(dir=self.path))

    def reports(self, *commands: Sequence[str]) -> dict[str, Any]:
        """Run commands to their ends, and return what they report."""
        with Crew(self) as crew:
            for command in commands:
                crew.start(command)
            return crew.finish()


class Crew(contextlib.ExitStack):
    """Processes that share a stdout, and report there in lines of JSON.

    Each has a session of its own: neither it nor what it starts outlives the block.
    """

    def __init__(self, lab: Lab) -> None:
        super().__init__()
        self._lab = lab
        self._processes: list[subprocess.Popen[bytes]] = []
        reports, stdout = os.pipe()
        self._reports = self.enter_context(os.fdopen(reports, encoding="ascii"))
        self._stdout = self.enter_context(os.fdopen(stdout, "wb", buffering=0))
        self.callback(self._kill)

    def start(self, argv: Sequence[str], **options: Any) -> None:
        """Start a process, which reports unless it has a stdout of its own."""
        given: Any = {"stdout": self._stdout, "cwd": self._lab.path, "env": ENVIRONMENT}
        with self._lab.log.open("ab") as log:
            given |= {"stderr": log, "start_new_session": True} | options
            self._processes.append(subprocess.Popen(argv, **given))

    def finish(self) -> dict[str, Any]:
        """Return the reports of all, by their "who", once they have ended.

        Raises: ChildProcessError: one has failed; then the others are killed.
        """
        self._stdout.close()
        end = time.monotonic() + PATIENCE
        while None in [process.poll() for process in self._processes]:
            failed = any(process.returncode for process in self._processes)
            if failed or time.monotonic() > end:
                self._kill()
            time.sleep(0.005)
        told = {one["who"]: one for one in map(json.loads, self._reports)}
        failures = [one.args for one in self._processes if one.returncode]
        if failures or not told:
            raise ChildProcessError(f"{failures} failed:\n{self._lab.log.read_text()}")
        return told

    def _kill(self) -> None:
        for process in self._processes:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def worker(function: Callable[..., Any], **told: Any) -> list[str]:
    """The command that calls a function of a bench with a `worker.Job`."""
    name = f"{function.__module__}:{function.__qualname__}"
    return [sys.executable, "-m", "bench.worker", name, json.dumps(told)]
