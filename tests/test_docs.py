"""README and docs/pages: their programs run, and their links work.

A fence of ``python`` is a program, in which ``await`` may stand anywhere.  A comment
right before it may be one of these:

``<!-- before: ... -->``     code before it that the reader does not need to see
``<!-- after: ... -->``      such code, right after the fence
``<!-- until Ctrl-C -->``    it prints something, and runs until Ctrl-C
``<!-- not run: why -->``    at most `NOT_RUN` of them

Other comments name the tests of what a page says.
"""

import importlib.util
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pytest
from scripts import environment, output

from aiozerocopy._core import extras
from aiozerocopy._core.binding import PORTABLE

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
FOLDER = ROOT / "docs" / "pages"
PAGES = [README, *sorted(FOLDER.rglob("*.md"))]
NOT_RUN = 5
# Packages that some programs need.
EXTRAS = (
    *("aiohttp", "distributed", "fastapi", "moderngl", "numpy", "trustme", "wsproto"),
)
PATIENCE = 15.0  # seconds for one program
A_WHILE = 0.5  # seconds from its first line to Ctrl-C

FENCE = re.compile(
    r"(?:<!-- (?P<note>(?:(?!-->).)*?)\s*-->\n)?"
    r"^```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^```\n"
    r"(?:<!-- after:(?P<after>(?:(?!-->).)*)-->)?",
    re.DOTALL | re.MULTILINE,
)

RUNNER = """
import ast, asyncio, sys

path, missing = sys.argv[1], sys.argv[2:]
sys.modules.update(dict.fromkeys(missing))
with open(path) as file:
    source = file.read()
code = compile(source, path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
names = {"__name__": "__main__"}
coroutine = eval(code, names)
if coroutine is not None:
    async def main():
        await coroutine
    asyncio.run(main())
"""


@dataclass(frozen=True)
class Program:
    """A program on a page."""

    page: Path
    line: int
    text: str
    note: str = ""
    after: str = ""

    @property
    def source(self) -> str:
        """All code that is run, from the first line on."""
        kind, _, before = self.note.partition(":")
        parts = [before if kind == "before" else "", self.text, self.after]
        return "\n".join(textwrap.dedent(part.strip("\n")) for part in parts)

    def __str__(self) -> str:
        return f"{self.page.stem}:{self.line}"


def programs(page: Path) -> Iterator[Program]:
    text = page.read_text()
    for match in FENCE.finditer(text):
        if match["kind"] == "python":
            line = text.count("\n", 0, match.start("text"))
            note, after = match["note"] or "", match["after"] or ""
            yield Program(page, line, match["text"], note, after)


