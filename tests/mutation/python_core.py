"""Mutation tests of the Python core: does a test notice each small fault in it?

python tests/mutation/python_core.py [--sample N] [--files borrows.py,pins.py]

Prints the mutants' verdicts, file by file, and each survivor (see `trying`).  It needs
Python 3.12 or newer, Linux, and the package as `make test` installs it.

The tests run once without a fault, to note which lines of the core each test reaches
(`reached`).  A mutant, in a copy of the package, is then judged by the tests that reach
its line; tests that reach few other lines go first.
"""

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from python_mutants import mutants_of
from trying import SURVIVORS, TESTS, Core, Mutant, ends_well, judged, parser

# (The survivors of other files were never listed completely.  fork_and_exit.py will
# never be here: only programs that tests start reach it.)
FILES = """
ahead binding borrows change channel errors extras failure fds groups leases
lifetime memory pins pipe_size receiving relaying sending to_all waiter
"""
# All tests of the core except the slowest.
JUDGES = """
contract core/test_ahead.py core/test_anyio.py core/test_batches.py
core/test_buffers.py core/test_channel.py core/test_errors.py
core/test_extras.py core/test_fds.py core/test_groups.py core/test_interruptions.py
core/test_lasting.py
core/test_lending.py core/test_lifetime.py core/test_memory.py core/test_opening.py
core/test_pins.py core/test_pool.py core/test_process.py
core/test_receiving.py core/test_relay.py core/test_relaying.py core/test_sending.py
core/test_sending_by_hand.py core/test_to_all.py
core/test_trio_streams.py core/test_waiter.py sync/test_streams.py
"""
CORE = TESTS.parent / "aiozerocopy" / "_core"
PYTHON = Core(
    CORE, [f"{it}.py" for it in FILES.split()], SURVIVORS / "python", mutants_of
)
MOST_TESTS = 600  # that reach a line
CPU_SECONDS = 240  # for each mutant
WITHOUT = 1200  # seconds for all tests without a fault


class Verdict(Enum):
    KILLED = "killed"
    UNREACHED = "no test reaches it"
    SURVIVES = "survives"


class Judge:
    """A copy of the package, and the tests that reach each of its lines."""

    def __init__(self, folder: Path, tests: Sequence[str]) -> None:
        package = importlib.util.find_spec("aiozerocopy")
        assert package is not None
        assert package.submodule_search_locations
        self._folder, self._copy = folder, folder / "aiozerocopy"
        shutil.copytree(package.submodule_search_locations[0], self._copy)
        told = folder / "reached"
        self._passes(["-p", "reached", *tests], WITHOUT, AZC_REACHED=str(told))
        facts = [json.loads(line) for line in told.read_text().splitlines()]
        files = {test.partition("::")[0] for test, _, _ in facts}
        silent = files - {test.partition("::")[0] for test, _, lines in facts if lines}
        assert not silent, f"no line was noted in {sorted(silent)}"
        self._reached: dict[str, dict[int, list[str]]] = {}
        for test, passed, lines in sorted(facts, key=lambda fact: len(fact[2])):
            if not passed:
                print(f"fails without a mutant: {test}", flush=True)
            for name, line in lines if passed else ():
                self._reached.setdefault(name, {}).setdefault(line, []).append(test)
        passing = [test for test, passed, _ in facts if passed]
        assert self._passes(passing[:1], WITHOUT), "a test fails where it passed"

    def _passes(self, words: Sequence[str], seconds: float, **settings: str) -> bool:
        paths = [str(self._folder), str(Path(__file__).parent)]
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        return ends_well(
            # (test names are relative to that root, and tests are run by name)
            [*pytest, f"--rootdir={TESTS}", *words],
            cpu_seconds=int(seconds),
            patience=2 * seconds,
            cwd=TESTS,
            env=os.environ
            | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
            | settings,
        )

    def judge(self, mutant: Mutant) -> Verdict:
        """(If a statement has several lines, only its first may count as reached.)"""
        lines = self._reached.get(mutant.file, {})
        line = max((line for line in lines if line <= mutant.line), default=0)
        if not (tests := lines.get(line, [])[:MOST_TESTS]):
            return Verdict.UNREACHED
        target = self._copy / "_core" / mutant.file
        source = target.read_text()
        target.write_text(mutant.applied(source))
        passes = self._passes(["-x", *tests], CPU_SECONDS)
        target.write_text(source)
        return Verdict.SURVIVES if passes else Verdict.KILLED


def main() -> int:
    words = parser(__doc__, PYTHON)
    words.add_argument("--tests", default=",".join(JUDGES.split()))
    options = words.parse_args()
    lives = [Verdict.UNREACHED, Verdict.SURVIVES]
    tests = options.tests.split(",")
    os.chdir(TESTS)  # (here no aiozerocopy/ hides the installed package)
    return judged(PYTHON, options, lives, lambda folder: Judge(folder, tests).judge)


if __name__ == "__main__":
    sys.exit(main())
