"""Mutation tests of the C core: does something notice each small fault in it?

python tests/mutation/mutation.py [--sample N] [--files queue,cancel] [--seeds 3000]

Prints what became of the mutants, file by file, and each survivor.  The exit status is
1 if one survives that survivors/ does not list, or if it lists one that does not exist
any more.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import tomllib
from judging import CSRC, Judge, Verdict
from mutants import mutants_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from enum import Enum

    from mutants import Mutant

# (The relays' files are not here: the simulation does not run them.  Nor are lanes.c
# and ring.c, whose survivors were never listed as a whole.)
FILES = [
    *("queue", "cancel", "move", "submit", "pump", "lender", "ending", "op", "pool"),
]
# What nothing notices, a file for each C file: harmless with a reason, or open: it
# survived when the list was made, and wants a better test or a reason.
SURVIVORS = Path(__file__).parent / "survivors"
SAME = 20261123  # the seed of a sample


def all_mutants(files: list[str]) -> list[Mutant]:
    sources = [CSRC / f"{name}.c" for name in files]
    return [it for path in sources for it in mutants_of(path.name, path.read_text())]


def listed(kind: str, folder: Path = SURVIVORS) -> set[str]:
    """Survivors that are known: "harmless", with a reason, or "open", without one."""
    files = [tomllib.loads(path.read_text()) for path in folder.glob("*.toml")]
    groups = [group for file in files for group in file.get(kind, [])]
    return {line for it in groups for line in it["mutants"].splitlines() if line}


def report(
    verdicts: Mapping[Mutant, Enum], lives: Sequence[Enum], harmless: set[str]
) -> None:
    """A row for each file, for whoever wants a score."""
    columns = [*type(lives[0])]
    print("file", "mutants", *(it.value for it in columns), "argued", sep=" | ")
    for file in dict.fromkeys(mutant.file for mutant in verdicts):
        ours = {it: verdict for it, verdict in verdicts.items() if it.file == file}
        counts = collections.Counter(ours.values())
        surviving = [it for it, verdict in ours.items() if verdict in lives]
        excuses = sum(str(it) in harmless for it in surviving)
        numbers = [len(ours), *(counts[it] for it in columns), excuses]
        print(file, *numbers, sep=" | ")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, help="so many, always the same")
    parser.add_argument("--files", default=",".join(FILES))
    parser.add_argument("--seeds", type=int, default=3000)
    parser.add_argument("--no-threads", action="store_true", help="the simulation only")
    options = parser.parse_args()
    harmless, known = listed("harmless"), listed("harmless") | listed("open")
    stale = known.difference(map(str, all_mutants(FILES)))
    chosen = all_mutants(options.files.split(","))
    if options.sample:
        chosen = random.Random(SAME).sample(chosen, min(options.sample, len(chosen)))
    verdicts: dict[Mutant, Verdict] = {}
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(Path(folder), options.seeds, threads=not options.no_threads)
        assert judge.originals_pass(), "the programs fail without a mutant"
        for mutant in chosen:
            verdicts[mutant] = judge.judge(mutant)
            if verdicts[mutant] is Verdict.SURVIVES and str(mutant) not in known:
                print(f"survives: {mutant}", flush=True)
    report(verdicts, [Verdict.SURVIVES], harmless)
    for line in sorted(stale):
        print(f"no such mutant any more: {line}")
    survivors = [it for it, verdict in verdicts.items() if verdict is Verdict.SURVIVES]
    return 1 if stale or any(str(it) not in known for it in survivors) else 0


if __name__ == "__main__":
    sys.exit(main())
