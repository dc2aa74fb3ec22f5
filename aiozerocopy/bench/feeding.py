"""Contestants that feed the C sink: how they are connected, started and measured."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aiozerocopy._core.pipe_size import enlarge_pipe
from aiozerocopy.bench.groups import Group
from aiozerocopy.bench.racing import Lacking, Run, Work, WrongBytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HERE = Path(__file__).parent
# With this, and a folder of their own as the current one, the senders import the same
# package as the bench.
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join(
        filter(None, [str(HERE.parents[1]), os.environ.get("PYTHONPATH")])
    ),
}
PATIENCE = 120.0  # seconds for one run, before it is killed
COMPILER = os.environ.get("CC", "cc")
TRACED_BYTES = 1_000_000_000  # at most, since strace slows every call down
TRACED_MESSAGES = 8192


class Lab:
    """A temporary folder for compiled programs and for what is sent."""

    def __init__(self) -> None:
        self._ends = contextlib.ExitStack()
        folder = tempfile.TemporaryDirectory(prefix="aiozerocopy-bench-")
        self.path: Path = Path(self._ends.enter_context(folder))

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def at_end(self, close: Callable[[], object]) -> None:
        self._ends.callback(close)

    def program(self, name: str) -> str:
        """The C program of that name, compiled."""
        return self._compiled(name, name)

    def library(self, name: str) -> str:
        """The same as a shared library."""
        return self._compiled(f"{name}.so", name, "-shared", "-fPIC")

    def _compiled(self, what: str, name: str, *options: str) -> str:
        path, source = self.path / what, HERE / f"{name}.c"
        if not path.exists():
            if shutil.which(COMPILER) is None:
                raise Lacking(f"{COMPILER}: no C compiler: on Debian, apt install gcc")
            run_program([COMPILER, "-O2", *options, "-o", str(path), str(source)])
        return str(path)

    def pattern(self, work: Work) -> str:
        """The path of a file with the contents of all buffers."""
        n = work.size * work.buffers
        path = self.path / f"pattern-{n}"
        if not path.exists():
            path.write_bytes(random.Random(n).randbytes(n))
        return str(path)


def run_program(command: list[str]) -> None:
    """Run it to its end; Ctrl-C also ends what it starts, as a compiler its linker.

    What it says is shown once it has failed: one that Ctrl-C has ended says nothing.
    """
    with Group() as group:
        program = group.start(command, stderr=subprocess.PIPE)
        _, said = program.communicate()
    if program.returncode:
        sys.stderr.write(said.decode(errors="replace"))
        raise subprocess.CalledProcessError(program.returncode, command)


# Each loop, and the packages it needs.
LOOPS: tuple[tuple[str, Sequence[str]], ...] = (
    ("asyncio", ()),
    ("uvloop", ("uvloop",)),
)


# ---- links: (the sender's fd, the sink's fd), for the caller to close ---------------


def unix_link() -> tuple[int, int]:
    a, b = socket.socketpair()
    return a.detach(), b.detach()


def tcp_link() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        a = socket.create_connection(server.getsockname())
        b, _ = server.accept()
    # asyncio and uvloop set it anyway, so set it for all.
    a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return a.detach(), b.detach()


def pipe_link(size: int) -> Callable[[], tuple[int, int]]:
    def link() -> tuple[int, int]:
        reader, writer = os.pipe()
        enlarge_pipe(writer, size)
        return writer, reader

    return link


# ---- the two processes of a run -----------------------------------------------------


class Crew:
    """Processes that share a stdout, and report there in lines of JSON.

    None of them, nor what they have started, outlives the ``with`` block.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._group = Group()
        reports, stdout = os.pipe()
        self._reports = os.fdopen(reports, encoding="ascii")
        self._stdout = os.fdopen(stdout, "wb", buffering=0)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self._group.end()
        self._reports.close()
        self._stdout.close()

    def start(
        self,
        argv: Sequence[str],
        stdin: int | None = None,
        keep: Sequence[int] = (),
        stdout: int | None = None,
    ) -> None:
        """Start a process, which reports unless it has a stdout of its own."""
        with self._log.open("ab") as log:
            self._group.start(
                argv,
                stdin=stdin,
                stdout=self._stdout if stdout is None else stdout,
                stderr=log,
                pass_fds=keep,
                cwd=self._log.parent,
                env=ENVIRONMENT,
            )

    def finish(self) -> dict[str, dict[str, Any]]:
        """Wait for all, and return their reports by name; no longer once one failed."""
        self._stdout.close()
        started = self._group.processes
        watchdog = threading.Timer(PATIENCE, self._group.kill)
        watchers = [
            threading.Thread(target=self._watch, args=[process]) for process in started
        ]
        try:
            for thread in (watchdog, *watchers):
                thread.start()
            told = {one["who"]: one for one in map(json.loads, self._reports)}
            for watcher in watchers:
                watcher.join()
        finally:
            watchdog.cancel()
        failed = [process.args for process in started if process.returncode]
        if failed or not told:
            raise ChildProcessError(f"{failed} failed:\n{self._log.read_text()}")
        return told

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        if process.wait():
            self._group.kill()


