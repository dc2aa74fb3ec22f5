"""The map in CONTRIBUTING.md is right: imports and includes go only up the map.

    python test_architecture.py     prints the right map, in the present order

Inside of a room, the list in the docstring of its ``__init__`` is the map: a module
imports only those above it.  Optional packages are imported where they are used.
"""

from __future__ import annotations

import ast
import graphlib
import itertools
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aiozerocopy import _azc
from aiozerocopy._core.binding import PORTABLE

if TYPE_CHECKING:
    from typing_extensions import TypeIs

pytestmark = pytest.mark.skipif(
    not (Path(__file__).parents[1] / "csrc").is_dir(), reason="needs the source"
)

ROOT = Path(__file__).parents[1]
PACKAGE, CSRC = ROOT / "aiozerocopy", ROOT / "csrc"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
SOURCES = sorted(PACKAGE.rglob("*.py"))
PRINTED = "CONTRIBUTING.md must have what python tests/test_architecture.py prints"

OPTIONAL = {
    *("OpenGL", "Xlib", "aiohttp", "dask", "distributed", "fastapi", "glfw", "h11"),
    *("imageio_ffmpeg", "moderngl", "numpy", "rich", "sniffio", "starlette", "trio"),
    *("turbopipe", "uvloop", "websockets", "wsproto"),
}
# Modules that exist for an optional package.
MAY_IMPORT = {
    "commands.demo": OPTIONAL,
    "compat": OPTIONAL,
    "dask": {"dask", "distributed"},
    "gl": {"moderngl"},
    "trio_streams": {"trio"},
    "web": {"h11", "wsproto"},
    "web.on_aiohttp": {"aiohttp"},
}

# ---- the imports of a Python file --------------------------------------------------


