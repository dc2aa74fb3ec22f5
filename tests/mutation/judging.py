"""Which programs a mutant has to get past, and whether it does.

The simulation (tests/sim) comes first: it is quick, and a seed always does the same.
Then come the programs that make their situations by hand.  What all these let pass is
compared with the original as the compiler's optimiser sees both: the same object code
is the same program.  The rest goes on to programs with real threads on real fds.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from trying import TESTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trying import Mutant

CSRC, SIM = TESTS.parent / "csrc", TESTS / "sim"

# All but those that call the system, whose place a kernel takes.
HELPER = [
    path
    for path in sorted(CSRC.glob("*.c"))
    if not re.match("sys|split|poller", path.stem)
]
COMPILE = ["cc", "-std=c11", "-D_GNU_SOURCE=1", "-w", f"-I{CSRC}", f"-I{SIM}"]
SIMULATED = ["-O1", "-include", str(SIM / "locks.h"), "-DAZC_LEND_MIN=2000"]
AS_BUILT = ["-O2", "-fPIC", "-fvisibility=hidden"]

FIRST_SEEDS = 100  # in which most mutants fail, or never end
CPU_SECONDS = 10  # of a mutant that never ends,
PATIENCE = 60.0  # or only waits
MEMORY = 4 << 30


@dataclass(frozen=True)
class Kernel:
    """What stands under the helper, and how both are compiled."""

    name: str
    sources: tuple[Path, ...]
    flags: tuple[str, ...]


def _kernel(name: str, folder: Path, sources: str, flags: Sequence[str]) -> Kernel:
    paths = tuple(folder / f"{source}.c" for source in sources.split())
    return Kernel(name, paths, tuple(flags))


RANDOM = _kernel(
    "random", SIM, "oracle ports kernel rates lending poller threads", SIMULATED
)
SCRIPTED = _kernel("scripted", SIM, "situations scripted threads", SIMULATED)
LINUX = _kernel("linux", CSRC, "sys poller_epoll", ["-O1"])


@dataclass(frozen=True)
class Program:
    """One of tests/sim: what it runs on, and with which arguments in turn."""

    name: str
    kernel: Kernel
    runs: Sequence[str] = ("",)
    cpu_seconds: int = CPU_SECONDS


SITUATIONS = [
    Program(name, kernel, cpu_seconds=1)
    for kernel, names in (
        (RANDOM, ("submitting", "pools")),
        (SCRIPTED, ("moving", "pumping")),
        (LINUX, ("queueing", "cancelling")),
    )
    for name in names
]
WITH_THREADS = [
    Program("race", LINUX, [f"--operations 10000 --seed {seed}" for seed in (1, 2)]),
    Program("relays", LINUX, [f"--rounds 10 --seed {seed}" for seed in (1, 2, 3)]),
    *(Program(name, LINUX) for name in ("stop_early", "fairness", "writer")),
]


class Verdict(Enum):
    IMPOSSIBLE = "does not compile"
    SIMULATION = "killed by the simulation"
    SITUATION = "killed by a situation"
    EQUIVALENT = "equivalent"
    THREADS = "killed with real threads"
    SURVIVES = "survives"


class Judge:
    """All that is the same for every mutant, compiled once."""

    def __init__(self, folder: Path, seeds: int, *, threads: bool) -> None:
        self.folder = folder
        self._simulation = [
            Program("sim", RANDOM, [f"--seeds {FIRST_SEEDS}"], cpu_seconds=1),
            Program("sim", RANDOM, [f"--from {FIRST_SEEDS + 1} --seeds {seeds}"]),
        ]
        self._with_threads = WITH_THREADS if threads else []
        for kernel in (RANDOM, SCRIPTED, LINUX):
            for source in (*HELPER, *kernel.sources):
                self._compile(source, kernel.flags, f"{kernel.name}/{source.stem}.o")
        for source in HELPER:
            # (from a folder of its own, as a mutant is: no path of theirs differs)
            copy = Path(shutil.copy(source, folder))
            self._compile(copy, AS_BUILT, f"built/{source.stem}.o")
        for each in (*self._simulation, *SITUATIONS, *WITH_THREADS):
            source = SIM / f"{each.name}.c"
            self._compile(source, each.kernel.flags, f"{each.name}.main")

    def originals_pass(self) -> bool:
        """Whether the programs find no fault where there is none."""
        everything = (*self._simulation, *SITUATIONS, *self._with_threads)
        return not self._is_caught(everything, None)

    def judge(self, mutant: Mutant) -> Verdict:
        source = self.folder / mutant.file
        source.write_text(mutant.applied((CSRC / mutant.file).read_text()))
        if not self._compiled(source, SIMULATED, "mutant.o"):
            return Verdict.IMPOSSIBLE
        if self._is_caught(self._simulation, source):
            return Verdict.SIMULATION
        if self._is_caught(SITUATIONS, source):
            return Verdict.SITUATION
        if self._is_the_same(source):
            return Verdict.EQUIVALENT
        if self._is_caught(self._with_threads, source):
            return Verdict.THREADS
        return Verdict.SURVIVES

    def _is_the_same(self, source: Path) -> bool:
        self._compiled(source, AS_BUILT, "mutant.o")
        built = self.folder / "built" / f"{source.stem}.o"
        return (self.folder / "mutant.o").read_bytes() == built.read_bytes()

    def _is_caught(self, programs: Sequence[Program], source: Path | None) -> bool:
        return any(
            not _run([program, *arguments.split()], cpu_seconds=each.cpu_seconds)
            for each in programs
            for program in [self._linked(each, source)]
            for arguments in each.runs
        )

    def _compiled(self, source: Path, flags: Sequence[str], target: str) -> bool:
        path = self.folder / target
        path.parent.mkdir(exist_ok=True)
        return _run([*COMPILE, *flags, "-c", source, "-o", path])

    def _compile(self, source: Path, flags: Sequence[str], target: str) -> None:
        assert self._compiled(source, flags, target), source

    def _linked(self, program: Program, source: Path | None) -> Path:
        """The program, with this mutant in place of the original."""
        kernel = program.kernel
        objects = list((self.folder / kernel.name).glob("*.o"))
        if source:
            self._compiled(source, kernel.flags, "mutant.o")
            objects = [each for each in objects if each.stem != source.stem]
            objects.append(self.folder / "mutant.o")
        target, main = self.folder / "program", self.folder / f"{program.name}.main"
        linked = _run(["cc", *objects, "-x", "none", main, "-lpthread", "-o", target])
        assert linked, f"{program.name} does not link"
        return target


def _run(command: Sequence[str | Path], cpu_seconds: int = CPU_SECONDS) -> bool:
    """Whether it ends well, and in time."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    try:
        done = subprocess.run(
            command,
            timeout=PATIENCE,
            preexec_fn=limit,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
