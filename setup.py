"""Builds the C part; pyproject.toml has the rest."""

from __future__ import annotations

import re
import shutil
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist
from setuptools.errors import CompileError

ADVICE = """\
aiozerocopy has a part in C, and {missing}.

    Debian, Ubuntu   sudo apt install gcc libc6-dev python3-dev
    Fedora           sudo dnf install gcc python3-devel
    macOS            xcode-select --install

Then run the same command again."""

# In the language of MANIFEST.in.  Pictures and the proof's figures stay out: they are
# larger than all the code.
WHOLE_REPOSITORY = """\
graft .ci
graft .make
graft csrc
graft docs
graft examples
graft tests
include .clang-format CHANGELOG.md CONTRIBUTING.md Makefile SECURITY.md
global-exclude *.py[cod] *.so *.o
exclude docs/pages/*.png docs/pages/proof.json
prune **/__pycache__
prune **/.hypothesis
prune **/.pytest_cache
prune **/target"""


def what_is_missing(compiler: str) -> str | None:
    """Say what this machine lacks; return None if the C code itself is to blame."""
    if shutil.which(compiler) is None:
        return f"there is no C compiler here ({compiler} was not found)"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "the headers of this Python are not installed (no Python.h)"
    return None


class BuildExt(build_ext):
    """A build that says in a few lines what to install if something is missing.

    cffi derives its own command from this one, see cffi/setuptools_ext.py.
    """

    def build_extensions(self) -> None:
        """Build; if a compiler or header is missing, raise an error with advice."""
        try:
            super().build_extensions()
        except CompileError as error:
            missing = what_is_missing(self.compiler.compiler_so[0])
            if missing is None:
                raise
            raise CompileError(ADVICE.format(missing=missing)) from error


class SourceArchive(sdist):
    """The repository without pictures, the proof's figures and files of its host.

    So `make demo`, `make test` and `make docs` work in it.
    """

    def make_distribution(self) -> None:
        """Add the files to those that the package itself needs."""
        for line in WHOLE_REPOSITORY.splitlines():
            self.filelist.process_template_line(line)
        super().make_distribution()


def links_for_an_index(text: str, project: str) -> str:
    """Return a text whose links also work apart from the repository.

    They lead to this version in the repository, if the project says where that is.
    Otherwise the words remain, without links and pictures.
    """
    address = re.search(r'^Repository = "(.*)"$', project, re.MULTILINE)
    version = re.search(r'^version = "(.*)"$', project, re.MULTILINE)
    link = re.compile(r"(!?)\[([^]]*)\]\((?!https?:|#)([^)]*)\)")

    def absolute(found: re.Match[str]) -> str:
        picture, words, path = found.groups()
        if not address or not version:
            return "" if picture else words
        kind = "raw" if picture else "blob"
        return f"{picture}[{words}]({address[1]}/{kind}/v{version[1]}/{path})"

    return link.sub(absolute, text)


HERE = Path(__file__).parent

# One wheel serves all Pythons from 3.10 on, except free-threaded ones, which have no
# limited API (cffi turns it off for its own code).
options: dict[str, Any] = {}
if not sysconfig.get_config_var("Py_GIL_DISABLED"):
    options["bdist_wheel"] = {"py_limited_api": "cp310"}

setup(
    long_description=links_for_an_index(
        (HERE / "README.md").read_text(encoding="utf-8"),
        (HERE / "pyproject.toml").read_text(encoding="utf-8"),
    ),
    long_description_content_type="text/markdown",
    cffi_modules=["csrc/build_azc.py:ffibuilder"],
    cmdclass={"build_ext": BuildExt, "sdist": SourceArchive},
    options=options,
)
