"""csrc/azc_ring.h by itself: programs in C, which know nothing of our library.

tests/sim/ring.c is two processes and a ring, in C and in C++.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CSRC = TESTS.parent / "csrc"
SIM = TESTS / "sim"
STRICT = ("-D_GNU_SOURCE=1", "-Wall", "-Wextra", "-Werror", "-g", "-O1")
ADDRESS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
LANGUAGES = {"c": ("cc", "-std=c11"), "c++": ("c++", "-x", "c++", "-std=c++17")}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        sys.platform != "linux" or not shutil.which("cc"),
        reason="needs Linux and a C compiler",
    ),
]


def compiled(
    target: Path, name: str, *flags: str, language: str = "c", header: Path = CSRC
) -> Path:
    """A program of tests/sim, with the header that lies in that folder."""
    command = [*LANGUAGES[language], *STRICT, f"-I{header}", *flags]
    source = str(SIM / f"{name}.c")
    subprocess.run([*command, source, "-lpthread", "-o", str(target)], check=True)
    return target


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    settings = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1"}
    return subprocess.run(
        command, env=os.environ | settings, capture_output=True, text=True
    )


def works(folder: Path, *flags: str) -> bool:
    """Whether this machine can build and run a program with these flags."""
    source = folder / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    target = folder / "empty"
    try:
        subprocess.run(["cc", *flags, str(source), "-o", str(target)], check=True)
        return run(target).returncode == 0
    except (OSError, subprocess.CalledProcessError):
        return False


@pytest.mark.parametrize("language", LANGUAGES)
def test_two_processes(tmp_path: Path, language: str) -> None:
    if not shutil.which(LANGUAGES[language][0]):
        pytest.skip(f"there is no compiler of {language} here")
    flags = ADDRESS if works(tmp_path, *ADDRESS) else ()
    program = compiled(tmp_path / "ring", "ring", *flags, language=language)
    result = run(program, tmp_path / "socket", "20000")
    assert (result.returncode, result.stdout) == (0, "30000 records\n"), result.stderr