def module_name(path: Path) -> str:
    """Return the name in the package: "streams", "web.server"; "" is the package."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


NAMES = {module_name(path): path for path in SOURCES}


def is_type_checking(node: ast.AST) -> TypeIs[ast.If]:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def running(node: ast.AST, inside_functions: bool) -> Iterator[ast.AST]:
    """Yield this node and all nodes below it, except those for mypy only."""
    yield node
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if is_type_checking(node):
        children = node.orelse
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        children = children if inside_functions else ()
    for child in children:
        yield from running(child, inside_functions)


@cache
def imports(
    source: str, path: Path, *, inside_functions: bool = True, types: bool = False
) -> set[str]:
    """Return the absolute names of all imports: modules, and names from modules."""
    package = ".".join(["aiozerocopy", *path.relative_to(PACKAGE).parent.parts])
    tree = ast.parse(source)
    found: set[str] = set()
    for node in ast.walk(tree) if types else running(tree, inside_functions):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            base = resolve_name(module, package).rstrip(".")
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def module_of(name: str) -> str:
    """Return our module that has this absolute name; "" is the package itself."""
    below = name.partition(".")[2]
    while below not in NAMES and below != "_azc":
        below = below.rpartition(".")[0]
    return below


@cache
def ours(path: Path) -> set[str]:
    """Return which of our modules the one at path imports, even only for types."""
    found = imports(path.read_text(), path, types=True)
    return {
        module_of(name) for name in found if name.partition(".")[0] == "aiozerocopy"
    } - {module_name(path)}


# For some sources, the imports that happen at once, outside of functions.
IMPORTS = {
    "from ._core.pins import pin": {"aiozerocopy._core.pins.pin"},
    "try:\n import trio\nexcept ImportError:\n def f():\n  import uvloop": {"trio"},
    "if TYPE_CHECKING:\n import trio\nelse:\n import rich": {"rich"},
}


# ---- the rooms ---------------------------------------------------------------------


def room_of(module: str) -> str:
    return module.partition(".")[0]


def path_of(room: str) -> Path:
    folder = PACKAGE / room
    return folder / "__init__.py" if folder.is_dir() else PACKAGE / f"{room}.py"


def first_sentence(text: str) -> str:
    """Return the first sentence of a file's head, if it ends in the first paragraph."""
    words = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[.;])\s", words)[0].rstrip(".;:,").replace("|", "\\|")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of each row of the map's table with this heading."""
    text = CONTRIBUTING.read_text(encoding="utf-8")
    _, _, table = text.partition(f"| {heading} |")
    lines = table.partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def ticked(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


@cache
def rooms() -> list[str]:
    """Return the rooms in the map's order; "" is the package, with the public names."""
    names = [
        re.findall(r"`([^`/]*)/?`", row[0])[0].removesuffix(".py")
        for row in rows("room")
    ]
    return [name.removeprefix("aiozerocopy") for name in names]


def row_of(room: str) -> str:
    """Return the right row for the room."""
    inside = [path for name, path in NAMES.items() if room_of(name) == room]
    used = {room_of(name) for path in inside for name in ours(path)} - {room, "_azc"}
    order = rooms()
    below = sorted(used, key=lambda name: order.index(name) if name in order else -1)
    name = f"{room}{'/' if path_of(room).name == '__init__.py' else '.py'}"
    name = name if room else "aiozerocopy"
    seen = ticked(each or "aiozerocopy" for each in below)
    return f"| `{name}` | {first_sentence(head_of(room))} | {seen} |"


def table_of_rooms() -> str:
    order = rooms()
    missing = sorted({room_of(name) for name in NAMES} - set(order))
    lines = [row_of(room) for room in [*order, *missing] if room_of(room) in NAMES]
    return "\n".join(
        ["| room | what it is for | imports |", "| --- | --- | --- |", *lines]
    )


def head_of(room: str) -> str:
    return ast.get_docstring(ast.parse(path_of(room).read_text())) or ""


def listed(room: str) -> list[str]:
    """Return the modules in a room's docstring, if it says that they are in order."""
    head, _, order = head_of(room).partition(
        "imports those before it, never those after:"
    )
    if order:
        return re.findall(r"\w+", order.partition(".")[0])
    is_in_order = "imports those above it" in head
    return re.findall(r"^    (\w+)  +\S", head, re.MULTILINE) if is_in_order else []


def circle_in(graph: dict[str, Any]) -> list[str]:
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [f"a circle: {' - '.join(error.args[1])}"]
    return []


def wrong_in(room: str, rooms_below: list[str]) -> Iterator[str]:
    """Find imports of a room that go down the map, or down the room's own list."""
    inside = {name for name in NAMES if room_of(name) == room and name != room}
    graph = {name: ours(NAMES[name]) & inside for name in inside}
    order = [f"{room}.{name}" for name in listed(room)]
    told = set(re.findall(r"\w+", path_of(room).read_text()))
    for name in {room, *inside} & set(NAMES):
        for other in ours(NAMES[name]) - inside - {room, "_azc"}:
            if room_of(other) not in rooms_below:
                yield f"{name} imports {other}"
        if name != room and name.partition(".")[2] not in told:
            yield f"{room} does not name {name}"
        if name in order:
            above = order[: order.index(name)]
            yield from (f"{name} imports {other}" for other in graph[name] - {*above})
    if order:
        yield from (f"{name} is not listed" for name in inside ^ {*order})
    yield from circle_in(graph)


def test_imports_go_one_way() -> None:
    order = rooms()
    found = [wrong_in(room, order[:at]) for at, room in enumerate(order)]
    culprits = sorted(itertools.chain(*found))
    assert not culprits, "\n".join(culprits)
    assert listed("_core"), "_core's docstring must list its modules in order"


def wrong_imports(name: str, path: Path) -> Iterator[str]:
    """Find imports of cffi or C, and of optional packages outside of functions."""
    found = imports(path.read_text(), path)
    parts = {part for full in found for part in full.split(".")[:2]}
    if name != "_core.binding" and parts & {"_azc", "cffi", "_cffi_backend"}:
        yield f"{name} imports cffi or _azc"
    offered = {full.rpartition(".")[2] for full in found if "binding" in full}
    if room_of(name) != "_core" and offered & {"ffi", "lib"}:
        yield f"{name} uses ffi or lib"
    at_once = imports(path.read_text(), path, inside_functions=False)
    tops = {full.partition(".")[0] for full in at_once} & OPTIONAL
    for area, allowed in MAY_IMPORT.items():
        if f"{name}.".startswith(f"{area}."):
            tops -= allowed
    yield from (f"{name} imports {top}" for top in tops)


def test_c_and_optional_packages_are_imported_where_they_are_used() -> None:
    path = PACKAGE / "streams.py"
    for source, wanted in IMPORTS.items():
        assert imports(source, path, inside_functions=False) == wanted
    found = (wrong_imports(*each) for each in NAMES.items())
    culprits = sorted(itertools.chain(*found))
    culprits += [
        f"{name} asks for {asked}, which C lacks"
        for name, path in NAMES.items()
        # (a portable build has no rings)
        if room_of(name) == "_core" and not (PORTABLE and name == "_core.ring_end")
        for asked in re.findall(r"\blib\.(\w+)", path.read_text())
        if not hasattr(_azc.lib, asked)
    ]
    assert not culprits, "\n".join(culprits)


# ---- kept failures -----------------------------------------------------------------

# A kept exception keeps its traceback, and so the frames that it passed, with their
# slots and buffers.  So an error that is raised again is kept as a `Failure`, and a
# variable that has an exception after its handler is deleted at the end.

# Modules that may keep an exception, and why.
MAY_KEEP: dict[str, str] = {"commands.ending": "its program ends"}

EXCEPTION = re.compile(r"\b(\w*(Error|Exception)|Stream(Broken|Closed)|ScreenLost)\b")
FREE = {"__cause__"}  # (of an exception)
NO_EXCEPTION = re.compile(r"\b(Failure|type)\[.*?\]")


def is_exception(annotation: ast.expr | None) -> bool:
    text = "" if annotation is None else ast.unparse(annotation)
    return EXCEPTION.search(NO_EXCEPTION.sub("", text)) is not None


def keeps(node: ast.AST | None, names: set[str]) -> bool:
    """Whether this value is one of these names, or contains one directly."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.BoolOp | ast.IfExp | ast.Tuple | ast.List | ast.Dict):
        return any(keeps(child, names) for child in ast.iter_child_nodes(node))
    return False


def kept(node: ast.AST, names: set[str], deleted: set[str]) -> Iterator[int]:
    """Yield lines that keep an exception of these names, or raise a kept one."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        names = {each.arg for each in every if is_exception(each.annotation)}
        deleted = {
            name.id
            for each in ast.walk(node)
            if isinstance(each, ast.Delete)
            for name in each.targets
            if isinstance(name, ast.Name)
        }
    elif isinstance(node, ast.ExceptHandler) and node.name:
        names = names | {node.name}
    elif isinstance(node, ast.AnnAssign) and not isinstance(node.target, ast.Name):
        if is_exception(node.annotation):
            yield node.lineno
    elif isinstance(node, ast.Assign) and keeps(node.value, names):
        if ast.unparse(node.targets[0]).rpartition(".")[2] not in {*deleted, *FREE}:
            yield node.lineno
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        stores = node.func.attr in ("append", "add", "put", "insert", "set_exception")
        if stores and any(keeps(each, names) for each in node.args):
            yield node.lineno
    elif isinstance(node, ast.Raise) and node.exc is not None:
        what = ast.unparse(node.exc)
        is_free = what in names | deleted or isinstance(node.exc, ast.Call)
        if not is_free and re.search(r"\b_?[a-z]\w*(\[.*\])?$", what):
            yield node.lineno
    for child in ast.iter_child_nodes(node):
        yield from kept(child, names, deleted)


# Sources, and their lines that keep an exception.
KEEPING: dict[str, list[int]] = {
    "try: f()\nexcept OSError as e:\n self.e = e": [3],
    "try: f()\nexcept OSError as e:\n last = a or e": [3],
    "try: f()\nexcept OSError as e:\n all.append((1, e))": [3],
    "try: f()\nexcept OSError as e:\n self.e = Failure(e)\n raise e": [],
    "def f(e: OSError):\n self.e = e": [2],
    "def f(e: Failure[OSError]):\n self.e = e": [],
    "class A:\n def f():\n  self.e: ScreenLost | None = None": [3],
    "def f():\n self.e: Failure[OSError] | ByteStream = e": [],
    "raise self.e": [1],
    "raise all[0]": [1],
    "raise anyio.EndOfStream\nraise g()": [],
    "def f():\n try: raise e\n finally: del e": [],
}


def test_no_exception_is_kept() -> None:
    for source, lines in KEEPING.items():
        assert list(kept(ast.parse(source), set(), set())) == lines, source
    found = {
        f"{name}:{line}"
        for name, path in NAMES.items()
        for line in kept(ast.parse(path.read_text()), set(), set())
    }
    culprits = {place for place in found if place.partition(":")[0] not in MAY_KEEP}
    assert not culprits, (
        f"{sorted(culprits)}: keep a Failure, and raise what its again() returns"
    )
    assert {place.partition(":")[0] for place in found} == set(MAY_KEEP)


# ---- the C helper ------------------------------------------------------------------

# Only these call the system; azc_ring.h is also used without the helper.
SYSTEM = {"sys", "azc_ring"}
# Headers without calls: names, numbers and memory.
PLAIN = {
    *("errno.h", "stdatomic.h", "stdbool.h", "stddef.h", "stdint.h", "string.h"),
    *("pthread.h", "poll.h", "signal.h"),
    *("sys/stat.h", "sys/types.h", "sys/uio.h", "sys/epoll.h"),
}
CALLS = re.compile(
    r"(?<![.\w])(?:errno(?!\.h)|(?:open|close|read|write|writev|readv|send|recv|poll|pipe"
    r"|fcntl|ioctl|fstat|mmap|madvise|munmap|malloc|free|usleep|isatty|setsockopt"
    r"|epoll_\w+|eventfd\w*)\()"
)
C_FILES = sorted([*CSRC.glob("*.c"), *CSRC.glob("*.h")])


def includes(path: Path) -> tuple[set[str], set[str]]:
    """Return the names of our headers and of the system's."""
    text = path.read_text()
    own = set(re.findall(r'^ *# *include "([^"]+)\.h"', text, re.MULTILINE))
    system = set(re.findall(r"^ *# *include <([^>]+)>", text, re.MULTILINE))
    return own, system


def code(path: Path) -> str:
    """Return the file without comments."""
    return re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.DOTALL)


