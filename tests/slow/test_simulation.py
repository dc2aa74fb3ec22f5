"""The C helper over a simulated kernel, and under real threads with sanitizers.

tests/sim/sim.c says what is simulated and what must hold; tests/sim/race.c has real
threads on real pipes and sockets. A failure prints its seed: build the program as
below, and ``sim --from SEED --seeds 1 --verbose`` shows it again, step by step.
tests/sim/relaying.c has relays over the simulated kernel, and tests/sim/relays.c
over a real one. tests/sim/moving.c and pumping.c play csrc/move.c and csrc/pump.c, call
by call, over a kernel that answers what it is told to (scripted.c). Smaller programs:
locked.c takes locked pages back from a pipe; cancelling.c plays what is asked for while
a system call runs; joining.c joins a split while that looks at its source.  Over the
simulated kernel, submitting.c makes its situations by hand, and pools.c has an address
space of its own.
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from figures import count

TESTS = Path(__file__).parents[1]
CSRC = TESTS.parent / "csrc"
SIM = TESTS / "sim"
HELPER = [
    *("handle", "op", "queue", "port", "pool", "lanes", "lender"),
    *("channel", "ending", "loop", "pump", "closing", "move", "submit", "passing"),
    *("relay", "opening", "split", "ring", "fork"),
]
REAL = (*HELPER, "sys", "poller_epoll")
KERNEL = ("kernel", "lending", "poller", "threads")
SENDS = ("sim", "seeds", "oracle", "ports")
RELAYS = ("relaying", "seeds", "splicing")
SCRIPT = ("situations", "scripted", "threads")
OVER_LINUX = ("cancelling", "joining")
LENDS = "-DAZC_LEND_MIN=2000"  # bytes; small loans are many loans

SEEDS = os.environ.get("AZC_SIM_SEEDS", "5000")
RELAY_SEEDS = str(int(SEEDS) // 4)
CAUGHT_WITHIN = "5000"  # seeds
RACES = range(1, 1 + int(os.environ.get("AZC_RACES", "2")))
ADDRESS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
THREAD = ("-fsanitize=thread",)
# The simulation counts leaks itself, and small quarantines are quicker.
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
    """Link a program.  With the same flags each source is compiled once for all."""
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


def run(command: list[str | Path]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)


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
            return run([*prefix, program]).returncode == 0
        except (OSError, subprocess.CalledProcessError):
            return False

    return works


@pytest.fixture(scope="module")
def build_sim(folder: Path) -> Build:
    """Build the simulation; its locks take the place of the real ones."""

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
def saboteur(build_sim: Build) -> Path:
    return build_sim("saboteur", SENDS, "-DAZC_SABOTAGE=1")


def test_simulation(build_sim: Build, works: Callable[..., bool]) -> None:
    sim = build_sim("sim", SENDS, *(ADDRESS if works(*ADDRESS) else ()))
    result = run([sim, "--seeds", SEEDS])
    assert result.returncode == 0, result.stderr[-8000:]
    assert result.stdout.startswith(f"{SEEDS} seeds,")
    count("seeds of the simulated kernel", int(SEEDS))


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        *(("submitting", KERNEL), ("pools", KERNEL)),
        *(("moving", SCRIPT), ("pumping", SCRIPT)),
    ],
)
def test_situations(
    build_sim: Build, works: Callable[..., bool], name: str, kernel: tuple[str, ...]
) -> None:
    flags = ADDRESS if works(*ADDRESS) else ()
    result = run([build_sim(name, (name,), *flags, kernel=kernel)])
    assert result.returncode == 0, result.stderr[-8000:]


def test_simulated_relays(build_sim: Build, works: Callable[..., bool]) -> None:
    sim = build_sim("relaying", RELAYS, *(ADDRESS if works(*ADDRESS) else ()))
    result = run([sim, "--seeds", RELAY_SEEDS])
    assert result.returncode == 0, result.stderr[-8000:]
    assert result.stdout.startswith(f"{RELAY_SEEDS} seeds,")
    count("seeds of simulated relays", int(RELAY_SEEDS))


def test_simulated_relays_catch_a_fault(build_sim: Build) -> None:
    sim = build_sim("relaying-saboteur", RELAYS, "-DAZC_SABOTAGE=1")
    assert run([sim, "--seeds", "1000"]).returncode == 0
    result = run([sim, "--seeds", "1000", "--sabotage", "between"])
    assert result.returncode == 1
    assert "failed; its last steps" in result.stderr


def test_simulation_without_sabotage(saboteur: Path) -> None:
    result = run([saboteur, "--seeds", CAUGHT_WITHIN])
    assert result.returncode == 0, result.stderr[-8000:]


@pytest.mark.parametrize(
    "fault",
    [
        *("order", "tail", "rescue", "identity", "loan", "detach"),
        *("event", "handle", "gate", "copy", "late"),
    ],
)
def test_simulation_catches(fault: str, saboteur: Path) -> None:
    result = run([saboteur, "--seeds", CAUGHT_WITHIN, "--sabotage", fault])
    assert result.returncode == 1
    assert "failed; its last steps" in result.stderr


def test_locked_memory(folder: Path) -> None:
    sources = [CSRC / f"{name}.c" for name in ("pool", "handle", "sys")]
    locked = compiled(folder / "locked", [*sources, SIM / "locked.c"])
    result = run([locked])
    assert result.returncode == 0, result.stderr
    assert "is_full_of(seen, BEFORE)" in run([locked, "advised"]).stderr


@pytest.mark.parametrize("name", OVER_LINUX)
def test_over_linux(folder: Path, works: Callable[..., bool], name: str) -> None:
    flags = ADDRESS if works(*ADDRESS) else ()
    sources = [CSRC / f"{source}.c" for source in REAL]
    program = compiled(folder / name, [*sources, SIM / f"{name}.c"], *flags)
    result = run([program])
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module")
def race(folder: Path, works: Callable[..., bool]) -> Callable[..., Path]:
    """Build a program of threads, once in each way."""

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
    result = run([race(*ADDRESS), "--operations", "40000", "--seed", str(seed)])
    assert result.returncode == 0, result.stderr[-8000:]


@pytest.mark.parametrize("seed", RACES)
def test_race_of_threads(race: Callable[..., Path], seed: int) -> None:
    prefix = ("setarch", "-R")
    program = race(*THREAD, prefix=prefix)
    result = run([*prefix, program, "--operations", "10000", "--seed", str(seed)])
    assert result.returncode == 0, result.stderr[-8000:]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("flags", [ADDRESS, THREAD], ids=["memory", "threads"])
def test_relays(race: Callable[..., Path], flags: tuple[str, ...], seed: int) -> None:
    prefix = ("setarch", "-R") if flags is THREAD else ()
    program = race(*flags, prefix=prefix, program="relays")
    result = run([*prefix, program, "--rounds", "50", "--seed", str(seed)])
    assert result.returncode == 0, result.stderr[-8000:]


@pytest.mark.skipif(not shutil.which("valgrind"), reason="needs valgrind")
@pytest.mark.parametrize("name", OVER_LINUX)
def test_valgrind(race: Callable[..., Path], name: str) -> None:
    """It sees reads of memory that was never set, which the sanitizers do not."""
    memcheck = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=no"]
    result = run([*memcheck, race("-O2", program=name)])
    assert result.returncode == 0, result.stderr[-8000:]
