"""Which programs a mutant has to get past, and whether it does.

The simulation (tests/sim) comes first: it is quick, and a seed always does the same.
Then come the programs that make their situations by hand.  What all these let pass is
compared with the original as the compiler's optimiser sees both: the same object code
is the same program.  The rest goes on to programs with real threads on real fds.
"""

from __future__ import annotations

import functools
import resource
import shutil
import subprocess
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mutants import Mutant

TESTS = Path(__file__).parents[1]
CSRC, SIM = TESTS.parent / "csrc", TESTS / "sim"

HELPER = [
    *("handle", "op", "queue", "port", "pool", "pace", "caller", "lanes", "lender"),
    *("channel", "ending", "move", "submit", "cancel", "pump", "passing", "relay"),
    *("ring", "fork"),
]

COMPILE = ["cc", "-std=c11", "-D_GNU_SOURCE=1", "-w", f"-I{CSRC}", f"-I{SIM}"]
SIMULATED = ["-O1", "-include", str(SIM / "locks.h"), "-DAZC_LEND_MIN=2000"]
REAL = ["-O1"]
AS_BUILT = ["-O2", "-fPIC", "-fvisibility=hidden"]

FIRST_SEEDS = 100  # in which most mutants fail, or never end
CPU_SECONDS = 10  # of a mutant that never ends,
PATIENCE = 60.0  # or only waits
MEMORY = 4 << 30


class Kernel(NamedTuple):
    """What stands under the helper, and how both are compiled."""

    name: str
    sources: list[Path]
    flags: list[str]


def _of(folder: Path, *names: str) -> list[Path]:
    return [folder / f"{name}.c" for name in names]


RANDOM = Kernel(
    "random",
    [
        *_of(SIM, "oracle", "ports", "kernel", "rates"),
        *_of(SIM, "lending", "poller", "threads"),
    ],
    SIMULATED,
)
SCRIPTED = Kernel("scripted", _of(SIM, "situations", "scripted", "threads"), SIMULATED)
LINUX = Kernel("linux", _of(CSRC, "sys", "poller_epoll"), REAL)
KERNELS = (RANDOM, SCRIPTED, LINUX)


@dataclass(frozen=True)
class Program:
    """One of tests/sim: what it runs on, and with which arguments in turn."""

    name: str
    kernel: Kernel
    runs: Sequence[Sequence[str]] = ((),)
    cpu_seconds: int = CPU_SECONDS


SITUATIONS = (
    Program("submitting", RANDOM, cpu_seconds=1),
    Program("pools", RANDOM, cpu_seconds=1),
    Program("moving", SCRIPTED, cpu_seconds=1),
    Program("pumping", SCRIPTED, cpu_seconds=1),
    Program("queueing", LINUX, cpu_seconds=1),
    Program("cancelling", LINUX, cpu_seconds=1),
)
WITH_THREADS = (
    Program(
        "race",
        LINUX,
        [["--operations", "10000", "--seed", str(seed)] for seed in (1, 2)],
    ),
    Program(
        "relays", LINUX, [["--rounds", "10", "--seed", str(seed)] for seed in (1, 2, 3)]
    ),
    Program("stop_early", LINUX),
    Program("fairness", LINUX),
    Program("caller", LINUX),
)


def simulation(seeds: int) -> tuple[Program, ...]:
    first = ["--seeds", str(FIRST_SEEDS)]
    rest = ["--from", str(FIRST_SEEDS + 1), "--seeds", str(seeds)]
    return (
        Program("sim", RANDOM, [first], cpu_seconds=1),
        Program("sim", RANDOM, [rest]),
    )


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
        self._simulation = simulation(seeds)
        self._with_threads = WITH_THREADS if threads else ()
        for kernel in KERNELS:
            (folder / kernel.name).mkdir()
            for source in (*_of(CSRC, *HELPER), *kernel.sources):
                target = folder / kernel.name / f"{source.stem}.o"
                assert self._compiled(source, kernel.flags, target), source
        (folder / "built").mkdir()
        for source in _of(CSRC, *HELPER):
            target = folder / "built" / f"{source.stem}.o"
            # (from a folder of its own, as a mutant is: no path of theirs differs)
            copy = Path(shutil.copy(source, folder))
            assert self._compiled(copy, AS_BUILT, target), source
        for each in (*self._simulation, *SITUATIONS, *WITH_THREADS):
            target, source = folder / f"{each.name}.main", SIM / f"{each.name}.c"
            assert self._compiled(source, each.kernel.flags, target), source

    def originals_pass(self) -> bool:
        """Whether the programs find no fault where there is none."""
        everything = (*self._simulation, *SITUATIONS, *self._with_threads)
        return not self._is_caught(everything, None)

    def judge(self, mutant: Mutant) -> Verdict:
        source = self.folder / mutant.file
        source.write_text(mutant.applied((CSRC / mutant.file).read_text()))
        if not self._compiled(source, SIMULATED, self.folder / "mutant.o"):
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
        mutant = self.folder / "mutant.o"
        self._compiled(source, AS_BUILT, mutant)
        built = (self.folder / "built" / f"{source.stem}.o").read_bytes()
        return mutant.read_bytes() == built

    def _is_caught(self, programs: Sequence[Program], source: Path | None) -> bool:
        return any(
            not _run([program, *arguments], cpu_seconds=each.cpu_seconds)
            for each in programs
            for program in [self._linked(each, source)]
            for arguments in each.runs
        )

    def _compiled(self, source: Path, flags: list[str], target: Path) -> bool:
        return _run([*COMPILE, *flags, "-c", source, "-o", target])

    def _linked(self, program: Program, source: Path | None) -> Path:
        """The program, with this mutant in place of the original."""
        kernel = program.kernel
        objects = list((self.folder / kernel.name).glob("*.o"))
        if source:
            mutant = self.folder / "mutant.o"
            self._compiled(source, kernel.flags, mutant)
            objects = [each for each in objects if each.stem != source.stem]
            objects.append(mutant)
        target, main = self.folder / "program", self.folder / f"{program.name}.main"
        command: list[str | Path] = ["cc", *objects, "-x", "none", main, "-lpthread"]
        command += ["-o", target]
        assert _run(command), f"{program.name} does not link"
        return target


def _limit(cpu_seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _run(command: Sequence[str | Path], cpu_seconds: int = CPU_SECONDS) -> bool:
    """Whether it ends well, and in time."""
    try:
        done = subprocess.run(
            command,
            timeout=PATIENCE,
            preexec_fn=functools.partial(_limit, cpu_seconds),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
