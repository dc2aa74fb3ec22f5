"""A slice of the proof: a command with large numbers, and what it shows."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
# How much longer than on an idle machine a slice, and each of its tests, may take.
SLACK = 3.0
LEAST = 3.0  # minutes that every slice is given
FOLDER = "AZC_PROOF"  # names the slice's folder to all that it starts
PATIENCE = "AZC_PATIENCE"  # conftest.py multiplies the time that a test has with it


@dataclass(frozen=True)
class Slice:
    """What `table` lists.

    ``tests`` are arguments for pytest: files first, then options.  A slice that is no
    pytest run has a ``program`` instead: arguments for Python.  ``numbers`` are
    environment variables; ``minutes`` what it takes on two cores that are idle beside
    one other slice.  ``alone``: nothing else may run meanwhile.
    """

    name: str
    shows: str
    minutes: float
    tests: Sequence[str] = ()
    program: Sequence[str] = ()
    numbers: Mapping[str, int | float | str] = field(default_factory=dict)
    alone: bool = False

    @property
    def limit(self) -> float:
        """Seconds after which it hangs."""
        return 60 * max(LEAST, SLACK * self.minutes)

    def command(self, folder: Path) -> list[str]:
        """What is run, in tests/; a report and a cache stay in the folder."""
        if self.program:
            return [sys.executable, *self.program]
        report = (
            "-o",
            f"cache_dir={folder / 'cache'}",
            f"--junitxml={folder / REPORT}",
        )
        quiet = ("-v", "--no-header", "--color=no", "-p", "no:randomly")
        return [sys.executable, "-m", "pytest", *quiet, *report, *self.tests]

    def environment(self, folder: Path) -> dict[str, str]:
        numbers = {name: str(value) for name, value in self.numbers.items()}
        if self.tests:
            numbers = {PATIENCE: f"{SLACK:g}", **numbers}
        # (What a user has set for pytest is not to choose what is shown here.)
        ours = {
            "AZC_FIGURES": str(folder / FIGURES),
            FOLDER: str(folder),
            "PYTEST_ADDOPTS": "",
        }
        return os.environ | ours | numbers

    def as_typed(self) -> str:
        """The same for a shell, in tests/."""
        numbers = [f"{name}={value}" for name, value in self.numbers.items()]
        words = self.program or ("-m", "pytest", *self.tests)
        quoted = [f'"{word}"' if " " in word else word for word in words]
        return " ".join([*numbers, "python", *quoted])


# Files in a slice's folder
FIGURES = "figures.jsonl"
REPORT = "report.xml"
LOG = "log.txt"
