"""Every missing extra is reported alike, with a command that works from anywhere."""

import re
import shlex
import sys
from importlib import metadata

import pytest
import scripts

from aiozerocopy._core import extras

EXTRAS = metadata.metadata("aiozerocopy").get_all("Provides-Extra") or []


def missing(name: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_is_made_of_packages_of_others(extra: str) -> None:
    found = extras.requirements(extra)
    assert found
    assert not [one for one in found if one.startswith("aiozerocopy") or "extra" in one]


def test_all_is_what_any_use_needs() -> None:
    for_work_on_the_package = {"docs", "test"}
    every = extras.requirements("all")
    for extra in set(EXTRAS) - for_work_on_the_package:
        assert {*extras.requirements(extra)} <= {*every}, extra


@pytest.mark.parametrize(
    ("package", "extra", "wanted"),
    [
        ("numpy", "web", "numpy>="),
        ("h11", "serve", "h11>="),
        ("PIL", "web", "pillow>="),
        ("imageio_ffmpeg", "ffmpeg", "imageio-ffmpeg>="),
        ("moderngl.mgl", "demo", "moderngl>="),
        ("unheard_of", "web", "unheard_of"),
        ("uvloop", "demo", "uvloop"),
    ],
)
def test_command_installs_what_is_missing(
    package: str, extra: str, wanted: str
) -> None:
    sentence = extras.sentence("it", missing(package), extra)
    who, _, command = sentence.partition(": ")
    assert who == f"it needs {package.partition('.')[0]}"
    pip, install, first = shlex.split(command)
    assert (pip, install) == ("pip", "install")
    assert first.startswith(wanted)


def test_all_of_an_extra_that_is_missing_comes_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(extras, "_is_installed", lambda requirement: False)
    words = shlex.split(extras.command("web", "h11"))
    assert words[2:] == extras.requirements("web")


def test_what_is_installed_is_not_asked_for() -> None:
    assert extras._is_installed("pytest>=8")
    assert not extras._is_installed("unheard-of>=8")
    every = extras.requirements("web")
    assert shlex.split(extras.command("web", "h11"))[2:] == [
        one for one in every if one.startswith("h11") or not extras._is_installed(one)
    ]


@pytest.mark.parametrize(
    ("version", "is_asked_for"), [((3, 14), True), ((3, 15), False)]
)
def test_a_package_for_older_pythons(
    version: tuple[int, int], is_asked_for: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = 'old>=1; python_version < "3.15" and extra == "web"'
    monkeypatch.setattr(metadata, "requires", lambda name: [line])
    monkeypatch.setattr(sys, "version_info", (*version, 0, "final", 0))
    assert extras.requirements("web") == ["old>=1"] * is_asked_for


def test_a_clone_that_is_not_installed_asks_for_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def not_found(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", not_found)
    assert extras.requirements("web") == []
    assert extras.command("web", "h11") == "pip install h11"


def test_a_package_that_is_missing() -> None:
    with pytest.raises(ModuleNotFoundError, match="it needs h11: pip") as caught:
        with extras.optional("it", "web"):
            raise missing("h11.nowhere")
    assert caught.value.name == "h11.nowhere"
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("name", ["", "aiozerocopy", "aiozerocopy.nowhere"])
def test_what_is_no_package_of_others(name: str) -> None:
    assert not extras.is_foreign(missing(name))


def test_module_of_ours_that_is_missing_is_a_bug() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named"):
        with extras.optional("it", "web"):
            raise missing("aiozerocopy.nowhere")


@pytest.mark.parametrize(
    ("package", "code", "who"),
    [
        ("h11", "azc.web", "aiozerocopy.web"),
        ("wsproto", "import aiozerocopy.web", "aiozerocopy.web"),
        ("aiohttp", "azc.web.aiohttp_app", "aiozerocopy.web.aiohttp_app"),
        ("moderngl", "azc.gl", "aiozerocopy.gl"),
        ("distributed", "import aiozerocopy.dask", "aiozerocopy.dask"),
        ("numpy", "azc.FramePool(4).acquire_nowait().array", "an array"),
        ("numpy", "azc.frames.to_rgb(b'abcdef', (2, 2))", "a new array .*"),
        (
            "h11",
            "from aiozerocopy.commands.cli import main; sys.exit(main(['serve']))",
            "aiozerocopy serve",
        ),
    ],
)
def test_library_and_commands_say_the_same(package: str, code: str, who: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; import aiozerocopy as azc"
    done = scripts.ran([sys.executable, "-c", f"{program}\n{code}"])
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1].removeprefix("ModuleNotFoundError: ")
    last = last.partition(". Did you mean")[0]  # (Python 3.15 suggests similar names)
    assert re.fullmatch(
        f"{who} needs {package}: pip install '{package}>=[0-9.]+'", last
    )
