"""Mutation tests of the C core: does a test notice each small fault in it?

python tests/mutation/mutation.py [--sample N] [--files queue.c,ending.c] [--seeds 3000]

Prints the mutants' verdicts, file by file, and each survivor (see `trying`).

The simulation (tests/sim) comes first: it is quick, and a seed always does the same.
The programs with hand-made situations follow.  A mutant that passes all is compiled
with optimisation and compared with the original: equal object code is an equal program.
"""

import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from mutants import mutants_of
from trying import SURVIVORS, TESTS, Core, Mutant, ends_well, judged, parser

CSRC, SIM = TESTS.parent / "csrc", TESTS / "sim"

# (Without the relays' files, which the simulation does not run, and without ring.c: the
# tests of tests/shm are about that, with two processes.)
FILES = [
    *("queue.c", "move.c", "submit.c", "pump.c", "lender.c", "ending.c"),
    *("op.c", "pool.c", "loop.c", "lanes.c", "port.c", "handle.c"),
    *("channel.c", "closing.c", "fork.c"),
]
CORE = Core(CSRC, FILES, SURVIVORS, mutants_of)

# All except the files that make system calls: a kernel of tests/sim replaces them.
HELPER = [
    path for path in sorted(CSRC.glob("*.c")) if not re.match("sys|poller", path.stem)
]
COMPILE = ["cc", "-std=c11", "-D_GNU_SOURCE=1", "-w", f"-I{CSRC}", f"-I{SIM}"]
SIMULATED = ["-O1", "-include", str(SIM / "locks.h"), "-DAZC_LEND_MIN=2000"]
AS_BUILT = ["-O2", "-fPIC", "-fvisibility=hidden"]

FIRST_SEEDS = 100  # most mutants fail or hang in these


class Kernel(NamedTuple):
    """The replacement of the system, and how it is compiled with the helper."""

    name: str
    sources: list[Path]
    flags: list[str]


def _of(folder: Path, names: str) -> list[Path]:
    return [folder / f"{name}.c" for name in names.split()]


FOR_RANDOM = "seeds oracle ports kernel lending poller threads"
RANDOM = Kernel("random", _of(SIM, FOR_RANDOM), SIMULATED)
SCRIPTED = Kernel("scripted", _of(SIM, "situations scripted threads"), SIMULATED)


@dataclass(frozen=True)
class Program:
    """A program of tests/sim: its kernel, and the arguments of each of its runs."""

    name: str
    kernel: Kernel
    runs: Sequence[str] = ("",)
    cpu_seconds: int = 10


SITUATIONS = [
    *(Program(name, RANDOM, cpu_seconds=1) for name in ("submitting", "pools")),
    *(
        Program(name, SCRIPTED, cpu_seconds=1)
        for name in ("moving", "pumping", "looping", "lifetimes")
    ),
]


class Verdict(Enum):
    IMPOSSIBLE = "does not compile"
    SIMULATION = "killed by the simulation"
    SITUATION = "killed by a situation"
    EQUIVALENT = "equivalent"
    SURVIVES = "survives"


class Judge:
    """The parts that do not depend on the mutant, compiled once."""

    def __init__(self, folder: Path, seeds: int) -> None:
        self.folder = folder
        self._simulation = [
            Program("sim", RANDOM, [f"--seeds {FIRST_SEEDS}"], cpu_seconds=1),
            Program("sim", RANDOM, [f"--from {FIRST_SEEDS + 1} --seeds {seeds}"]),
        ]
        for kernel in (RANDOM, SCRIPTED):
            for source in (*HELPER, *kernel.sources):
                self._compile(source, kernel.flags, f"{kernel.name}/{source.stem}.o")
        for source in HELPER:
            # (copied to a mutant's folder, so that the paths in both are equal)
            copy = Path(shutil.copy(source, folder))
            self._compile(copy, AS_BUILT, f"built/{source.stem}.o")
        for each in (*self._simulation, *SITUATIONS):
            source = SIM / f"{each.name}.c"
            self._compile(source, each.kernel.flags, f"{each.name}.main")

    def originals_pass(self) -> bool:
        """Whether the programs pass without a mutant."""
        return not self._is_caught((*self._simulation, *SITUATIONS), None)

    def judge(self, mutant: Mutant) -> Verdict:
        source = self.folder / mutant.file
        source.write_text(mutant.applied((CSRC / mutant.file).read_text()))
        if not self._compiled(source, SIMULATED, "mutant.o"):
            return Verdict.IMPOSSIBLE
        if self._is_caught(self._simulation, source):
            return Verdict.SIMULATION
        if self._is_caught(SITUATIONS, source):
            return Verdict.SITUATION
        same = self._is_the_same(source)
        return Verdict.EQUIVALENT if same else Verdict.SURVIVES

    def _is_the_same(self, source: Path) -> bool:
        self._compiled(source, AS_BUILT, "mutant.o")
        built = self.folder / "built" / f"{source.stem}.o"
        return (self.folder / "mutant.o").read_bytes() == built.read_bytes()

    def _is_caught(self, programs: Sequence[Program], source: Path | None) -> bool:
        return any(
            not ends_well([program, *arguments.split()], cpu_seconds=each.cpu_seconds)
            for each in programs
            for program in [self._linked(each, source)]
            for arguments in each.runs
        )

    def _compiled(self, source: Path, flags: Sequence[str], target: str) -> bool:
        path = self.folder / target
        path.parent.mkdir(exist_ok=True)
        return ends_well([*COMPILE, *flags, "-c", source, "-o", path])

    def _compile(self, source: Path, flags: Sequence[str], target: str) -> None:
        assert self._compiled(source, flags, target), source

    def _linked(self, program: Program, source: Path | None) -> Path:
        """Link the program, with this mutant instead of the original."""
        kernel = program.kernel
        objects = list((self.folder / kernel.name).glob("*.o"))
        if source:
            self._compiled(source, kernel.flags, "mutant.o")
            objects = [each for each in objects if each.stem != source.stem]
            objects.append(self.folder / "mutant.o")
        target, main = self.folder / "program", self.folder / f"{program.name}.main"
        linked = ends_well(
            ["cc", *objects, "-x", "none", main, "-lpthread", "-o", target]
        )
        assert linked, f"{program.name} does not link"
        return target


def main() -> int:
    words = parser(__doc__, CORE)
    words.add_argument("--seeds", type=int, default=3000)
    options = words.parse_args()

    def judge_in(folder: Path) -> Callable[[Mutant], Verdict]:
        judge = Judge(folder, options.seeds)
        assert judge.originals_pass(), "the programs fail without a mutant"
        return judge.judge

    return judged(CORE, options, [Verdict.SURVIVES], judge_in)


if __name__ == "__main__":
    sys.exit(main())
