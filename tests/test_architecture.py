"""Imports go one way, and optional packages stay optional: read from the source."""

from __future__ import annotations

import ast
from importlib.util import resolve_name
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from typing_extensions import TypeIs

PACKAGE = Path(__file__).parents[1] / "aiozerocopy"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# A module may import those before it. The rest of the package comes after these
# and is free among itself.
ORDER = (
    "_errors",
    "_core.binding",
    "_core.pins",
    "_core.borrows",
    "_core.memory",
    "_core.lifetime",
    "_core.channel",
    "_batches",
    "_waiter",
    "_bound",
    "_receiving",
    "_sending",
    "streams",
    "opening",
)

# What the core may import at the top of a module, besides the standard library.
REQUIRED = {"aiozerocopy", "anyio"}
OPTIONAL = {
    "OpenGL",
    "Xlib",
    "aiohttp",
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
}
# The modules that are about one of them, and those that compare with others.
MAY_IMPORT = {"gl": {"moderngl"}, "scenes": {"numpy"}, "web": {"h11", "wsproto"}}
ABOUT_OTHERS = {"bench", "compat", "demo"}


def module_name(path: Path) -> str:
    """The dotted name below the package: "streams", "bench.sockets", "" for it."""
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


def sibling(name: str) -> str:
    """The module right below the package that an absolute name is in, or "".

    Of the core it is the module right below that.
    """
    below = name.split(".")[1:3]
    if below[:1] == ["_core"] and is_module(PACKAGE / "_core", *below[1:]):
        return ".".join(below)
    known = below and (below[0] == "_azc" or is_module(PACKAGE, below[0]))
    return below[0] if known else ""


def is_module(folder: Path, *name: str) -> bool:
    path = folder.joinpath(*name)
    return bool(name) and (path.is_dir() or path.with_suffix(".py").exists())


def siblings(path: Path) -> set[str]:
    """What the module at path imports of our own; "" is the package itself."""
    ours = (name for name in read(path) if name.partition(".")[0] == "aiozerocopy")
    return {sibling(name) for name in ours}


@pytest.mark.parametrize("name", ORDER)
def test_core_imports_go_one_way(name: str) -> None:
    path = PACKAGE / f"{name.replace('.', '/')}.py"
    allowed = {"_azc", *ORDER[: ORDER.index(name)]}
    assert siblings(path) - allowed == set()


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


def is_about_others(path: Path) -> bool:
    """Does it measure or adapt other packages?"""
    area, _, module = module_name(path).partition(".")
    return area in ABOUT_OTHERS and bool(module)


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if not is_about_others(path)], ids=module_name
)
def test_optional_packages_are_imported_where_they_are_used(path: Path) -> None:
    area = module_name(path).partition(".")[0]
    tops = {full.partition(".")[0] for full in read(path, inside_functions=False)}
    assert tops & OPTIONAL - MAY_IMPORT.get(area, set()) == set()


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("aiozerocopy", ""),
        ("aiozerocopy.Stream", ""),
        ("aiozerocopy._azc.lib", "_azc"),
        ("aiozerocopy.doctor.main", "doctor"),
        ("aiozerocopy._core.pins.pin", "_core.pins"),
        ("aiozerocopy._core", "_core"),
    ],
)
def test_sibling(name: str, found: str) -> None:
    assert sibling(name) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import numpy.linalg as n", {"numpy.linalg"}),
        ("from anyio import abc, run", {"anyio.abc", "anyio.run"}),
        ("from . import _errors", {"aiozerocopy._errors"}),
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
