"""The messages for optional packages that are missing.

The command names the packages themselves, not an extra of ours, so it is right both in
a clone and with a package from an index.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[(?P<extras>[^]]*)\])?")
_EXTRA = re.compile(r"""(?:\s+and\s+|;\s*)?extra\s*==\s*["']([\w-]+)["']""")
_BEFORE = re.compile(r"""\s*;\s*python_version\s*<\s*["']3\.(\d+)["']$""")
_PROJECTS = {"PIL": "pillow", "zmq": "pyzmq"}  # modules with other names


@contextlib.contextmanager
def optional(who: str, extra: str) -> Iterator[None]:
    """Run a block that imports packages of an extra.

    Raises:
        ModuleNotFoundError: one is missing; the text says how to get it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if not is_foreign(error):
            raise
        raise ModuleNotFoundError(
            sentence(who, error, extra), name=error.name
        ) from None


def is_foreign(error: ModuleNotFoundError) -> bool:
    """Return whether a package is missing; if it is our own module, that is a bug."""
    return _package(error) not in ("", "aiozerocopy")


def sentence(who: str, error: ModuleNotFoundError, extra: str) -> str:
    """Say that ``who`` needs a package, and how to get all that the extra lacks."""
    return f"{who} needs {_package(error)}: {command(extra, _package(error))}"


def command(extra: str, package: str = "") -> str:
    """Return the command that installs what an extra lacks, at least that package."""
    project = _PROJECTS.get(package, package)
    every = requirements(extra)
    if project and _normal(project) not in map(_normal, every):
        every.append(project)
    wanted = [
        requirement
        for requirement in every
        if _normal(requirement) == _normal(project) or not _is_installed(requirement)
    ]
    return shlex.join(["pip", "install", *(wanted or every)])


def lacking(extra: str) -> list[str]:
    """Return the requirements of an extra that are not installed."""
    return [each for each in requirements(extra) if not _is_installed(each)]


def requirements(extra: str) -> list[str]:
    """Return the requirements of an extra, and of the extras that it includes."""
    from importlib import metadata  # takes time, and is rarely needed

    try:
        every = metadata.requires("aiozerocopy") or []
    except metadata.PackageNotFoundError:
        return []
    found = []
    for line in every:
        if extra not in _EXTRA.findall(line):
            continue
        requirement = _EXTRA.sub("", line).strip()
        before = _BEFORE.search(requirement)
        if before is not None and sys.version_info >= (3, int(before[1])):
            continue
        requirement = _BEFORE.sub("", requirement)
        match = _REQUIREMENT.match(requirement)
        if match is not None and match["name"] == "aiozerocopy":
            for part in (match["extras"] or "").split(","):
                found += requirements(part.strip())
        else:
            found.append(requirement)
    return list(dict.fromkeys(found))


def _package(error: ModuleNotFoundError) -> str:
    return (error.name or "").partition(".")[0]


def _normal(requirement: str) -> str:
    """Return the name in a requirement, as an index compares names."""
    match = _REQUIREMENT.match(requirement)
    return re.sub(r"[-_.]+", "-", match["name"]).lower() if match else ""


def _is_installed(requirement: str) -> bool:
    from importlib import metadata

    try:
        metadata.version(_normal(requirement))
    except metadata.PackageNotFoundError:
        return False
    return True
