"""Mutation tests of the C core: does something notice each small fault in it?

python tests/mutation/mutation.py [--sample N] [--files queue.c,cancel.c] [--seeds 3000]

Prints what became of the mutants, file by file, and each survivor (`trying`).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from judging import CSRC, Judge, Verdict
from mutants import mutants_of
from trying import SURVIVORS, Core, judged, parser

if TYPE_CHECKING:
    from collections.abc import Callable
    from enum import Enum

    from trying import Mutant

# (The relays' files are not here: the simulation does not run them.  Nor are lanes.c
# and ring.c, whose survivors were never listed as a whole.)
FILES = [
    *("queue.c", "cancel.c", "move.c", "submit.c", "pump.c", "lender.c", "ending.c"),
    *("op.c", "pool.c"),
]
CORE = Core(CSRC, FILES, SURVIVORS, mutants_of)


def main() -> int:
    words = parser(__doc__, CORE)
    words.add_argument("--seeds", type=int, default=3000)
    words.add_argument("--no-threads", action="store_true", help="the simulation only")
    options = words.parse_args()

    def try_all(mutants: list[Mutant], note: Callable[[Mutant, Enum], None]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            judge = Judge(Path(folder), options.seeds, threads=not options.no_threads)
            assert judge.originals_pass(), "the programs fail without a mutant"
            for mutant in mutants:
                note(mutant, judge.judge(mutant))

    return judged(CORE, options, [Verdict.SURVIVES], try_all)


if __name__ == "__main__":
    sys.exit(main())