def c_rows() -> list[list[str]]:
    """Return the C files in the map's order: a header, its file, or both in a row."""
    return [re.findall(r"`(\w+\.[ch])`", row[0]) for row in rows("C files")]


def c_row(names: list[str]) -> str:
    head = (CSRC / names[0]).read_text().partition("/*")[2].partition("*/")[0]
    lines = [line.strip(" *") for line in head.splitlines()]
    sentence = first_sentence("\n".join(lines).partition(" - ")[2].strip())
    used = set().union(*(includes(CSRC / name)[0] for name in names))
    order = [Path(name).stem for row in c_rows() for name in row if name.endswith(".h")]
    below = sorted(used - {Path(name).stem for name in names}, key=order.index)
    return f"| {ticked(names)} | {sentence} | {ticked(below)} |"


def table_of_c() -> str:
    known = {name for row in c_rows() for name in row}
    names = {path.name for path in C_FILES}
    there = [[name for name in row if name in names] for row in c_rows()]
    missing = [[name] for name in sorted(names - known)]
    lines = [c_row(row) for row in [*there, *missing] if row]
    head = ["| C files | what they are for | include |", "| --- | --- | --- |"]
    return "\n".join([*head, *lines])


def test_map_is_true() -> None:
    text = CONTRIBUTING.read_text(encoding="utf-8")
    assert table_of_rooms() in text, PRINTED
    assert table_of_c() in text, PRINTED


