"""Mutation tests of the Python core: does some test notice each small fault in it?

python tests/mutation/python_core.py [--sample N] [--files borrows,pins]

Prints what became of the mutants, file by file, and each survivor.  The exit status is
1 if one survives that survivors/python does not list, or if that lists one that does
not exist any more.  It needs Python 3.12 or newer, Linux, cosmic-ray, and the package
installed as `make test` does it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mutation import SAME, listed, report
from python_judging import CORE, LIVES, TESTS, Judge, Verdict
from python_mutants import mutants_of

if TYPE_CHECKING:
    from mutants import Mutant

# (The others' survivors were never listed as a whole.  fork_and_exit.py will never be
# here: only programs that tests start reach it.)
FILES = [
    "ahead",
    *("batches", "binding", "borrows", "census", "change", "channel", "errors"),
    *("extras", "fds", "leases", "lifetime", "memory", "pins", "pipe_size"),
    *("receiving", "relaying", "sending", "splitting", "to_all", "waiter"),
]
SURVIVORS = Path(__file__).parent / "survivors" / "python"
# All tests of the core but the slowest.
JUDGES = [
    "contract",
    "commands/test_top.py",
    *(
        f"core/test_{name}.py"
        for name in (
            *("ahead", "anyio", "batches", "borrows", "buffers", "census", "change"),
            *("channel", "errors", "extras", "fds", "lasting", "lending", "lifetime"),
            *("lifetime_by_hand", "memory", "opening", "peers", "pins", "pipe_size"),
            *("pool", "process", "receiving", "records", "relay", "relaying"),
            *("sending", "sending_by_hand", "splitter", "splitting", "tickets"),
            *("to_all", "trio_streams", "waiter"),
        )
    ),
]
PYTEST = ["-q", "-s", "-p", "no:cacheprovider"]


def all_mutants(files: list[str]) -> list[Mutant]:
    sources = [CORE / f"{name}.py" for name in files]
    return [it for path in sources for it in mutants_of(path.name, path.read_text())]


def try_all(
    mutants: list[Mutant],
    known: set[str],
    verdicts: dict[Mutant, Verdict],
    judge: Judge,
) -> None:
    for failure in judge.failures:
        print(f"fails without a mutant: {failure}", file=sys.__stdout__, flush=True)
    for mutant in mutants:
        verdicts[mutant] = judge.judge(mutant)
        if verdicts[mutant] in LIVES and str(mutant) not in known:
            print(
                f"{verdicts[mutant].value}: {mutant}", file=sys.__stdout__, flush=True
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, help="so many, always the same")
    parser.add_argument("--files", default=",".join(FILES))
    parser.add_argument("--tests", default=",".join(JUDGES))
    options = parser.parse_args()
    harmless = listed("harmless", SURVIVORS)
    known = harmless | listed("open", SURVIVORS)
    stale = known.difference(map(str, all_mutants(FILES)))
    chosen = all_mutants(options.files.split(","))
    if options.sample:
        chosen = random.Random(SAME).sample(chosen, min(options.sample, len(chosen)))
    verdicts: dict[Mutant, Verdict] = {}
    os.chdir(TESTS)  # (where no aiozerocopy/ hides the installed one)
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(Path(folder), partial(try_all, chosen, known, verdicts))
        base = f"--basetemp={folder}/tests"
        with contextlib.redirect_stdout(io.StringIO()) as said:
            pytest.main([*PYTEST, base, *options.tests.split(",")], plugins=[judge])
    if len(verdicts) != len(chosen):
        print("the tests do not get to an end without a mutant:", said.getvalue())
        return 1
    report(verdicts, LIVES, harmless)
    for line in sorted(stale):
        print(f"no such mutant any more: {line}")
    survivors = [it for it, verdict in verdicts.items() if verdict in LIVES]
    return 1 if stale or any(str(it) not in known for it in survivors) else 0


if __name__ == "__main__":
    sys.exit(main())
