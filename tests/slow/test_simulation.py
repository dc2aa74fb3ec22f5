"""The C helper over a simulated kernel, and under real threads with sanitizers.

The heads of the files in tests/sim say what is simulated, and what must hold.  A failed
run prints its seed: build the program as below; ``sim --from SEED --seeds 1 --verbose``
repeats it, step by step.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from figures import count
from scripts import output, ran

TESTS = Path(__file__).parents[1]
CSRC = TESTS.parent / "csrc"
SIM = TESTS / "sim"
# All except the files that make system calls: a kernel of tests/sim replaces them.
HELPER = sorted(
    path.stem for path in CSRC.glob("*.c") if not re.match("sys|poller", path.stem)
)
REAL = (*HELPER, "sys", "poller_epoll")
KERNEL = ("kernel", "lending", "poller", "threads")
SENDS = ("sim", "seeds", "oracle", "ports")
RELAYS = ("relaying", "seeds", "splicing")
SCRIPT = ("situations", "scripted", "threads")
# The faults of csrc/sabotage.h that the simulation of sends must catch.
FAULTS = (
    *("order", "tail", "rescue", "identity", "loan", "detach"),
    *("event", "handle", "gate", "copy", "late"),
)
LENDS = "-DAZC_LEND_MIN=2000"  # bytes; small loans mean many loans

SEEDS = int(os.environ.get("AZC_SIM_SEEDS", "5000"))
CAUGHT_WITHIN = 5000  # seeds
RACES = range(1, 1 + int(os.environ.get("AZC_RACES", "2")))
ADDRESS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
THREAD = ("-fsanitize=thread",)
# The simulation itself counts leaks, and a small quarantine is faster.
ENVIRONMENT = {
    **os.environ,
    "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=16:malloc_context_size=8",
    "TSAN_OPTIONS": "halt_on_error=1",
}

Build = Callable[..., Path]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.builds,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        platform.libc_ver()[0] != "glibc" or not shutil.which("cc"),
        reason="needs a C compiler and glibc's contexts",
    ),
]


def compiled(target: Path, sources: list[Path], *flags: str) -> Path:
    """Link a program.  Each source is compiled once for each set of flags."""
    command = ["cc", "-std=c11", "-D_GNU_SOURCE=1", "-Wall", "-Wextra", "-g", "-O1"]
    command += [f"-I{CSRC}", f"-I{SIM}", *flags]
    folder = target.parent / "-".join(["objects", *flags]).replace("/", "-")
    folder.mkdir(exist_ok=True)
    objects = []
    for source in sources:
        made = folder / f"{source.parent.name}-{source.stem}.o"
        if not made.exists():
            subprocess.run([*command, "-c", source, "-o", made], check=True)
        objects.append(made)
    subprocess.run(["cc", *flags, *objects, "-lpthread", "-o", target], check=True)
    return target


def passes(command: Sequence[object]) -> str:
    """Run a program whose checks must all hold; return its output."""
    return output(command, env=ENVIRONMENT)


def fails(command: Sequence[object]) -> None:
    """Run a program that must find a fault."""
    done = ran(command, env=ENVIRONMENT)
    assert done.returncode == 1
    assert "failed; its last steps" in done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("simulation")


@pytest.fixture(scope="module")
def works(folder: Path) -> Callable[..., bool]:
    """Whether this machine can build and run a program with these flags."""

    def works(*flags: str, prefix: tuple[str, ...] = ()) -> bool:
        source = folder / "empty.c"
        source.write_text("int main(void) { return 0; }\n")
        try:
            program = compiled(folder / "empty", [source], *flags)
            return ran([*prefix, program], env=ENVIRONMENT).returncode == 0
        except (OSError, subprocess.CalledProcessError):
            return False

    return works


@pytest.fixture(scope="module")
def build_sim(folder: Path) -> Build:
    """Build a simulation, in which its own locks replace the real ones."""

    def build(
        name: str,
        program: tuple[str, ...],
        *flags: str,
        kernel: tuple[str, ...] = KERNEL,
    ) -> Path:
        sources = [CSRC / f"{name}.c" for name in HELPER]
        sources += [SIM / f"{name}.c" for name in (*kernel, *program)]
        return compiled(
            folder / name, sources, f"-include{SIM / 'locks.h'}", LENDS, *flags
        )

    return build


@pytest.fixture(scope="module")
def address(works: Callable[..., bool]) -> tuple[str, ...]:
    """AddressSanitizer's flags, where it works."""
    return ADDRESS if works(*ADDRESS) else ()


@pytest.mark.parametrize(
    ("name", "program", "seeds", "what"),
    [
        ("sim", SENDS, SEEDS, "seeds of the simulated kernel"),
        ("relaying", RELAYS, SEEDS // 4, "seeds of simulated relays"),
    ],
)
def test_simulation(
    build_sim: Build,
    address: tuple[str, ...],
    name: str,
    program: tuple[str, ...],
    seeds: int,
    what: str,
) -> None:
    said = passes([build_sim(name, program, *address), "--seeds", seeds])
    assert said.startswith(f"{seeds} seeds,")
    count(what, seeds)


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        *(("submitting", KERNEL), ("pools", KERNEL)),
        *(("moving", SCRIPT), ("pumping", SCRIPT), ("looping", SCRIPT)),
        ("lifetimes", SCRIPT),
    ],
)
def test_situations(
    build_sim: Build, address: tuple[str, ...], name: str, kernel: tuple[str, ...]
) -> None:
    passes([build_sim(name, (name,), *address, kernel=kernel)])


@pytest.fixture(scope="module", params=[SENDS, RELAYS], ids=["sends", "relays"])
def saboteur(build_sim: Build, request: pytest.FixtureRequest) -> Path:
    """A simulation with the deliberate faults, each enabled by its name."""
    program: tuple[str, ...] = request.param
    return build_sim(f"{program[0]}-saboteur", program, "-DAZC_SABOTAGE=1")


