"""csrc/azc_ring.h alone, in C programs without our library.

tests/sim/ring.c is two processes and a ring, in C and in C++.  ring_order.c tries every
order in which two threads can go through the header; ring_hostile.c is a peer that
writes anything at any time; ring_race.c is for the thread sanitizer.  These three must
also find the faults that `MUTANTS` puts into the header.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CSRC = TESTS.parent / "csrc"
SIM = TESTS / "sim"
STRICT = ("-D_GNU_SOURCE=1", "-Wall", "-Wextra", "-Werror", "-g", "-O1")
# AZC_RING_CALLS=10000000 runs more.
CALLS = os.environ.get("AZC_RING_CALLS", "300000")
THREAD = ("-fsanitize=thread",)
UNSHUFFLED = ("setarch", "-R")  # the thread sanitizer needs fixed addresses
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
    """Build a program of tests/sim, with the header in that folder."""
    command = [*LANGUAGES[language], *STRICT, f"-I{header}", *flags]
    if flags == THREAD:
        command.append("-Wno-tsan")  # (TSan does not know fences; none is needed here)
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
    prefix = UNSHUFFLED if flags == THREAD else ()
    try:
        subprocess.run(["cc", *flags, str(source), "-o", str(target)], check=True)
        return run(*prefix, target).returncode == 0
    except (OSError, subprocess.CalledProcessError):
        return False


@pytest.mark.parametrize("language", LANGUAGES)
def test_two_processes(tmp_path: Path, language: str) -> None:
    if not shutil.which(LANGUAGES[language][0]):
        pytest.skip(f"there is no {language} compiler here")
    flags = ADDRESS if works(tmp_path, *ADDRESS) else ()
    program = compiled(tmp_path / "ring", "ring", *flags, language=language)
    result = run(program, tmp_path / "socket", "20000")
    assert (result.returncode, result.stdout) == (0, "30000 records\n"), result.stderr


# ---- every order of two threads -----------------------------------------------------


@pytest.mark.parametrize("held", ["0", "1"])
def test_every_order(tmp_path: Path, held: str) -> None:
    """Three records through a ring that holds two."""
    result = run(compiled(tmp_path / "order", "ring_order"), "3", held)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.split()[0]) > 100_000  # states


SLEEPS = ("ring_order", "a thread sleeps for ever")
HOSTILE = ("ring_hostile", "ring_hostile.c:|AddressSanitizer")
# Replacements in the header, the program that must notice, and its words.
MUTANTS = {
    "no fence": (
        "    AZC_RING_FENCE();\n    uint64_t wake_at",
        "    uint64_t wake_at",
        *SLEEPS,
    ),
    "no fence before sleeping": (
        "    AZC_RING_FENCE();\n    int r = azc_ring__look",
        "    int r = azc_ring__look",
        *SLEEPS,
    ),
    "no second look before sleeping": (
        "return ring->seen >= wake_at || azc_ring_has_left(ring);",
        "return 0;",
        *SLEEPS,
    ),
    "rings too late": ("if (index < wake_at ||", "if (index <= wake_at ||", *SLEEPS),
    "one record too many": (
        "        if (end - ring->seen > ring->capacity) return -EAGAIN;",
        "        if (end - ring->seen > 2 * ring->capacity) return -EAGAIN;",
        "ring_order",
        "other bytes|overwritten|not the next|found wrong",
    ),
    "published before it is written": (
        "    AZC_RING_STORE(&header->stamp, ring->index + 1);",
        "    AZC_RING_STORE(&ring->mine->index, ring->index + azc_ring_stride(size));\n"
        "    AZC_RING_STORE(&header->stamp, ring->index + 1);",
        "ring_order",
        "found wrong|not the next",
    ),
    "the end is looked at too late": (
        "int has_left = azc_ring_has_left(ring), r = azc_ring__look(ring);",
        "int r = azc_ring__look(ring), has_left = azc_ring_has_left(ring);",
        "ring_order",
        "the end came too early",
    ),
    "index not checked": (
        "if (at < ring->seen || at > most ||",
        "if (at < ring->seen ||",
        *HOSTILE,
    ),
    "index may go back": (
        "if (at < ring->seen || at > most",
        "if (at > most",
        *HOSTILE,
    ),
    "length not checked": (
        "if (azc_ring_stride(size) > ring->seen - ring->next)",
        "if (0)",
        *HOSTILE,
    ),
    "length fetched twice": (
        "record->size = size;",
        "record->size = AZC_RING_LOAD(&header->size);",
        *HOSTILE,
    ),
    "released before it is read": (
        "    ring->index = index;\n    AZC_RING_STORE(&ring->mine->index, index);",
        "    ring->index = index;\n"
        "    __atomic_store_n(&ring->mine->index, index, __ATOMIC_RELAXED);",
        "ring_race",
        "data race",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutant_is_caught(tmp_path: Path, mutant: str) -> None:
    """Build the same program with a fault in the header."""
    before, after, program, words = MUTANTS[mutant]
    text = (CSRC / "azc_ring.h").read_text()
    assert text.count(before) == 1
    (tmp_path / "azc_ring.h").write_text(text.replace(before, after))
    arguments = {
        "ring_order": ("3", "1"),
        "ring_hostile": (CALLS, "1"),
        "ring_race": ("100000",),
    }
    result = start(tmp_path, program, *arguments[program], header=tmp_path)
    assert result.returncode != 0
    assert re.search(words, result.stderr), result.stderr


# ---- a hostile peer, and the sanitizers ---------------------------------------------


def start(
    folder: Path, program: str, *arguments: str, header: Path = CSRC
) -> subprocess.CompletedProcess[str]:
    """Build and run a program, with its sanitizer."""
    flags = {"ring_hostile": ADDRESS, "ring_race": THREAD}.get(program, ())
    if flags and not works(folder, *flags):
        pytest.skip(f"{flags[0]} does not work here")
    built = compiled(folder / program, program, *flags, header=header)
    prefix = UNSHUFFLED if flags == THREAD else ()
    return run(*prefix, built, *arguments)


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_anything_in_shared_memory(tmp_path: Path, seed: str) -> None:
    result = start(tmp_path, "ring_hostile", CALLS, seed)
    assert result.returncode == 0, result.stderr[-4000:]
    assert result.stdout.startswith(f"{CALLS} calls")


def test_race_of_two_threads(tmp_path: Path) -> None:
    result = start(tmp_path, "ring_race", "100000")
    assert result.returncode == 0, result.stderr[-4000:]
