"""Imports go one way, and optional packages stay optional: read from the source."""

from __future__ import annotations

import ast
import graphlib
import re
from importlib.util import resolve_name
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aiozerocopy import _azc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import TypeIs

pytestmark = pytest.mark.slow  # the source is the same for every Python

PACKAGE = Path(__file__).parents[1] / "aiozerocopy"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# The rooms of the house, from the ground up: one may import those before it.  "" is
# the package itself, with the public names.
ROOMS = (
    *("_core", "frames", "pool", "streams", "opening", "relays", "_net", "_process"),
    *("trio_streams", "publishing", "splitter", "framing", "client", "process"),
    *("transport", "capture", "gl"),
    *("broadcast", "ffmpeg", "web", "shm", "dask", "compat", "testing"),
    *("", "commands", "__main__"),
)

# The same inside the core.
CORE = (
    *("errors", "extras", "pipe_size", "binding", "leases", "pins", "colour"),
    *("borrows", "fds", "memory", "fork_and_exit", "channel", "groups", "to_all"),
    *("waiter", "change", "batches", "census"),
    "lifetime",
    *("receiving", "ahead", "splitting", "relaying", "sending", "ring_end"),
)

# What the core may import at the top of a module, besides the standard library.
REQUIRED = {"aiozerocopy", "anyio"}
OPTIONAL = {
    "OpenGL",
    "Xlib",
    "aiohttp",
    "dask",
    "distributed",
    "fastapi",
    "glfw",
    "h11",
    "imageio_ffmpeg",
    "moderngl",
    "numpy",
    "rich",
    "sniffio",
    "starlette",
    "trio",
    "turbopipe",
    "uvloop",
    "websockets",
    "zmq",
}
# The modules that are about one of them, and those that compare with others.
MAY_IMPORT = {
    "gl": {"moderngl"},
    "commands.scenes": {"numpy"},
    "trio_streams": {"trio"},
    "dask": {"dask", "distributed"},
    "web": {"h11", "wsproto"},
    "web.on_aiohttp": {"aiohttp"},
}
ABOUT_OTHERS = {"compat", "commands.demo"}