PROGRAMS = [program for page in PAGES for program in programs(page)]
TO_RUN = [each for each in PROGRAMS if not each.note.startswith("not run:")]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize("program", TO_RUN, ids=str)
def test_program(program: Program, tmp_path: Path) -> None:
    if lacking := [name for name in EXTRAS if not importlib.util.find_spec(name)]:
        pytest.skip(f"needs {lacking}")
    if PORTABLE and program.page.stem == "rings":
        pytest.skip("the portable build has no rings")
    path = tmp_path / f"{program.page.stem}.py"
    path.write_text(program.source)
    missing = not_installed_by_readme() if program.page == README else []
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", RUNNER, str(path), *missing],
        cwd=tmp_path,
        env=environment(
            DASK_TEMPORARY_DIRECTORY=str(tmp_path),
            # At a cluster's end, Dask may report a connection that it has closed.
            DASK_LOGGING__DISTRIBUTED="warning",
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            if program.note == "until Ctrl-C":
                interrupt(process)
            else:
                _, complained = process.communicate(timeout=PATIENCE)
                assert (complained, process.returncode) == ("", 0)
        finally:
            process.kill()


def not_installed_by_readme() -> list[str]:
    """Return packages of extras that README's first command does not install."""
    asked = re.search(r"^pip install '\.\[(.*)\]'$", README.read_text(), re.MULTILINE)
    assert asked is not None
    installed = {
        line for extra in asked[1].split(",") for line in extras.requirements(extra)
    }
    return [
        re.split("[<>=]", line)[0].replace("-", "_").replace("pillow", "PIL")
        for line in extras.requirements("all")
        if line not in installed
    ]


def interrupt(process: subprocess.Popen[str]) -> None:
    """Check that the program prints something and goes on until Ctrl-C ends it."""
    assert process.stdout is not None
    said = process.stdout.readline()
    time.sleep(A_WHILE)
    assert (said != "", process.poll()) == (True, None)
    process.send_signal(signal.SIGINT)
    _, complained = process.communicate(timeout=PATIENCE)
    # (before 3.11, anyio.run raises a CancelledError instead)
    assert complained.rstrip().endswith(("KeyboardInterrupt", "CancelledError"))


def test_nearly_all_programs_are_run() -> None:
    left_out = [each for each in PROGRAMS if each not in TO_RUN]
    assert len(left_out) <= NOT_RUN
    assert all(each.note.partition(":")[2].strip() for each in left_out)
    known = ("", "before", "until Ctrl-C", "not run")
    notes = (each.note.partition(":")[0] for each in PROGRAMS)
    assert [note for note in notes if note not in known] == []


def named_tests(text: str) -> Iterator[tuple[str, str]]:
    """Yield file and name of the tests that a page names, in its text or a comment."""
    yield from re.findall(r"`(tests/[\w/]+\.py)`(?:, `(\w+)`)?", text)
    for comment in re.findall(r"<!-- (tests/.*?) -->", text, re.DOTALL):
        for of_a_file in " ".join(comment.split()).split("; "):
            file, _, names = of_a_file.partition(": ")
            yield from ((file, name) for name in names.split(", "))


@pytest.mark.parametrize("page", ["contract", "limits", "threat-model"])
def test_named_tests_exist(page: str) -> None:
    named = [*named_tests((FOLDER / f"{page}.md").read_text())]
    assert len(named) > 20
    wrong = [
        (file, name)
        for file, name in named
        if not (ROOT / file).exists() or name not in (ROOT / file).read_text()
    ]
    assert wrong == []


# ---- commands ----------------------------------------------------------------------

SHELL = re.compile(r"^```console\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)


def commands(program: str) -> set[tuple[str, str]]:
    """Return the first word and all options of each use of a program."""
    return {
        (words[1], word.partition("=")[0])
        for page in PAGES
        for block in SHELL.finditer(page.read_text())
        for line in block["text"].replace("\\\n", " ").splitlines()
        if (words := re.sub('"[^"]*"', "", line).partition("#")[0].split())
        and words[0] == program
        for word in words[1:]
        if word is words[1] or word.startswith("--")
    }


def test_commands_know_their_options() -> None:
    used = commands("aiozerocopy")
    assert len(used) > 10
    for command in {command for command, _ in used}:
        told = subprocess.check_output(
            [sys.executable, "-m", "aiozerocopy", command, "--help"],
            cwd=ROOT / "tests",
            text=True,
        )
        options = [word for name, word in used if name == command and word[0] == "-"]
        assert [option for option in options if option not in told] == []


def test_make_knows_its_targets() -> None:
    told = (ROOT / "Makefile").read_text()
    targets = {target for target, _ in commands("make")}
    assert targets
    assert [name for name in targets if f"\n{name}:" not in told] == []


# ---- links -------------------------------------------------------------------------

LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (?P<text>.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the names of a page's headings, as links use them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = (match["text"].lower() for match in HEADING.finditer(text))
    return {
        re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading)).strip("-")
        for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for match in LINK.finditer(
        re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))
    ):
        target, _, anchor = unquote(match["target"]).partition("#")
        if "://" in target:
            continue
        file = page.parent / target if target else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            wrong.append(match["target"])
    assert wrong == []


def test_menu_has_every_page_and_the_readme_is_short() -> None:
    menu = (ROOT / "docs" / "mkdocs.yml").read_text()
    assert [page.name for page in PAGES[1:] if f" {page.name}\n" not in menu] == []
    assert len(README.read_text().splitlines()) <= 120


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("needs mkdocs")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    output([*build, "-f", ROOT / "docs" / "mkdocs.yml", "-d", tmp_path / "site"])
    assert (tmp_path / "site" / "index.html").exists()
