"""What a user gets: the source archive, the wheel, and errors that say what to do."""

import compileall
import os
import pydoc
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest
from scripts import ran

import aiozerocopy as azc
from aiozerocopy._core import extras
from aiozerocopy._core.binding import PORTABLE

ROOT = Path(__file__).parents[1]
# Everything that a build reads: apart from docs/, a build here has nothing else.
INPUTS = ("LICENSE", "README.md", "aiozerocopy", "csrc", "pyproject.toml", "setup.py")
BUILT = {"aiozerocopy.egg-info", "build", "__pycache__"}
FOR_EXTRAS = r"aiozerocopy\.(trio_streams|gl|web)\b"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source for builds."""
    folder = tmp_path_factory.mktemp("tree")
    for name in (*INPUTS, "docs"):
        source = ROOT / name
        if source.is_dir():
            ignore = shutil.ignore_patterns("__pycache__", "*.so")
            shutil.copytree(source, folder / name, ignore=ignore)
        else:
            shutil.copy(source, folder)
    return folder


def files(tree: Path) -> set[str]:
    """Return the files that were copied into the tree, without those of builds."""
    paths = (path.relative_to(tree) for path in tree.rglob("*") if path.is_file())
    return {str(path) for path in paths if not BUILT & {*path.parts}}


def call_backend(
    tree: Path, hook: str, output: Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Build like pip, but with the packages that are installed here."""
    code = f"from setuptools import build_meta as b; b.{hook}({str(output)!r})"
    command = [sys.executable, "-c", code]
    return ran(command, cwd=tree, env=os.environ | environment)


def built(tree: Path, hook: str, output: Path) -> Path:
    done = call_backend(tree, hook, output)
    assert done.returncode == 0, done.stderr
    (path,) = output.iterdir()
    return path


@pytest.fixture(scope="module")
def archive(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tree, "build_sdist", tmp_path_factory.mktemp("archive"))


