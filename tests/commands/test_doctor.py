"""The doctor never raises, and says what is missing, what it costs, how to get it."""

import ctypes
import errno
import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aiozerocopy._core import extras, pipe_size
from aiozerocopy.commands import doctor, probes
from aiozerocopy.commands.probes import Finding

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


def assert_complete(finding: Finding) -> None:
    """A finding that is not good says what it costs, and how to change it."""
    assert finding.name
    assert finding.value
    if finding.verdict in ("limited", "missing"):
        assert finding.cost
        assert finding.remedy
        assert "aiozerocopy[" not in finding.remedy  # an index may lack this package


@pytest.mark.parametrize("probe", probes.PROBES, ids=lambda probe: probe.__name__)
def test_probe_works_here(probe: Callable[[], Finding]) -> None:
    finding = doctor.examine(probe)
    assert finding.verdict != "unknown", finding.value
    assert_complete(finding)


def test_probe_that_fails_is_reported() -> None:
    def broken_thing() -> Finding:
        raise PermissionError(errno.EACCES, "no entry")

    assert doctor.examine(broken_thing) == Finding(
        "broken thing",
        "the probe failed: PermissionError: [Errno 13] no entry",
        "unknown",
    )


# ---- probes of other machines -------------------------------------------------------


def given(target: Any, name: str, value: object) -> Callable[[Any], None]:
    """Make a change of this machine's properties."""
    return lambda patch: patch.setattr(target, name, value)


def setting(text: str | None) -> Callable[[Any], None]:
    """Give the file that a probe reads this text, or none."""
    file = SimpleNamespace(exists=lambda: text is not None, read_text=lambda: text)
    return given(probes, "Path", lambda _: file)


def granted(size: int, limit: int) -> list[Callable[[Any], None]]:
    return [setting(f"{limit}\n"), given(probes, "_grow_pipe", lambda *_: size)]


def may_not_grow(_fd: int, command: int, _wanted: int = 0) -> int:
    if command == pipe_size.F_SETPIPE_SZ:
        raise PermissionError(errno.EPERM, "not permitted")
    return 8192


def renderer(code: Any) -> list[Callable[[Any], None]]:
    return [PRESENT, given(probes, "_run_python", lambda _: code)]


def soft_limit(count: int) -> Callable[[Any], None]:
    return given(resource, "getrlimit", lambda _: (count, count))


def refuse(*_: object) -> int:
    ctypes.set_errno(errno.EINVAL)
    return -1


def hang(command: list[str], *, timeout: float, **_: object) -> None:
    raise subprocess.TimeoutExpired(command, timeout)


ELSEWHERE = given(sys, "platform", "darwin")
PRESENT = given(importlib.util, "find_spec", lambda name: object())
ABSENT = given(importlib.util, "find_spec", lambda name: None)
NOWHERE = given(shutil, "which", lambda name: None)
PORTABLE = "aiozerocopy._core.binding.PORTABLE"
CRASHES = {
    "raise SystemExit('no display')": "no display",
    "import os; os.abort()": "exit status -6",
}

# A probe, a change of the machine, and what is then found: the verdict, and some words
# (or, after a minus, words that must not be said).
MACHINES: list[tuple[Callable[[], Finding], Any, str, str]] = [
    (probes.build, lambda patch: patch.setattr(PORTABLE, False), "ok", "-portable"),
    (probes.build, lambda patch: patch.setattr(PORTABLE, True), "limited", "portable"),
    (probes.kernel, ELSEWHERE, "limited", ""),
    *(
        (probe, ELSEWHERE, "missing", "not on this system")
        for probe in (probes.pipe_size, probes.vmsplice, probes.egl_renderer)
    ),
    (probes.huge_pages, setting(None), "missing", "not on this system"),
    (probes.huge_pages, setting("[always] madvise never\n"), "ok", "always"),
    (probes.huge_pages, setting("always [madvise] never\n"), "ok", "madvise"),
    (probes.huge_pages, setting("always madvise [never]\n"), "limited", "never"),
    (probes.socket_buffers, setting(None), "missing", "not on this system"),
    (probes.socket_buffers, setting("212992\n"), "limited", ""),
    (probes.socket_buffers, setting("4194304\n"), "ok", ""),
    (probes.open_files, soft_limit(1024), "limited", "-unlimited"),
    (probes.open_files, soft_limit(8 << 20), "ok", "-unlimited"),
    (probes.open_files, soft_limit(resource.RLIM_INFINITY), "ok", "unlimited"),
    (probes.uvloop, ABSENT, "missing", ""),
    (probes.trio, ABSENT, "missing", ""),
    (probes.numpy, ABSENT, "missing", ""),
    (
        probes.web_page,
        given(extras, "_is_installed", lambda requirement: "h11" not in requirement),
        *("missing", "not installed: h11; pip install 'h11>="),
    ),
    (probes.ffmpeg, [ABSENT, NOWHERE], "missing", ""),
]
LINUX_MACHINES: list[tuple[Callable[[], Finding], Any, str, str]] = [
    (probes.pipe_size, granted(1 << 20, 1 << 20), "ok", ""),
    (probes.pipe_size, granted(1 << 16, 1 << 16), "limited", "pipe-max-size"),
    (probes.pipe_size, granted(1 << 13, 1 << 20), "limited", "pipe-user-pages-soft"),
    (
        probes.pipe_size,
        given(probes, "fcntl", SimpleNamespace(fcntl=may_not_grow)),
        *("limited", "8 KiB granted"),
    ),
    # No kernel uses this bit yet.
    (probes.rwf_nosignal, given(probes, "RWF_NOSIGNAL", 1 << 30), "missing", "refused"),
    (probes.vmsplice, given(probes, "_vmsplice_shares", lambda: True), "ok", "shares"),
    (
        probes.vmsplice,
        given(probes, "_vmsplice_shares", lambda: False),
        *("limited", "copies"),
    ),
    (
        probes.vmsplice,
        given(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(vmsplice=refuse)),
        *("missing", "refused (EINVAL)"),
    ),
    (probes.egl_renderer, renderer("llvmpipe (LLVM 15)"), "limited", "llvmpipe"),
    (probes.egl_renderer, renderer("NVIDIA H200"), "ok", "H200"),
    *(  # a driver that crashes or hangs does no harm
        (
            probes.egl_renderer,
            [PRESENT, given(probes, "_EGL_RENDERER", code)],
            *("missing", said),
        )
        for code, said in CRASHES.items()
    ),
    (probes.egl_renderer, [PRESENT, given(subprocess, "run", hang)], "missing", ""),
]


