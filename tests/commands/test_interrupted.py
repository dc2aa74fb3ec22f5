"""Ctrl-C at any moment ends each command at once, with one line, and leaves nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from command import PROGRAM, Terminal
from scripts import ran

from aiozerocopy.commands.ending import ended

pytest.importorskip("numpy")

SHADER = "void mainImage(out vec4 color, in vec2 at) { color = vec4(1.0); }"
LONG = "--size 64x36 --duration 100000"
AT_ONCE = 8.0  # seconds: one is intended, on a machine that does nothing else

# A command, its output when Ctrl-C comes, and more of its last line.
MOMENTS = [
    ("demo -o film.mp4 --frames 100000", "film.mp4", ""),
    ("demo -o film.mp4 --frames 1 --checked-frames 100000", "lossless.mkv", ""),
    (f"render shader.glsl -o film.mkv {LONG}", "film.mkv", ""),
    (f"render shader.glsl -o film.mp4 {LONG}", " fps", ": film.mp4: .* are in it"),
    ("serve --web 0 --tcp 0", "in a browser", ""),
    ("serve --web 0 --tcp 0", "by a program", ""),
    ("view 127.0.0.1:1 --reconnect", "no frames yet", ""),
]


QUICK = [moment for moment in MOMENTS if moment[0].startswith(("serve", "view"))][1:]
SLOW = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "shader.glsl").write_text(SHADER)
    yield tmp_path
    deadline = time.monotonic() + 5  # for killed processes to end
    while left := [p for p in Path("/proc").glob("[0-9]*") if mentions(p, tmp_path)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.01)


def mentions(process: Path, folder: Path) -> bool:
    """Whether the process's command line names the folder."""
    try:
        return os.fsencode(folder) in (process / "cmdline").read_bytes()
    except OSError:  # the process has ended
        return False


def interrupt(terminal: Terminal) -> float:
    """Send Ctrl-C; return the seconds until the end."""
    began = time.monotonic()
    terminal.process.send_signal(signal.SIGINT)
    terminal.read_until(None)
    terminal.process.wait()
    return time.monotonic() - began


def lines_of(said: str) -> list[str]:
    """Return the lines that stay visible on the terminal."""
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said).replace("\r\n", "\n")
    return [line.rpartition("\r")[2] for line in plain.split("\n") if line.strip()]


COMMAND = """
from aiozerocopy.commands.ending import ended

raise SystemExit(ended("aiozerocopy demo", lambda: exec("raise KeyboardInterrupt")))
"""


def test_exit_status_wherever_it_comes(folder: Path) -> None:
    """Ctrl-C may come even inside of an executed string, such as dataclasses use."""
    (folder / "command.py").write_text(COMMAND)
    done = ran([sys.executable, "-m", "command"], cwd=folder)
    assert done.stderr == "aiozerocopy demo: interrupted\n"
    assert done.returncode == 130


def test_ctrl_c_that_python_drops(capsys: pytest.CaptureFixture[str]) -> None:
    """Python drops it, for example, in callbacks of weak references during imports."""

    class Dropping:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    def run() -> int:
        Dropping()
        time.sleep(60)
        return 0

    before = sys.unraisablehook
    assert ended("aiozerocopy demo", run) == 130
    assert capsys.readouterr().err == "aiozerocopy demo: interrupted\n"
    assert sys.unraisablehook is before


@pytest.mark.parametrize(
    ("line", "moment", "more"),
    [
        pytest.param(*one, id=" ".join(one), marks=() if one in QUICK else SLOW)
        for one in MOMENTS
    ],
)
@pytest.mark.timeout(90)
def test_one_line_and_the_end(line: str, moment: str, more: str, folder: Path) -> None:
    words = shlex.split(line)
    with Terminal([*PROGRAM, *words], folder) as terminal:
        terminal.read_until(moment)
        seconds = interrupt(terminal)
    closing = f"aiozerocopy {words[0]}: interrupted"
    assert terminal.process.returncode == 130
    assert "Traceback" not in terminal.said
    assert terminal.said.count(closing) == 1
    assert re.fullmatch(closing + f"(: .*)?{more}", lines_of(terminal.said)[-1])
    assert seconds < AT_ONCE


def test_background_job_of_a_script(folder: Path) -> None:
    """A background job ignores Ctrl-C; SIGTERM ends it like Ctrl-C."""
    line = shlex.join([*PROGRAM, "serve", "--unix", "s", "--size=64x36"])
    script = f"{line} & wait $!; echo status $?"
    with Terminal(["sh", "-c", script], folder) as terminal:
        terminal.read_until("by a program")
        shell = terminal.process.pid
        server = int(Path(f"/proc/{shell}/task/{shell}/children").read_text())
        os.kill(server, signal.SIGINT)
        began = time.monotonic()
        os.kill(server, signal.SIGTERM)
        terminal.read_until(None)
        seconds = time.monotonic() - began
    closing = ["aiozerocopy serve: interrupted", f"status {128 + signal.SIGTERM}"]
    assert lines_of(terminal.said)[-2:] == closing
    assert seconds < AT_ONCE


def test_ignored_ctrl_c_and_sigterm_are_one_ctrl_c() -> None:
    """A second Ctrl-C could come at any line, even where a coroutine is made."""
    code = """
        import os, signal
        from aiozerocopy.commands.ending import ended

        came = []

        def run():
            signal.signal(signal.SIGINT, lambda *_: came.append(1))
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(os.getpid(), number)
            return 0

        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ended("a command", run)
        raise SystemExit(len(came))
    """
    python = [sys.executable, "-c", textwrap.dedent(code)]
    assert subprocess.run(python, check=False).returncode == 1


def test_future_cancelled_while_it_is_set(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio's handler of Ctrl-C may cancel it between two lines of asyncio itself."""
    assert ended("a command", lambda: 0) == 0
    for error in (asyncio.InvalidStateError(), ValueError("a fault of ours")):
        logging.getLogger("asyncio").error("Exception in callback", exc_info=error)
    told = [record.exc_info for record in caplog.records]
    assert [kind for kind, *_ in filter(None, told)] == [ValueError]


@pytest.mark.slow
def test_doctor_that_waits_for_a_program(folder: Path) -> None:
    here = folder / "here"
    os.mkfifo(here)
    program = folder / "ffmpeg"
    program.write_text(f"#!/bin/sh\necho >{here}\nexec sleep 100\n")
    program.chmod(0o755)
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    with Terminal([*PROGRAM, "doctor"], folder, PATH=path) as terminal:
        here.read_text()  # returns when doctor has started the program
        assert interrupt(terminal) < AT_ONCE
    assert lines_of(terminal.said)[-1] == "aiozerocopy doctor: interrupted"
    assert terminal.process.returncode == 130


@pytest.mark.slow
def test_viewer_with_a_program_that_goes_on(folder: Path) -> None:
    serving = [*PROGRAM, "serve", "--unix", "s", "--size=64x36"]
    with Terminal(serving, folder) as server:
        server.read_until("by a program")
        program = shlex.join(["sh", "-c", "echo it has begun >&2; exec sleep 100"])
        with Terminal([*PROGRAM, "view", "s", "--to", program], folder) as viewer:
            viewer.read_until("it has begun")
            assert interrupt(viewer) < AT_ONCE
        assert viewer.process.returncode == 130
        assert lines_of(viewer.said)[-1] == "aiozerocopy view: interrupted"
        assert interrupt(server) < AT_ONCE
