"""Which programs a mutant has to get past, and whether it does.

The simulation (tests/sim) comes first: it is quick, and a seed always does the same.
What it lets pass is compared with the original as the compiler's optimiser sees both:
the same object code is the same program.  The rest goes on to the programs with real
threads on real fds.
"""

from __future__ import annotations

import functools
import resource
import shutil
import subprocess
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mutants import Mutant

TESTS = Path(__file__).parents[1]
CSRC, SIM = TESTS.parent / "csrc", TESTS / "sim"

HELPER = [
    *("handle", "op", "queue", "port", "pool", "pace", "writer", "lanes", "lender"),
    *("channel", "ending", "move", "submit", "cancel", "pump", "passing", "relay"),
    *("ring", "fork", "census", "fds"),
]
KERNEL = ("oracle", "ports", "kernel", "rates", "lending", "poller", "threads")
BY_HAND = ("submitting", "pools")  # situations over the same kernel, in no time
SYSTEM = ("sys", "poller_epoll")
WITH_THREADS = ("race", "relays", "stop_early", "fairness", "writer")

COMPILE = ["cc", "-std=c11", "-D_GNU_SOURCE=1", "-w", f"-I{CSRC}", f"-I{SIM}"]
SIMULATED = ["-O1", "-include", str(SIM / "locks.h"), "-DAZC_LEND_MIN=2000"]
REAL = ["-O1"]
AS_BUILT = ["-O2", "-fPIC", "-fvisibility=hidden"]

FIRST_SEEDS = 100  # in which most mutants fail, or never end
CPU_SECONDS = 10  # of a mutant that never ends,
PATIENCE = 60.0  # or only waits
MEMORY = 4 << 30


class Verdict(Enum):
    IMPOSSIBLE = "does not compile"
    SIMULATION = "killed by the simulation"
    EQUIVALENT = "equivalent"
    THREADS = "killed with real threads"
    SURVIVES = "survives"


class Judge:
    """All that is the same for every mutant, compiled once."""

    def __init__(self, folder: Path, seeds: int, *, threads: bool) -> None:
        self.folder = folder
        self.threads = threads
        self.seeds = seeds
        for way in ("simulated", "real", "built"):
            (folder / way).mkdir()
        for name in HELPER:
            self._compile(CSRC / f"{name}.c", "simulated", SIMULATED)
            self._compile(CSRC / f"{name}.c", "real", REAL)
            self._compile(CSRC / f"{name}.c", "built", AS_BUILT)
        for name in KERNEL:
            self._compile(SIM / f"{name}.c", "simulated", SIMULATED)
        for name in ("sim", *BY_HAND):
            source, main = SIM / f"{name}.c", folder / f"{name}.main"
            _run([*COMPILE, *SIMULATED, "-c", str(source), "-o", str(main)])
        for name in SYSTEM:
            self._compile(CSRC / f"{name}.c", "real", REAL)
        for name in WITH_THREADS:
            source = SIM / f"{name}.c"
            _run([*COMPILE, *REAL, "-c", str(source), "-o", f"{folder}/{name}.main"])

    def originals_pass(self) -> bool:
        """Whether the programs find no fault where there is none."""
        every = self._is_caught_by_simulation(None), self._is_caught_by_threads(None)
        return not any(every)

    def judge(self, mutant: Mutant) -> Verdict:
        source = self.folder / mutant.file
        source.write_text(mutant.applied((CSRC / mutant.file).read_text()))
        if not self._compiles(source, SIMULATED):
            return Verdict.IMPOSSIBLE
        if self._is_caught_by_simulation(source):
            return Verdict.SIMULATION
        self._compiles(source, AS_BUILT)
        built = (self.folder / "built" / f"{source.stem}.o").read_bytes()
        if (self.folder / "mutant.o").read_bytes() == built:
            return Verdict.EQUIVALENT
        self._compiles(source, REAL)
        if self.threads and self._is_caught_by_threads(source):
            return Verdict.THREADS
        return Verdict.SURVIVES

    def _compile(self, source: Path, way: str, flags: list[str]) -> None:
        target = self.folder / way / f"{source.stem}.o"
        # (from a folder of its own, as a mutant is: no path of theirs differs)
        copy = shutil.copy(source, self.folder)
        done = _run([*COMPILE, *flags, "-c", str(copy), "-o", str(target)])
        assert done, f"{source} does not compile"

    def _compiles(self, source: Path, flags: list[str]) -> bool:
        target = self.folder / "mutant.o"
        return _run([*COMPILE, *flags, "-c", str(source), "-o", str(target)])

    def _is_caught_by_simulation(self, source: Path | None) -> bool:
        for name in BY_HAND:
            if not _run([self._simulated(name, source)], cpu_seconds=1):
                return True
        program = self._simulated("sim", source)
        first = [str(program), "--seeds", str(FIRST_SEEDS)]
        if not _run(first, cpu_seconds=1):
            return True
        rest = ["--from", str(FIRST_SEEDS + 1), "--seeds", str(self.seeds)]
        return not _run([program, *rest])

    def _is_caught_by_threads(self, source: Path | None) -> bool:
        return any(not _run(command) for command in self._with_threads(source))

    def _with_threads(self, source: Path | None) -> Iterable[list[str | Path]]:
        more: dict[str, list[list[str]]] = {
            "race": [["--operations", "10000", "--seed", str(n)] for n in (1, 2)],
            "relays": [["--rounds", "10", "--seed", str(n)] for n in (1, 2, 3)],
        }
        for name in WITH_THREADS:
            main = self.folder / f"{name}.main"
            program = self._linked("real", source, "-x", "none", main)
            for arguments in more.get(name, [[]]):
                yield [program, *arguments]

    def _simulated(self, name: str, source: Path | None) -> Path:
        main = self.folder / f"{name}.main"
        return self._linked("simulated", source, "-x", "none", main)

    def _linked(self, way: str, source: Path | None, *more: str | Path) -> Path:
        objects = list((self.folder / way).glob("*.o"))
        if source:
            objects = [each for each in objects if each.stem != source.stem]
            objects.append(self.folder / "mutant.o")
        target = self.folder / "program"
        command: list[str | Path] = ["cc", *objects, *more, "-lpthread", "-o", target]
        linked = _run(command)
        assert linked, "it does not link"
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
