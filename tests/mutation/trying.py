"""Shared by both programs: choose mutants, try them, and report survivors.

The exit status is 1 if a mutant survives that is not listed, or if the list has a
mutant that no longer exists.
"""

import argparse
import collections
import hashlib
import resource
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import tomllib

TESTS = Path(__file__).parents[1]
# Survivors, in a file for each source: harmless with a reason, or open.  An open one
# survived when the list was made, and needs a better test or a reason.
SURVIVORS = Path(__file__).parent / "survivors"
MEMORY = 8 << 30


@dataclass(frozen=True)
class Mutant:
    """A change of a file from `old` to `new` at one place."""

    file: str
    line: int
    code: str  # the unchanged line
    old: str
    new: str
    at: int

    def __str__(self) -> str:
        """Name it as survivors/ does: by the line's text instead of its number."""
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.file} | {self.code} | {old} -> {new}"

    def applied(self, source: str) -> str:
        return source[: self.at] + self.new + source[self.at + len(self.old) :]


def mutants(
    file: str, source: str, faults: Iterable[tuple[int, str, str]]
) -> list[Mutant]:
    """Make mutants in the order of the file; a fault is (place, text, replacement)."""
    lines, found = source.split("\n"), []
    for at, old, new in sorted(set(faults)):
        line = source.count("\n", 0, at)
        found.append(Mutant(file, line + 1, lines[line].strip(), old, new, at))
    return found


@dataclass(frozen=True)
class Core:
    """A folder's files whose survivors are all listed."""

    folder: Path
    files: Sequence[str]
    survivors: Path
    mutants_of: Callable[[str, str], list[Mutant]]

    def mutants(self, files: Sequence[str]) -> list[Mutant]:
        texts = {name: (self.folder / name).read_text() for name in files}
        return [it for name in files for it in self.mutants_of(name, texts[name])]

    def listed(self, kind: str) -> set[str]:
        """Return listed survivors: "harmless" ones with a reason, or "open" ones."""
        files = map(Path.read_text, self.survivors.glob("*.toml"))
        groups = [group for it in files for group in tomllib.loads(it).get(kind, [])]
        return {line for it in groups for line in it["mutants"].splitlines() if line}


def ends_well(
    command: Sequence[str | Path],
    cpu_seconds: int = 10,  # stops an endless loop
    patience: float = 60.0,  # stops a program that only waits
    **options: Any,
) -> bool:
    """Whether a program ends in time, without an error."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    try:
        done = subprocess.run(
            command,
            timeout=patience,
            preexec_fn=limit,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            **options,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def parser(doc: str | None, core: Core) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--sample", type=int, help="how many: always the same ones")
    parser.add_argument("--files", default=",".join(core.files))
    return parser


def _lot(mutant: Mutant) -> bytes:
    """A sample has the mutants with the lowest keys: it stays if other code changes."""
    return hashlib.sha256(str(mutant).encode()).digest()


def judged(
    core: Core,
    options: argparse.Namespace,
    lives: Collection[Enum],
    judge_in: Callable[[Path], Callable[[Mutant], Enum]],
) -> int:
    """Try the chosen mutants, and report; return the exit status."""
    harmless = core.listed("harmless")
    known = harmless | core.listed("open")
    chosen = core.mutants(options.files.split(","))
    if options.sample is not None:
        chosen = sorted(chosen, key=_lot)[: options.sample]
    verdicts: dict[Mutant, Enum] = {}
    unknown, judge = 0, None
    with tempfile.TemporaryDirectory() as folder:
        for mutant in chosen:
            judge = judge or judge_in(Path(folder))
            verdicts[mutant] = verdict = judge(mutant)
            if verdict in lives and str(mutant) not in known:
                unknown += 1
                print(f"{verdict.value}: {mutant}", flush=True)
    report(verdicts, lives, harmless)
    stale = known.difference(map(str, core.mutants(core.files)))
    for line in sorted(stale):
        print(f"no such mutant any more: {line}")
    return 1 if unknown or stale else 0


def report(
    verdicts: Mapping[Mutant, Enum], lives: Collection[Enum], harmless: set[str]
) -> None:
    """Print a row for each file, from which a score can be computed."""
    columns = [*type(next(iter(lives)))]
    print("file", "mutants", *(it.value for it in columns), "argued", sep=" | ")
    for file in dict.fromkeys(mutant.file for mutant in verdicts):
        ours = {it: verdict for it, verdict in verdicts.items() if it.file == file}
        counts = collections.Counter(ours.values())
        argued = [it for it, v in ours.items() if v in lives and str(it) in harmless]
        numbers = [len(ours), *(counts[it] for it in columns), len(argued)]
        print(file, *numbers, sep=" | ")