def module_name(path: Path) -> str:
    """The dotted name below the package: "streams", "commands.demo", "" for it."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def is_type_checking(node: ast.AST) -> TypeIs[ast.If]:
    return isinstance(node, ast.If) and ast.unparse(node.test) in (
        "TYPE_CHECKING",
        "typing.TYPE_CHECKING",
    )


def running(node: ast.AST, inside_functions: bool) -> Iterator[ast.AST]:
    """This node and all below it; what is there for mypy alone is left out."""
    yield node
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if is_type_checking(node):
        children = node.orelse
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        children = children if inside_functions else ()
    for child in children:
        yield from running(child, inside_functions)


def imports(source: str, path: Path, *, inside_functions: bool) -> set[str]:
    """Absolute names of all that is imported: modules, and names from modules."""
    package = ".".join(["aiozerocopy", *path.relative_to(PACKAGE).parent.parts])
    found: set[str] = set()
    for node in running(ast.parse(source), inside_functions):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            base = resolve_name(module, package).rstrip(".")
            found.update(f"{base}.{alias.name}" for alias in node.names)
    return found


def read(path: Path, *, inside_functions: bool = True) -> set[str]:
    return imports(path.read_text(), path, inside_functions=inside_functions)


def read_types(path: Path) -> set[str]:
    """What is imported for mypy alone."""
    blocks = (
        ast.unparse(ast.Module(node.body, []))
        for node in ast.walk(ast.parse(path.read_text()))
        if is_type_checking(node)
    )
    return set().union(
        *(imports(block, path, inside_functions=True) for block in blocks)
    )


NAMES = {module_name(path): path for path in SOURCES}


def room_of(module: str) -> str:
    return module.partition(".")[0]


def module_of(name: str) -> str:
    """The module of ours that an absolute name is in; "" is the package itself."""
    below = name.partition(".")[2]
    while below not in NAMES and below != "_azc":
        below = below.rpartition(".")[0]
    return below


def ours(path: Path) -> set[str]:
    """The modules of ours that the one at path names, also for types alone."""
    found = read(path) | read_types(path)
    return {
        module_of(name) for name in found if name.partition(".")[0] == "aiozerocopy"
    } - {module_name(path)}


def test_every_room_has_its_place() -> None:
    assert {room_of(name) for name in NAMES} == set(ROOMS)
    assert set(CORE) == {path.stem for path in (PACKAGE / "_core").glob("[a-z]*.py")}


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_imports_go_one_way_between_rooms(path: Path) -> None:
    room = room_of(module_name(path))
    allowed = {"_azc", *ROOMS[: ROOMS.index(room) + 1]}
    assert {room_of(name) for name in ours(path)} - allowed == set()


@pytest.mark.parametrize("name", CORE)
def test_imports_go_one_way_in_the_core(name: str) -> None:
    allowed = {"_azc", "_core", *(f"_core.{one}" for one in CORE[: CORE.index(name)])}
    assert ours(NAMES[f"_core.{name}"]) - allowed == set()


@pytest.mark.parametrize("room", [room for room in ROOMS if (PACKAGE / room).is_dir()])
def test_there_is_no_circle_in_a_room(room: str) -> None:
    inside = {name for name in NAMES if room_of(name) == room and name != room}
    graph = {name: ours(NAMES[name]) & inside for name in inside}
    tuple(graphlib.TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_only_binding_sees_cffi(path: Path) -> None:
    names = {name for full in read(path) for name in full.split(".")[:2]}
    if module_name(path) == "_core.binding":
        assert "_azc" in names
    else:
        assert names.isdisjoint({"_azc", "cffi", "_cffi_backend"})


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_only_the_core_uses_what_cffi_offers(path: Path) -> None:
    if module_name(path).partition(".")[0] != "_core":
        used = {full.rpartition(".")[2] for full in read(path) if "binding" in full}
        assert used.isdisjoint({"ffi", "lib"})


@pytest.mark.parametrize("name", CORE)
def test_c_has_all_that_the_core_asks_for(name: str) -> None:
    source = NAMES[f"_core.{name}"].read_text()
    assert set(re.findall(r"\blib\.(\w+)", source)) <= set(dir(_azc.lib))


def belongs_to(path: Path, area: str) -> bool:
    return f"{module_name(path)}.".startswith(f"{area}.")


def is_about_others(path: Path) -> bool:
    """Does it measure or adapt other packages?"""
    return path.name != "__init__.py" and any(
        belongs_to(path, area) for area in ABOUT_OTHERS
    )


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if not is_about_others(path)], ids=module_name
)
def test_optional_packages_are_imported_where_they_are_used(path: Path) -> None:
    tops = {full.partition(".")[0] for full in read(path, inside_functions=False)}
    for area, allowed in MAY_IMPORT.items():
        if belongs_to(path, area):
            tops -= allowed
    assert tops & OPTIONAL == set()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("aiozerocopy", ""),
        ("aiozerocopy.Stream", ""),
        ("aiozerocopy._azc.lib", "_azc"),
        ("aiozerocopy.commands.doctor.main", "commands.doctor"),
        ("aiozerocopy._core.pins.pin", "_core.pins"),
        ("aiozerocopy._core", "_core"),
    ],
)
def test_module_of(name: str, found: str) -> None:
    assert module_of(name) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import numpy.linalg as n", {"numpy.linalg"}),
        ("from anyio import abc, run", {"anyio.abc", "anyio.run"}),
        ("from . import streams", {"aiozerocopy.streams"}),
        ("from ._core.pins import pin", {"aiozerocopy._core.pins.pin"}),
        ("try:\n import trio\nexcept ImportError:\n pass", {"trio"}),
        ("class A:\n import trio", {"trio"}),
        ("def f():\n import trio", set()),
        ("if TYPE_CHECKING:\n import trio\nelse:\n import rich", {"rich"}),
    ],
)
def test_reader_of_imports(source: str, found: set[str]) -> None:
    path = PACKAGE / "streams.py"
    assert imports(source, path, inside_functions=False) == found


def test_reader_of_imports_looks_into_functions() -> None:
    source = "def f():\n if x:\n  import trio"
    assert imports(source, PACKAGE / "streams.py", inside_functions=True) == {"trio"}
