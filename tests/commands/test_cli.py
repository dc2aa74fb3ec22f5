"""The command line finds its commands and reports what is missing."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from types import ModuleType

import anyio
import pytest

from aiozerocopy.commands import cli

pytest.importorskip("numpy")  # its threads exist before each test


def fake_command(
    monkeypatch: pytest.MonkeyPatch, name: str, main: Callable[[list[str]], int]
) -> None:
    module = ModuleType(f"aiozerocopy.commands.{name}")
    module.main = main  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


def test_version_is_the_installed_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out == f"aiozerocopy {version('aiozerocopy')}\n"


def test_without_a_command_there_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    assert capsys.readouterr().out.startswith("usage: aiozerocopy ")


def test_command_gets_the_rest_and_gives_the_exit_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []

    def main(argv: list[str]) -> int:
        seen.extend(argv)
        return 3

    fake_command(monkeypatch, "doctor", main)
    assert cli.main(["doctor", "sockets", "--json", "-h"]) == 3
    assert seen == ["sockets", "--json", "-h"]


@pytest.mark.parametrize("error", [TypeError("a bug"), RuntimeError("a bug")])
def test_fault_of_ours_is_shown_whole(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def main(argv: list[str]) -> int:
        raise error

    fake_command(monkeypatch, "demo", main)
    with pytest.raises(type(error), match="a bug"):
        cli.main(["demo"])


@pytest.mark.parametrize("in_a_task", [False, True])
def test_missing_package_is_named_with_its_extra(
    in_a_task: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def fail() -> None:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy.core")

    async def start() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail)

    def main(argv: list[str]) -> int:
        anyio.run(start if in_a_task else fail)
        return 0

    fake_command(monkeypatch, "demo", main)
    assert cli.main(["demo"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("aiozerocopy demo needs numpy: pip install 'numpy>=")
    assert said.count("\n") == 1


EXTRAS = "PIL h11 imageio_ffmpeg moderngl numpy simplejpeg trio uvloop wsproto"
BARE = f"""
import sys
sys.modules.update(dict.fromkeys({EXTRAS.split()}))
from aiozerocopy.commands import cli
sys.exit(cli.main(sys.argv[1:]))
"""


DEFAULTS = {
    "demo": ["demo.mp4", "240", "30", "asyncio"],
    "render": ["1920x1080", "60", "5.0", "ultrafast", "auto"],
    "serve": ["demo", "1280x720", "30", "127.0.0.1", "1000"],
    "view": ["ffplay"],
}


@pytest.mark.parametrize("command", ["", *cli.COMMANDS])
def test_help_is_plain_text_with_defaults_and_needs_no_extra(command: str) -> None:
    text = subprocess.check_output(
        [sys.executable, "-c", BARE, *command.split(), "--help"], text=True
    )
    assert text.startswith(f"usage: aiozerocopy {command}".rstrip())
    assert command or all(f"  {name}" in text for name in cli.COMMANDS)
    for markup in ("`", "None", "Fraction", "==SUPPRESS==", "PosixPath"):
        assert markup not in text
    assert max(map(len, text.splitlines())) < 90
    for default in DEFAULTS.get(command, []):
        assert f"(default: {default})" in " ".join(text.split())


COMPLETE = """
eval "$("$@" --completion bash)"
while read -r line; do
    read -ra COMP_WORDS <<<"$line"
    [[ $line == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    $(complete -p aiozerocopy | sed 's/.*-F //; s/ .*//')
    echo "${COMPREPLY[*]}"
done
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_from_the_parsers() -> None:
    cases = {
        "aiozerocopy d": "doctor demo",
        "aiozerocopy render --qua": "--quality",
        "aiozerocopy render --quality l": "lossless low",
        "aiozerocopy capture -o film.mp4 --dis": "--display",
        "aiozerocopy render sha": "",  # (a file, by bash itself)
        "aiozerocopy doctor --": "--help --json",
    }
    done = subprocess.run(
        ["bash", "-c", COMPLETE, "bash", sys.executable, "-c", BARE],
        input="\n".join([*cases, ""]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert dict(zip(cases, done.stdout.splitlines(), strict=True)) == cases


def test_missing_module_of_our_own_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    # None in sys.modules makes the import fail.
    monkeypatch.setitem(sys.modules, "aiozerocopy.commands.demo", None)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["demo"])
