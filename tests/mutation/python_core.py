"""Mutation tests of the Python core: does some test notice each small fault in it?

python tests/mutation/python_core.py [--sample N] [--files borrows.py,pins.py]

Prints what became of the mutants, file by file, and each survivor (`trying`).  It needs
Python 3.12 or newer, Linux, and the package installed as `make test` does it.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from python_judging import CORE, LIVES, Judge
from python_mutants import mutants_of
from trying import SURVIVORS, TESTS, Core, judged, parser

if TYPE_CHECKING:
    from collections.abc import Callable
    from enum import Enum

    from trying import Mutant

# (The others' survivors were never listed as a whole.  fork_and_exit.py will never be
# here: only programs that tests start reach it.)
FILES = """
ahead binding borrows census change channel errors extras failure fds groups leases
lifetime memory pins pipe_size receiving relaying sending splitting to_all waiter
"""
# All tests of the core but the slowest.
JUDGES = """
contract commands/test_top.py core/test_ahead.py core/test_anyio.py core/test_batches.py
core/test_buffers.py core/test_census.py core/test_channel.py core/test_errors.py
core/test_extras.py core/test_fds.py core/test_groups.py core/test_lasting.py
core/test_lending.py core/test_lifetime.py core/test_memory.py core/test_opening.py
core/test_peers.py core/test_pins.py core/test_pool.py core/test_process.py
core/test_receiving.py core/test_relay.py core/test_relaying.py core/test_sending.py
core/test_sending_by_hand.py core/test_splitter.py core/test_to_all.py
core/test_trio_streams.py core/test_waiter.py
"""
PYTHON = Core(
    CORE, [f"{it}.py" for it in FILES.split()], SURVIVORS / "python", mutants_of
)


def main() -> int:
    words = parser(__doc__, PYTHON)
    words.add_argument("--tests", default=",".join(JUDGES.split()))
    options = words.parse_args()

    def try_all(mutants: list[Mutant], note: Callable[[Mutant, Enum], None]) -> None:
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(sys.stderr),
        ):
            command = ["-q", "-s", "-p", "no:cacheprovider"]
            command += [f"--basetemp={folder}/tests", *options.tests.split(",")]
            pytest.main(command, plugins=[Judge(Path(folder), mutants, note)])

    os.chdir(TESTS)  # (where no aiozerocopy/ hides the installed one)
    return judged(PYTHON, options, LIVES, try_all)


if __name__ == "__main__":
    sys.exit(main())
