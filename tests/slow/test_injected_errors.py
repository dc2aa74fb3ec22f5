"""Failing system calls: for each scene, each of its calls, each errno, each time.

strace makes the k-th call of each thread fail.  tests/support/fault_scenes.py says what
must hold then.  There are tens of thousands of cases: AZC_INJECT=60 runs this many of
them, the same ones each time; AZC_INJECT=all runs all.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import figures
import pytest
from links import linux_only, refusing
from scripts import environment

from aiozerocopy._core.binding import PORTABLE

pytestmark = [linux_only, pytest.mark.slow, pytest.mark.timeout(4 * 3600)]

SERVER = Path(__file__).parents[1] / "support" / "fault_server.py"
LEFT_OUT = re.compile(
    # A wake-up through an eventfd of ours.  No kernel refuses it.
    r'write\(\d+, "\\1(\\0){7}", 8.*INJECTED'
    # Memory for the first frame of a Python thread: `Thread.start` then waits for ever.
    r"|mmap\(NULL, 16384, .*INJECTED"
    # A wake-up of asyncio's own, which ignores its failure.
    r'|sendto\(\d+, "\\0", 1, .*INJECTED'
)
FIRST = 20  # calls of each kind, in each thread
ASKED = os.environ.get("AZC_INJECT", "60")
ERRORS = """
    ENOMEM EINTR EAGAIN ENOBUFS EIO EPIPE EINVAL ENOSYS EPERM EFAULT EMFILE ENOSPC
"""
CALLS = """
    write writev pwritev2 sendmsg sendto recvmsg recvfrom read readv preadv2 vmsplice
    splice sendfile copy_file_range process_vm_readv ioctl fcntl epoll_create1
    epoll_ctl epoll_wait epoll_pwait poll pipe2 dup eventfd2 memfd_create ftruncate
    mmap mremap madvise munmap mprotect socket socketpair bind listen connect accept4
    getsockopt setsockopt shutdown clone3
"""


class Case(NamedTuple):
    scene: str
    call: str
    error: str
    which: int

    def __str__(self) -> str:
        return f"{self.scene}: {self.call}:error={self.error}:when={self.which}"


@dataclass
class Verdict:
    complaints: list[str]
    told: list[str]  # exceptions that the scene's calls raised
    sent: int
    trace: str

    @property
    def injected(self) -> int:
        return self.trace.count("(INJECTED)")

    @property
    def is_left_out(self) -> bool:
        """Whether the case says nothing about our code.  (For example, if asyncio's own
        epoll_wait failed, its loop is broken.)"""
        loop_broke = any(each.startswith("the loop:") for each in self.told)
        return loop_broke or LEFT_OUT.search(self.trace) is not None


class Server:
    """Runs cases, one after the other, each in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._trace = folder / "trace"
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # (Its writes of figures would be calls that can fail.)
            env=environment(**{figures.VARIABLE: ""}),
        )
        assert self._answer() == "ready"

    def close(self) -> None:
        with self._process as process:
            process.stdin.close()  # type: ignore[union-attr]

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def _ask(self, word: str) -> str:
        print(word, file=self._process.stdin, flush=True)
        return self._answer()

    def run(self, scene: str, trace: str, *inject: str) -> Verdict:
        """Run a scene while strace counts these calls, and makes some fail."""
        strace = ["strace", "-f", "-o", str(self._trace), "-p", self._ask(scene)]
        faults = [word for fault in inject for word in ("-e", f"inject={fault}")]
        with subprocess.Popen(
            [*strace, "-e", f"trace={trace}", *faults], stderr=subprocess.PIPE
        ) as tracer:
            assert tracer.stderr is not None
            tracer.stderr.readline()  # "attached"
            complaints, told, sent = json.loads(self._ask("go"))
            tracer.communicate()
        lines = self._trace.read_text("utf-8", "ignore").splitlines()
        return Verdict(complaints, told, sent, "\n".join(joined(lines)))


def joined(trace: Iterable[str]) -> Iterator[str]:
    """Join the lines of calls whose end strace reported later."""
    begun: dict[str, str] = {}
    for line in trace:
        thread, _, call = line.partition(" ")
        if call.endswith(" <unfinished ...>"):
            begun[thread] = line.removesuffix(" <unfinished ...>")
        elif " resumed>" in call:
            yield begun.pop(thread, thread) + call.partition(" resumed>")[2]
        else:
            yield line


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    refusing("write:error=EIO")  # skips where strace is not permitted
    if PORTABLE:
        pytest.skip("the scenes need the Linux build")
    with contextlib.closing(Server(tmp_path_factory.mktemp("faults"))) as running:
        yield running


def cases(server: Server) -> list[Case]:
    """Return all cases, in the order in which they are drawn."""
    from fault_scenes import SCENES

    found = []
    for scene in SCENES:
        verdict = server.run(scene, ",".join(CALLS.split()))
        assert not verdict.complaints, (scene, verdict.complaints)
        assert not verdict.told, (scene, verdict.told)
        calls = Counter(re.findall(r"^(\d+) +(\w+)\(", verdict.trace, re.MULTILINE))
        most: Counter[str] = Counter()
        for (_, call), times in calls.items():
            most[call] = max(most[call], min(times, FIRST))
        found += [
            Case(scene, call, error, which)
            for call, times in sorted(most.items())
            for error in ERRORS.split()
            for which in range(1, times + 1)
        ]
    # (Unlike a shuffle, this is stable if a scene makes one call more or less.)
    return sorted(found, key=lambda case: hashlib.sha256(repr(case).encode()).digest())


def test_every_call_that_fails(server: Server) -> None:
    everything = cases(server)
    chosen = everything[: None if ASKED == "all" else int(ASKED)]
    wrong, injected, sent = [], 0, 0
    for case in chosen:
        assert hasattr(errno, case.error)
        fault = f"{case.call}:error={case.error}:when={case.which}"
        verdict = server.run(case.scene, case.call, fault)
        injected += verdict.injected
        sent += verdict.sent
        if verdict.complaints and not verdict.is_left_out:
            wrong.append((case, verdict))
            if os.environ.get("AZC_INJECT_SHOW"):
                print(case, verdict.complaints, verdict.told, flush=True)
    figures.count("runs with a system call that fails", len(chosen))
    figures.count("injected errors", injected)
    figures.count("messages sent meanwhile", sent)
    assert injected > len(chosen) // 2
    assert not wrong, "\n".join(f"{case}\n  {v.complaints}" for case, v in wrong[:20])
