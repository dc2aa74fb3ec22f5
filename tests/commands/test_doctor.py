"""The doctor never raises, and says what lacks, what it costs and how to get it."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from aiozerocopy._core import pipe_size
from aiozerocopy.commands import doctor, probes
from aiozerocopy.commands.probes import Finding

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")

LINUX_PROBES = (
    probes.pipe_size,
    probes.rwf_nowait,
    probes.rwf_nosignal,
    probes.vmsplice,
    probes.egl_renderer,
)


def assert_complete(finding: Finding) -> None:
    """A finding that is not good says what that costs and how to change it."""
    assert finding.name
    assert finding.value
    if finding.verdict in ("limited", "missing"):
        assert finding.cost
        assert finding.remedy
        assert "aiozerocopy[" not in finding.remedy  # no index may have that


def open_fds() -> list[str]:
    return os.listdir("/proc/self/fd" if sys.platform == "linux" else "/dev/fd")


@pytest.mark.parametrize("probe", probes.PROBES, ids=lambda probe: probe.__name__)
def test_probe_works_here_and_leaves_nothing_open(probe: Callable[[], Finding]) -> None:
    before = set(open_fds())
    finding = doctor.examine(probe)
    assert finding.verdict != "unknown", finding.value
    assert_complete(finding)
    while not set(open_fds()) <= before:  # a pump closes its own, after us
        time.sleep(0.001)


def test_probe_that_fails_is_reported() -> None:
    def broken_thing() -> Finding:
        raise PermissionError(errno.EACCES, "no entry")

    assert doctor.examine(broken_thing) == Finding(
        "broken thing",
        "the probe failed: PermissionError: [Errno 13] no entry",
        "unknown",
    )


@pytest.mark.parametrize("probe", LINUX_PROBES, ids=lambda probe: probe.__name__)
def test_linux_probe_says_so_elsewhere(
    probe: Callable[[], Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    finding = probe()
    assert (finding.value, finding.verdict) == ("not on this system", "missing")
    assert_complete(finding)


@pytest.mark.parametrize(("portable", "verdict"), [(False, "ok"), (True, "limited")])
def test_build_tells_which_one_is_installed(
    portable: bool, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aiozerocopy._core.binding.PORTABLE", portable)
    finding = probes.build()
    assert ("portable" in finding.value) == portable
    assert finding.verdict == verdict
    assert_complete(finding)


def test_kernel_elsewhere_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    finding = probes.kernel()
    assert finding.verdict == "limited"
    assert_complete(finding)


def test_setting_that_is_absent_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(probes, "Path", lambda _: tmp_path / "absent")
    for probe in (probes.huge_pages, probes.socket_buffers):
        assert probe().value == "not on this system"


@pytest.mark.parametrize(
    ("line", "value", "verdict"),
    [
        ("[always] madvise never", "always", "ok"),
        ("always [madvise] never", "madvise", "ok"),
        ("always madvise [never]", "never", "limited"),
    ],
)
def test_huge_pages_reads_the_setting(
    line: str, value: str, verdict: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    setting = tmp_path / "enabled"
    setting.write_text(line + "\n")
    monkeypatch.setattr(probes, "Path", lambda _: setting)
    finding = probes.huge_pages()
    assert (finding.value, finding.verdict) == (value, verdict)
    assert_complete(finding)


@pytest.mark.parametrize(("limit", "verdict"), [(212_992, "limited"), (4 << 20, "ok")])
def test_socket_buffers_reads_the_limit(
    limit: int, verdict: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    setting = tmp_path / "wmem_max"
    setting.write_text(f"{limit}\n")
    monkeypatch.setattr(probes, "Path", lambda _: setting)
    finding = probes.socket_buffers()
    assert finding.verdict == verdict
    assert_complete(finding)


@pytest.mark.parametrize(
    ("soft", "verdict"),
    [(1024, "limited"), (8 << 20, "ok"), (resource.RLIM_INFINITY, "ok")],
)
def test_open_files(soft: int, verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    finding = probes.open_files()
    assert finding.verdict == verdict
    assert_complete(finding)
    assert ("unlimited" in finding.value) == (soft == resource.RLIM_INFINITY)


@pytest.mark.parametrize("works", [True, False])
def test_hardware_that_encodes_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, works: bool
) -> None:
    program = tmp_path / "ffmpeg"
    program.write_text(
        f"""#!/bin/sh
        case "$*" in
        *-encoders*) echo ------; echo " V..... h264_qsv x"; echo " V..... libx264 x";;
        *h264_qsv*) exit {0 if works else 1};;
        esac
        """
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    finding = probes.hardware_encoder()
    if works:
        assert finding.value == 'h264_qsv: codec="auto" takes h264_qsv'
        assert finding.verdict == "ok"
    else:
        assert finding.verdict == "limited"
        assert_complete(finding)


@linux_only
@pytest.mark.parametrize(
    ("granted", "limit", "verdict", "remedy"),
    [
        (1 << 20, 1 << 20, "ok", ""),
        (1 << 16, 1 << 16, "limited", "pipe-max-size"),
        (1 << 13, 1 << 20, "limited", "pipe-user-pages-soft"),
    ],
)
def test_pipe_size_tells_the_two_limits_apart(
    granted: int,
    limit: int,
    verdict: str,
    remedy: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    setting = tmp_path / "pipe-max-size"
    setting.write_text(f"{limit}\n")
    monkeypatch.setattr(probes, "Path", lambda _: setting)
    monkeypatch.setattr(probes, "_grow_pipe", lambda fd, wanted: granted)
    finding = probes.pipe_size()
    assert finding.verdict == verdict
    assert remedy in finding.remedy
    assert_complete(finding)


@linux_only
def test_pipe_that_may_not_grow_keeps_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def fcntl(fd: int, command: int, wanted: int = 0) -> int:
        if command == pipe_size.F_SETPIPE_SZ:
            raise PermissionError(errno.EPERM, "not permitted")
        return 8192

    monkeypatch.setattr(probes, "fcntl", SimpleNamespace(fcntl=fcntl))
    assert probes._grow_pipe(0, 1 << 20) == 8192


@linux_only
def test_write_flag_that_the_kernel_does_not_know_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # No kernel has given this bit a meaning.
    monkeypatch.setattr(probes, "RWF_NOSIGNAL", 0x4000_0000)
    finding = probes.rwf_nosignal()
    assert (finding.value, finding.verdict) == ("refused", "missing")
    assert_complete(finding)


@linux_only
@pytest.mark.parametrize(
    ("shares", "verdict", "value"),
    [(True, "ok", "shares"), (False, "limited", "copies")],
)
def test_vmsplice_says_what_the_kernel_does(
    shares: bool, verdict: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_vmsplice_shares", lambda: shares)
    finding = probes.vmsplice()
    assert finding.verdict == verdict
    assert value in finding.value
    assert_complete(finding)


@linux_only
def test_vmsplice_that_is_refused_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        ctypes.set_errno(errno.EINVAL)
        return -1

    library = SimpleNamespace(vmsplice=refuse)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: library)
    before = open_fds()
    finding = probes.vmsplice()
    assert (finding.value, finding.verdict) == ("refused (EINVAL)", "missing")
    assert_complete(finding)
    assert open_fds() == before


@pytest.mark.parametrize(
    "probe",
    [probes.uvloop, probes.trio, probes.numpy],
    ids=lambda probe: probe.__name__,
)
def test_package_that_is_absent_is_missing(
    probe: Callable[[], Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    finding = probe()
    assert finding.verdict == "missing"
    assert_complete(finding)


def test_ffmpeg_is_missing_without_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    finding = probes.ffmpeg()
    assert finding.verdict == "missing"
    assert_complete(finding)


def test_ffmpeg_on_path_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "ffmpeg"
    program.write_text("#!/bin/sh\necho ffmpeg version 9.0-x Copyright\necho more\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert probes.ffmpeg() == Finding("FFmpeg", f"9.0-x from PATH ({program})")


@linux_only
@pytest.mark.parametrize(
    ("renderer", "verdict"), [("llvmpipe (LLVM 15)", "limited"), ("NVIDIA H200", "ok")]
)
def test_software_renderer_is_limited(
    renderer: str, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr(probes, "_run_python", lambda code: renderer)
    finding = probes.egl_renderer()
    assert finding.verdict == verdict
    assert_complete(finding)


@linux_only
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise SystemExit('no display')", "no display"),
        ("import os; os.abort()", "exit status -6"),
    ],
)
def test_driver_that_crashes_hurts_nobody(
    code: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr(probes, "_EGL_RENDERER", code)
    finding = probes.egl_renderer()
    assert finding.verdict == "missing"
    assert said in finding.value
    assert_complete(finding)


@linux_only
def test_driver_that_hangs_hurts_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], *, timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr(subprocess, "run", run)
    assert probes.egl_renderer().verdict == "missing"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (8192, "8 KiB"),
        (1 << 20, "1 MiB"),
        (1 << 32, "4 GiB"),
        (1000, "1000 bytes"),
    ],
)
def test_size(count: int, text: str) -> None:
    assert probes._size(count) == text


def two_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    good = Finding("a", "[b]old")
    poor = Finding("longer", "2", "limited", "time", "buy it")
    monkeypatch.setattr(doctor, "PROBES", (lambda: good, lambda: poor))


def test_text_is_aligned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two_findings(monkeypatch)
    assert doctor.main([]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ok       a       [b]old",
        "limited  longer  2",
        "                 costs: time",
        "                 get it: buy it",
    ]


def test_json_holds_every_field(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two_findings(monkeypatch)
    assert doctor.main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)[1] == {
        "name": "longer",
        "value": "2",
        "verdict": "limited",
        "cost": "time",
        "remedy": "buy it",
    }


def test_terminal_gets_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("rich")
    two_findings(monkeypatch)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert doctor.main([]) == 0
    text = capsys.readouterr().out
    assert "what it costs" in text
    assert "[b]old" in text  # and is not taken for markup


def test_rich_is_not_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    two_findings(monkeypatch)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "rich", ModuleType("rich"))
    assert doctor.main([]) == 0
    assert capsys.readouterr().out.startswith("ok  ")
