"""What both programs do: they choose mutants, try them, and say which survive.

The exit status is 1 if a mutant survives that the list does not know, or if the list
has one that does not exist any more.
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
# What nothing notices, a file for each source: harmless with a reason, or open: it
# survived when the list was made, and wants a better test or a reason.
SURVIVORS = Path(__file__).parent / "survivors"
MEMORY = 8 << 30


@dataclass(frozen=True)
class Mutant:
    """A file in which `old`, at this place, is `new`."""

    file: str
    line: int
    code: str  # the line as it stands in the file
    old: str
    new: str
    at: int

    def __str__(self) -> str:
        """How survivors/ names it: by its line's text, not by its number."""
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.file} | {self.code} | {old} -> {new}"

    def applied(self, source: str) -> str:
        return source[: self.at] + self.new + source[self.at + len(self.old) :]


def mutants(
    file: str, source: str, faults: Iterable[tuple[int, str, str]]
) -> list[Mutant]:
    """All of them, in the order of the file; a fault is a place, its text, another."""
    lines, found = source.split("\n"), []
    for at, old, new in sorted(set(faults)):
        line = source.count("\n", 0, at)
        found.append(Mutant(file, line + 1, lines[line].strip(), old, new, at))
    return found


@dataclass(frozen=True)
class Core:
    """What is tried: a folder's files of which all survivors are listed."""

    folder: Path
    files: Sequence[str]
    survivors: Path
    mutants_of: Callable[[str, str], list[Mutant]]

    def mutants(self, files: Sequence[str]) -> list[Mutant]:
        texts = {name: (self.folder / name).read_text() for name in files}
        return [it for name in files for it in self.mutants_of(name, texts[name])]

    def listed(self, kind: str) -> set[str]:
        """Survivors that are known: "harmless", with a reason, or "open", without."""
        files = map(Path.read_text, self.survivors.glob("*.toml"))
        groups = [group for it in files for group in tomllib.loads(it).get(kind, [])]
        return {line for it in groups for line in it["mutants"].splitlines() if line}


def ends_well(
    command: Sequence[str | Path],
    cpu_seconds: int = 10,  # of one that never ends,
    patience: float = 60.0,  # or only waits
    **options: Any,
) -> bool:
    """Whether a program ends without an error, and in time."""

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
    parser.add_argument("--sample", type=int, help="so many, always the same")
    parser.add_argument("--files", default=",".join(core.files))
    return parser


def _lot(mutant: Mutant) -> bytes:
    """In a sample are those with the lowest: it stays when other code changes."""
    return hashlib.sha256(str(mutant).encode()).digest()


def judged(
    core: Core,
    options: argparse.Namespace,
    lives: Collection[Enum],
    judge_in: Callable[[Path], Callable[[Mutant], Enum]],
) -> int:
    """Have the chosen ones tried, and report; return the exit status."""
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
    """A row for each file, for whoever wants a score."""
    columns = [*type(next(iter(lives)))]
    print("file", "mutants", *(it.value for it in columns), "argued", sep=" | ")
    for file in dict.fromkeys(mutant.file for mutant in verdicts):
        ours = {it: verdict for it, verdict in verdicts.items() if it.file == file}
        counts = collections.Counter(ours.values())
        argued = [it for it, v in ours.items() if v in lives and str(it) in harmless]
        numbers = [len(ours), *(counts[it] for it in columns), len(argued)]
        print(file, *numbers, sep=" | ")