def symbols(file: Path) -> tuple[set[str], set[str]]:
    """Return what an object file defines, and what it needs from others."""
    command = ["nm", "--extern-only", "--format=posix", str(file)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    kinds = [line.split()[:2] for line in lines.splitlines()]
    needed = {name for name, kind in kinds if kind == "U"}
    return {name for name, _ in kinds} - needed, needed


def offered(name: str) -> set[str]:
    """Return a header's declarations: functions, types, macros and enums' members."""
    words = re.findall(r"\b(azc__?\w+|[A-Z][A-Z_0-9]{3,})\b", code(CSRC / f"{name}.h"))
    return {*words, f"azc_{name}"}


def wrong_in_c(path: Path, above: set[str]) -> Iterator[str]:
    """Find includes of headers below, unused includes, and calls of the system."""
    own, system = includes(path)
    yield from (f"{path.name} includes {other}.h" for other in own - above)
    if path.suffix == ".c":
        for name in own - {path.stem, "azc", "sys"}:
            if not any(re.search(rf"\b{word}\b", code(path)) for word in offered(name)):
                yield f"{path.name} includes {name}.h for nothing"
    if path.stem not in SYSTEM:
        calls = [*(system - PLAIN), *CALLS.findall(code(path))]
        yield from (f"{path.name}: {what}" for what in calls)


def test_c_files_go_one_way_and_only_sys_calls_the_system(tmp_path: Path) -> None:
    """No file calls a file that calls it, directly or through others."""
    culprits: list[str] = []
    above: set[str] = set()
    for row in c_rows():
        above |= {Path(name).stem for name in row if name.endswith(".h")}
        for name in row:
            culprits += wrong_in_c(CSRC / name, above)
    assert not culprits, "\n".join(culprits)
    if not (shutil.which("cc") and shutil.which("nm")):
        return
    files = [str(path) for path in CSRC.glob("*.c") if path.stem != "poller_poll"]
    compiler = ["cc", "-c", "-O0", "-D_GNU_SOURCE=1", f"-I{CSRC}"]
    subprocess.run([*compiler, *files], cwd=tmp_path, check=True)
    tables = {file.stem: symbols(file) for file in tmp_path.glob("*.o")}
    assert len(tables) == len(files)
    calls = {
        name: [other for other in tables if needed & tables[other][0]]
        for name, (_, needed) in tables.items()
    }
    assert "sys" in calls["channel"]
    assert calls["sys"] == []
    assert circle_in(calls) == []


if __name__ == "__main__":
    print(table_of_rooms(), table_of_c(), sep="\n\n")