def test_simulation_without_sabotage(saboteur: Path) -> None:
    passes([saboteur, "--seeds", CAUGHT_WITHIN])


@pytest.mark.parametrize(
    ("saboteur", "fault"),
    [*((SENDS, fault) for fault in FAULTS), (RELAYS, "between")],
    indirect=["saboteur"],
    ids=[*FAULTS, "between"],
)
def test_simulation_catches(fault: str, saboteur: Path) -> None:
    fails([saboteur, "--seeds", CAUGHT_WITHIN, "--sabotage", fault])


def test_locked_memory(folder: Path) -> None:
    sources = [CSRC / f"{name}.c" for name in ("pool", "handle", "sys")]
    locked = compiled(folder / "locked", [*sources, SIM / "locked.c"])
    passes([locked])
    assert "is_full_of(seen, BEFORE)" in ran([locked, "advised"]).stderr


# Global locks: see csrc/fork.c.  (A table begins with its lock.)
LOCKS = (
    *("pumps_lock", "loops_lock", "parties_lock"),
    *("channels", "ports", "pools", "relays", "rings"),
)
# Each child but the first forks while it holds a lock, and waits until the alarm.
FORKS = """
import ctypes, os, signal, sys
helper = ctypes.CDLL(sys.argv[1])
pids = []
for name in sys.argv[2:]:
    pids.append(os.fork())
    if not pids[-1]:
        if name != "none":
            lock = ctypes.c_char.in_dll(helper, f"azc__{name}")
            helper.pthread_mutex_lock(ctypes.byref(lock))
        signal.setitimer(signal.ITIMER_REAL, 2)
        os.fork()
        os._exit(0)
for name, pid in zip(sys.argv[2:], pids):
    if os.waitpid(pid, 0)[1] == signal.SIGALRM:
        print(name)
"""


def test_a_fork_waits_for_every_lock(folder: Path) -> None:
    """A lock that another thread holds at a fork would stay locked in the child."""
    sources = [CSRC / f"{name}.c" for name in REAL]
    helper = compiled(folder / "helper.so", sources, "-fPIC", "-shared")
    said = passes([sys.executable, "-c", FORKS, helper, "none", *LOCKS])
    assert said.split() == [*LOCKS]


@pytest.fixture(scope="module")
def race(folder: Path, works: Callable[..., bool]) -> Callable[..., Path]:
    """Build a threaded program, once with each set of flags."""

    def race(*flags: str, prefix: tuple[str, ...] = (), program: str = "race") -> Path:
        target = folder / "-".join([program, *flags]).replace("=", "-")
        if target.exists():
            return target
        if not works(*flags, prefix=prefix):
            pytest.skip(f"{flags[0]} does not work here")
        sources = [CSRC / f"{name}.c" for name in REAL]
        return compiled(target, [*sources, SIM / f"{program}.c"], *flags)

    return race


@pytest.mark.parametrize("seed", RACES)
def test_race(race: Callable[..., Path], seed: int) -> None:
    passes([race(*ADDRESS), "--operations", "40000", "--seed", seed])


@pytest.mark.parametrize("seed", RACES)
def test_race_of_threads(race: Callable[..., Path], seed: int) -> None:
    prefix = ("setarch", "-R")
    program = race(*THREAD, prefix=prefix)
    passes([*prefix, program, "--operations", "10000", "--seed", seed])


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("flags", [ADDRESS, THREAD], ids=["memory", "threads"])
def test_relays(race: Callable[..., Path], flags: tuple[str, ...], seed: int) -> None:
    prefix = ("setarch", "-R") if flags is THREAD else ()
    program = race(*flags, prefix=prefix, program="relays")
    passes([*prefix, program, "--rounds", "50", "--seed", seed])


# Wheels are made for these, too.  (musl-gcc does not look for the kernel's headers.)
KERNEL_HEADERS = ("/usr/include", f"/usr/include/{platform.machine()}-linux-gnu")
ELSEWHERE = {
    "musl-gcc": ([f"-idirafter{folder}" for folder in KERNEL_HEADERS], []),
    "aarch64-linux-gnu-gcc": ([], ["qemu-aarch64-static"]),
}


@pytest.mark.parametrize("compiler", ELSEWHERE)
def test_race_elsewhere(folder: Path, compiler: str) -> None:
    """Another C library, another processor; without a warning."""
    flags, emulator = ELSEWHERE[compiler]
    needed = [compiler, *emulator]
    if missing := [name for name in needed if not shutil.which(name)]:
        pytest.skip(f"needs {missing[0]}")
    target = folder / f"race-{compiler}"
    command = [compiler, "-static", "-std=c11", "-D_GNU_SOURCE=1", "-O2", "-pthread"]
    command += ["-Wall", "-Wextra", "-Werror", f"-I{CSRC}", f"-I{SIM}", *flags]
    sources = [*(CSRC / f"{name}.c" for name in REAL), SIM / "race.c"]
    sources += [CSRC / "colour" / f"{name}.c" for name in ("yuv", "rows_plain")]
    sources += [CSRC / "colour" / f"rows_{name}.c" for name in ("avx2", "neon")]
    subprocess.run([*command, *sources, "-o", target], check=True)
    passes([*emulator, target, "--operations", "5000"])


@pytest.mark.skipif(not shutil.which("valgrind"), reason="needs valgrind")
def test_valgrind(race: Callable[..., Path]) -> None:
    """valgrind notices reads of unset memory, which the sanitizers do not."""
    memcheck = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=no"]
    passes([*memcheck, race("-O2"), "--operations", "500"])
