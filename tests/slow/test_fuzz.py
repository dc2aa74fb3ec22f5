"""Untrusted bytes, made by a fuzzer that sees which code they reach.

tests/sim/ring_hostile.c is a ring whose peer writes anything; tests/fuzz/targets.py has
the Python parts.  Inputs that once reached new code are kept in tests/fuzz/corpus, and
are tried everywhere.  The fuzzers need clang (C) and atheris (Python);
AZC_FUZZ_SECONDS=60 runs each for a minute.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import figures
import pytest
from scripts import output, ran

TESTS = Path(__file__).parents[1]
CSRC, FUZZ = TESTS.parent / "csrc", TESTS / "fuzz"
CORPUS = FUZZ / "corpus"
IN_C = {"ring": [TESTS / "sim" / "ring_hostile.c"]}
IN_PYTHON = {  # and the number of inputs in CI
    "frame": 3000,
    "dask_message": 5000,
    "http": 1000,
    "websocket": 300,
    "asgi": 2000,
    "aiohttp": 500,
    "x_server": 1500,
}
SANITIZERS = "address,undefined"
SECONDS = os.environ.get("AZC_FUZZ_SECONDS")
INPUT_BYTES = 1000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60 + 2 * int(SECONDS or 0))]


def runs(number: int) -> list[str]:
    """Return options for runs that are all alike, as in CI, or for long random ones."""
    if SECONDS:
        return [f"-max_total_time={SECONDS}"]
    return [f"-runs={number}", "-seed=1"]


def compiled(target: Path, sources: list[Path], *command: str) -> Path:
    flags = ["-std=c11", "-D_GNU_SOURCE=1", "-DAZC_FUZZED", "-g", "-O1", f"-I{CSRC}"]
    flags.append("-fno-sanitize-recover=undefined")
    subprocess.run([*command, *flags, *sources, "-o", target], check=True)
    return target


def fuzz(name: str, number: int, folder: Path, *command: str | Path) -> None:
    """Run a fuzzer over a copy of the corpus."""
    corpus = shutil.copytree(CORPUS / name, folder / "corpus")
    options = [f"-max_len={INPUT_BYTES}", f"-artifact_prefix={folder}/"]
    done = ran([*command, *runs(number), *options, corpus])
    assert done.returncode == 0, done.stderr[-6000:]
    found = re.search(r"^Done (\d+) runs", done.stderr, re.MULTILINE)
    assert found, done.stderr[-6000:]
    figures.count(f"fuzzer executions: {name}", int(found[1]))


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
@pytest.mark.parametrize("name", IN_C)
def test_corpus_in_c(name: str, tmp_path: Path) -> None:
    sources = [*IN_C[name], FUZZ / "replay.c"]
    program = compiled(tmp_path / name, sources, "cc", f"-fsanitize={SANITIZERS}")
    inputs = sorted((CORPUS / name).iterdir())
    assert inputs
    output([program, *inputs])


@pytest.mark.skipif(not shutil.which("clang"), reason="needs clang")
@pytest.mark.parametrize("name", IN_C)
def test_fuzzed_in_c(name: str, tmp_path: Path) -> None:
    sanitizers = f"-fsanitize=fuzzer,{SANITIZERS}"
    program = compiled(tmp_path / name, IN_C[name], "clang", sanitizers)
    fuzz(name, 20_000, tmp_path, program)


@pytest.mark.parametrize("name", IN_PYTHON)
def test_corpus_in_python(name: str) -> None:
    for needed in ("aiohttp", "distributed", "h11", "numpy", "wsproto"):
        # (not imported here, as Dask would leave a thread behind)
        if not importlib.util.find_spec(needed):
            pytest.skip(f"needs {needed}")
    code = (
        "import sys; from pathlib import Path; from targets import TARGETS\n"
        "inputs = sorted(Path(sys.argv[2]).iterdir()); assert inputs\n"
        "for one in inputs: TARGETS[sys.argv[1]](one.read_bytes())"
    )
    command = [sys.executable, "-W", "error", "-c", code, name, CORPUS / name]
    output(command, cwd=FUZZ)


@pytest.mark.skipif(not importlib.util.find_spec("atheris"), reason="needs atheris")
@pytest.mark.parametrize("name", IN_PYTHON)
def test_fuzzed_in_python(name: str, tmp_path: Path) -> None:
    fuzz(name, IN_PYTHON[name], tmp_path, sys.executable, FUZZ / "fuzz_python.py", name)