# ---- contestants ------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """What a sender is told."""

    work: Work
    fd: int  # -1: start the sink as a child
    pattern: str
    sink: list[str]


@dataclass(frozen=True)
class Feeder:
    """A sender process that feeds the C sink, over a link or as its parent."""

    name: str
    lab: Lab
    command: Callable[[Lab, Task], list[str]]
    link: Callable[[], tuple[int, int]] | None
    needs: Sequence[str] = ()
    read_size: int = 1 << 20

    def run(self, work: Work, check: bool) -> Run:
        told = self._feed(work, check)
        sink, sender = told["sink"], told["sender"]
        return Run(sink["seconds"], sender["cpu"], sink["cpu"], sender["calls"])

    def count_calls(self, work: Work) -> float | None:
        """As counted by strace, else by the sender itself."""
        return self._traced(work) if shutil.which("strace") else self._counted(work)

    def _counted(self, work: Work) -> float | None:
        calls = self.run(work, check=False).calls
        return None if calls is None else calls / work.messages

    def _traced(self, work: Work) -> float | None:
        """Trace the work, and twice the work: the difference has no start-up in it."""
        n = min(work.messages, TRACED_MESSAGES, TRACED_BYTES // work.size)
        n -= n % work.buffers
        try:
            once, twice = (
                self._trace(replace(work, messages=messages)) for messages in (n, 2 * n)
            )
        except ChildProcessError:  # strace is forbidden here, or too old
            return self._counted(work)
        return (twice - once) / n

    def _trace(self, work: Work) -> int:
        table = self.lab.path / "strace"
        tracer = ["strace", "-f", "-c", "-U", "calls", "-o", str(table)]
        told = self._feed(work, False, tracer)
        total = int(table.read_text().split()[-2])  # before the word "total"
        # Where the sink is the sender's child, strace has followed it.
        return total if self.link else total - int(told["sink"]["reads"])

    def _feed(
        self, work: Work, check: bool, tracer: Sequence[str] = ()
    ) -> dict[str, dict[str, Any]]:
        """Run both processes, and return their reports."""
        pattern = self.lab.pattern(work)
        warm, total = work.size * work.warm, work.size * (work.warm + work.messages)
        sink = [self.lab.program("sink"), str(warm), str(total), str(self.read_size)]
        sink += [pattern] if check else []
        with Crew(self.lab.path / "stderr") as crew:
            if self.link is None:
                command = self.command(self.lab, Task(work, -1, pattern, sink))
                crew.start([*tracer, *command])
            else:
                fd, sink_fd = self.link()
                command = self.command(self.lab, Task(work, fd, pattern, sink))
                try:
                    crew.start(sink, stdin=sink_fd)
                    crew.start([*tracer, *command], keep=(fd,))
                finally:
                    os.close(fd)
                    os.close(sink_fd)
            told = crew.finish()
        check_sink(self.name, told["sink"], total)
        return told


def check_sink(name: str, told: dict[str, Any], total: int) -> None:
    """Raises: WrongBytes, if the sink says that they were others or not so many."""
    received, wrong = told["bytes"], told["wrong"]
    if received != total or wrong >= 0:
        raise WrongBytes(
            f"{name}: {received:,} bytes came and not {total:,}, "
            f"the first wrong one is number {wrong}"
        )


def in_c(chunk: int = 0) -> Callable[[Lab, Task], list[str]]:
    """The C loop, with so many bytes a call (0: the whole message)."""

    def command(lab: Lab, task: Task) -> list[str]:
        work = task.work
        numbers = (task.fd, work.size, work.warm, work.messages, chunk)
        return [lab.program("feed"), *map(str, numbers), task.pattern]

    return command


def in_python(
    way: str, loop: str = "asyncio", **options: object
) -> Callable[[Lab, Task], list[str]]:
    """A function of `senders`, on that event loop."""

    def command(lab: Lab, task: Task) -> list[str]:
        job = {
            "way": way,
            "loop": loop,
            "options": options,
            "fd": task.fd,
            "size": task.work.size,
            "warm": task.work.warm,
            "messages": task.work.messages,
            "pattern": task.pattern,
            "sink": task.sink,
        }
        return [sys.executable, "-m", "aiozerocopy.bench.senders", json.dumps(job)]

    return command
