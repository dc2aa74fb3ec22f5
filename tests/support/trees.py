"""Copies of the source and the tests, built with other settings."""

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
PYTHON = (sys.executable,)  # after the words of a program that starts it, if any

_numbers = itertools.count()


def build(folder: Path, python: Sequence[str] = PYTHON, **settings: str) -> Path:
    """Copy everything into the folder and build it with these variables."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "sim")
    for name in ("aiozerocopy", "csrc", "docs", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    build = [*python, "setup.py", "-q", "build_ext", "--inplace"]
    output(build, cwd=folder, env=os.environ | settings)
    return folder


@functools.cache
def sabotaged(folder: Path) -> Path:
    """Build the package with the deliberate faults in this folder, once."""
    return build(folder / "sabotaged", AZC_SABOTAGE="1")


def environment(tree: Path, **settings: str) -> dict[str, str]:
    """Return an environment with the tree's package, and with these variables.

    Tests there keep no figures: the package may be broken on purpose.
    """
    path = os.pathsep.join([str(tree), *filter(None, sys.path)])
    others = {name: it for name, it in os.environ.items() if name != "AZC_PART"}
    return others | {"PYTHONPATH": path, "AZC_FIGURES": ""} | settings


def start_tests(
    tree: Path, *arguments: str, python: Sequence[str] = PYTHON, **settings: str
) -> subprocess.Popen[str]:
    """Run pytest in such a tree, with these environment variables.

    Its temporary files have a folder of their own, beside the tree: in a common folder,
    runs at the same time would disturb each other.
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
