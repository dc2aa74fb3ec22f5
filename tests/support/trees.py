"""A copy of the source and the tests, built with other settings."""

import functools
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts import output

ROOT = Path(__file__).parents[2]
PYTHON = (sys.executable,)  # and what it is started by, in front

_numbers = itertools.count()


def build(folder: Path, python: Sequence[str] = PYTHON, **settings: str) -> Path:
    """Copy into the folder and build there, with these environment variables."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "sim")
    for name in ("aiozerocopy", "csrc", "docs", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    build = [*python, "setup.py", "-q", "build_ext", "--inplace"]
    output(build, cwd=folder, env=os.environ | settings)
    return folder


@functools.cache
def sabotaged(folder: Path) -> Path:
    """The package with the deliberate faults compiled in, built there once."""
    return build(folder / "sabotaged", AZC_SABOTAGE="1")


def environment(tree: Path, **settings: str) -> dict[str, str]:
    """For a program that is to have the tree's package, and these variables.

    What it counts is nobody's figure: the package may be broken there on purpose.
    """
    path = os.pathsep.join([str(tree), *filter(None, sys.path)])
    return os.environ | {"PYTHONPATH": path, "AZC_FIGURES": ""} | settings


def start_tests(
    tree: Path, *arguments: str, python: Sequence[str] = PYTHON, **settings: str
) -> subprocess.Popen[str]:
    """Run pytest in such a tree, with these environment variables.

    It has a folder for its own temporary files, beside the tree: several at once would
    trip over each other in the common one.
    """
    command = [*python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    own = tree.parent / f"run{next(_numbers)}"
    return subprocess.Popen(
        [*command, f"--basetemp={own}", *arguments],
        cwd=tree,
        env=environment(tree, **settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