@pytest.fixture(scope="module")
def wheel(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the source archive only."""
    source = tmp_path_factory.mktemp("source")
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):  # early 3.10 and 3.11 lack it
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(source)
    (folder,) = source.iterdir()
    return built(folder, "build_wheel", tmp_path_factory.mktemp("wheel"))


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_source_archive_is_complete(tree: Path, archive: Path) -> None:
    with tarfile.open(archive) as tar:
        packed = {name.partition("/")[2] for name in tar.getnames()}
    left_out = {name for name in files(tree) if name.endswith((".png", "proof.json"))}
    assert len(left_out) > 5
    assert files(tree) - left_out <= packed
    assert not left_out & packed


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_wheel_holds_the_package_for_all_pythons(
    tree: Path, wheel: Path, tmp_path: Path
) -> None:
    """From 3.10 on; and the wheel is small."""
    tag = wheel.name.split("-", 2)[2]
    with_gil = not sysconfig.get_config_var("Py_GIL_DISABLED")
    assert tag.startswith("cp310-abi3-") == with_gil
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if ".dist-info/" not in name}
        file.extractall(tmp_path)
    (built,) = (tmp_path / "aiozerocopy").glob("_azc*.so")
    others = names - {str(built.relative_to(tmp_path))}
    assert others == {name for name in files(tree) if name.startswith("aiozerocopy/")}
    compileall.compile_dir(tmp_path, quiet=1)
    sizes = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    most = 3.45 * (1 << 20)
    assert sum(sizes) <= most, "too many bytes, Python's .pyc files included"
    assert built.stat().st_size <= 256 << 10, "is it stripped?"


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("address", ["", "https://example.org/azc"])
def test_links_work_on_the_page_of_an_index(
    address: str, tree: Path, tmp_path: Path
) -> None:
    """There, the README is apart from the files to which its links lead."""
    copy = shutil.copytree(tree, tmp_path / "tree")
    with (copy / "pyproject.toml").open("a") as file:
        file.write(f'[project.urls]\nRepository = "{address}"\n' if address else "")
    done = call_backend(copy, "prepare_metadata_for_build_wheel", tmp_path)
    assert done.returncode == 0, done.stderr
    (built,) = tmp_path.glob("*.dist-info/METADATA")
    links = set(re.findall(r"\]\((.*?)\)", built.read_text()))
    assert all(link.startswith("https://") for link in links)
    version = metadata.version("aiozerocopy")
    guide = f"{address}/blob/v{version}/docs/pages/index.md"
    assert (guide in links) == bool(address)


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("compiler", ["/nonexistent", "no-such-compiler -O2"])
def test_build_without_a_compiler_says_what_to_install(
    compiler: str, tree: Path, tmp_path: Path
) -> None:
    done = call_backend(tree, "build_wheel", tmp_path, CC=compiler)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    said = done.stderr.partition("error: aiozerocopy")[2].strip().splitlines()
    assert f"({compiler.split()[0]} was not found)" in said[0]
    assert len(said) < 10
    for system in ("Debian", "Fedora", "macOS"):
        assert any(line.strip().startswith(system) for line in said)


def test_public_names_are_shown_and_no_others() -> None:
    source = (ROOT / "aiozerocopy/__init__.py").read_text()
    exported = set(re.findall(r"import (\w+) as \1$", source, re.MULTILINE))
    assert len(exported) > 40
    if PORTABLE:  # that build has no rings
        exported.remove("shm")
    assert set(dir(azc)) == exported
    assert set(azc.__all__) == exported  # type: ignore[attr-defined]
    rooms = {name for name in exported if isinstance(getattr(azc, name), ModuleType)}
    assert {"ffmpeg", "gl", "web"} <= rooms
    assert azc.__doc__ is not None
    assert rooms <= set(re.findall(r"\w+", azc.__doc__))


def test_help_and_star_do_without_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "_is_installed", lambda requirement: False)
    if not extras.requirements("trio"):
        pytest.skip("the package is not installed, so its extras are unknown")
    for missing in ("trio", "moderngl", "h11"):
        monkeypatch.setitem(sys.modules, missing, None)
    for name in [name for name in sys.modules if re.match(FOR_EXTRAS, name)]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("trio_streams", "gl", "web"):
        monkeypatch.delitem(vars(azc), name, raising=False)
    names: dict[str, object] = {}
    exec("from aiozerocopy import *", names)
    assert "ffmpeg" in names
    assert {"as_trio", "gl", "web"}.isdisjoint(names)
    said = pydoc.plain(pydoc.render_doc(azc))
    assert "class FramePool" in said


def test_version_is_from_one_place() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    said = re.search(r'^version = "(.*)"$', project, re.MULTILINE)
    assert said is not None
    assert metadata.version("aiozerocopy") == said[1]
    printed = subprocess.check_output(
        [sys.executable, "-m", "aiozerocopy", "--version"], cwd="/", text=True
    )
    assert printed.split()[-1] == said[1]
    for path in (ROOT / "aiozerocopy").rglob("*.py"):
        assert f'"{said[1]}"' not in path.read_text(), path


# ---- a Python without the GIL --------------------------------------------------------


def complaint(command: list[str], folder: Path, **environment: str) -> str:
    """Run a program that fails; return its last line."""
    done = ran(command, cwd=folder, env=os.environ | environment)
    assert done.returncode == 1, done.stdout
    return done.stderr.splitlines()[-1]


def free_threaded() -> str | None:
    """Find a Python that can run without the GIL; AZC_PYTHON_T names one."""
    names = [os.environ.get("AZC_PYTHON_T", ""), "python3.15t", "python3.14t"]
    found = ran([ROOT / ".make/find-python", *filter(None, names)])
    return found.stdout.strip() or None


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_free_threaded_python_stays_so(archive: Path, tmp_path: Path) -> None:
    """The wheel is for that Python only, and works with and without the GIL."""
    base = free_threaded()
    if base is None:
        pytest.skip("no free-threaded Python found: set AZC_PYTHON_T=/path/to/one")
    subprocess.run([base, "-m", "venv", tmp_path / "venv"], check=True)
    python = str(tmp_path / "venv/bin/python")
    without = {name: "" for name in os.environ if name.startswith("PYTHON")}
    install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*install, archive], cwd=tmp_path, check=True)
    (built,) = tmp_path.glob("venv/lib/*/site-packages/aiozerocopy/_azc.*")
    assert "abi3" not in built.name
    smoke = [python, "-W", "error", str(ROOT / ".ci/smoke.py")]
    for gil in ("off", "on"):
        given = {"PYTHON_GIL": "1"} if gil == "on" else {}
        environment = os.environ | without | given
        printed = subprocess.check_output(
            smoke, cwd=tmp_path, env=environment, text=True
        )
        assert printed.startswith("1048576 bytes arrived")
        assert printed.endswith(f"the GIL is {gil}\n")


@pytest.mark.parametrize("start", [["-c", "import aiozerocopy"], ["-m", "aiozerocopy"]])
def test_import_without_c_says_what_to_do(start: list[str], tmp_path: Path) -> None:
    """As in the root of a clone, whose aiozerocopy/ hides the installed package."""
    ignore = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "aiozerocopy", tmp_path / "aiozerocopy", ignore=ignore)
    last = complaint([sys.executable, *start], tmp_path)
    assert f"is not built in {tmp_path}: run `pip install -e .` there" in last
    assert "circular" not in last