@pytest.mark.parametrize(
    ("probe", "machine", "verdict", "words"),
    [
        *MACHINES,
        *(pytest.param(*machine, marks=linux_only) for machine in LINUX_MACHINES),
    ],
)
def test_what_it_says_of_another_machine(
    probe: Callable[[], Finding],
    machine: Any,
    verdict: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        for change in machine if isinstance(machine, list) else [machine]:
            change(patch)
        finding = probe()
    assert finding.verdict == verdict
    said = f"{finding.value}; {finding.remedy}"
    assert (words.lstrip("-") in said) != words.startswith("-")
    assert_complete(finding)


@pytest.fixture
def ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that is first on PATH; its first encoder exits with $QSV."""
    program = tmp_path / "ffmpeg"
    program.write_text(
        """#!/bin/sh
        case "$*" in
        *-version*) echo ffmpeg version 9.0-x Copyright; echo more;;
        *-encoders*) echo ------; echo " V..... h264_qsv x"; echo " V..... libx264 x";;
        *h264_qsv*) exit $QSV;;
        esac
        """
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return program


@pytest.mark.usefixtures("ffmpeg")
@pytest.mark.parametrize(
    ("status", "verdict", "says"),
    [
        ("0", "ok", 'h264_qsv: codec="auto" and --hardware take h264_qsv'),
        ("1", "limited", "none works here"),
    ],
)
def test_hardware_that_encodes_is_told(
    status: str, verdict: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QSV", status)
    finding = probes.hardware_encoder()
    assert (finding.verdict, finding.value) == (verdict, says)
    assert_complete(finding)


def test_ffmpeg_on_path_comes_first(ffmpeg: Path) -> None:
    assert probes.ffmpeg() == Finding("FFmpeg", f"9.0-x from PATH ({ffmpeg})")


def test_size() -> None:
    sizes = (0, 8192, 1 << 20, 1 << 32, 1000)
    said = ["0 bytes", "8 KiB", "1 MiB", "4 GiB", "1000 bytes"]
    assert [probes._size(size) for size in sizes] == said


def test_report_as_text_and_as_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = Finding("a", "[b]old")
    poor = Finding("longer", "2", "limited", "time", "buy it")
    monkeypatch.setattr(doctor, "PROBES", (lambda: good, lambda: poor))
    assert doctor.main([]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ok       a         [b]old",
        "limited  longer    2",
        "                   costs: time",
        "                   get it: buy it",
    ]
    assert doctor.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [asdict(good), asdict(poor)]


def test_narrow_terminal_gets_lines_that_fit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    remedy = "pip install 'numpy>=1.24' 'h11>=0.14' 'pillow>=10'"
    poor = Finding("web page", "h11 is not installed", "missing", "word " * 20, remedy)
    monkeypatch.setattr(doctor, "PROBES", (lambda: poor,))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "40")
    assert doctor.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["missing  web page", "  h11 is not installed"]
    assert lines[-1] == f"  get it: {remedy}"  # in one piece, to be copied
    assert max(map(len, lines[:-1])) <= 40
