"""Invalid input gets one line that says what to do, and never a traceback.

Exit status 2 means that no machine could run the command, 1 that this one failed.
"""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
from command import PROGRAM, environment, start

from aiozerocopy import client
from aiozerocopy._net import greeting
from aiozerocopy.commands import cli, ending, scenes

pytest.importorskip("numpy")
trustme = pytest.importorskip("trustme")

SHADER = "void mainImage(out vec4 color, in vec2 at) { color = vec4(1.0); }"
CAPTURE = "capture -o out.mp4"
SHORT = "shader.glsl --size 64x36 --duration 0.1 -o"

SOON = 15.0  # seconds: one is intended, on a machine that does nothing else
LATER = 10.0  # seconds for a busy machine to answer
EXPLAINED = ("port of serve", "speaks TLS", "wants a token", "is another program")

NAMES_OF_NOBODY = ("nonsense.invalid", "999.999.999.999")
# The command line, the exit status, and a part of the message.  (test_options.py has
# the texts of single options.)
CASES: list[tuple[str, int, str]] = [
    # -- which command
    ("juggle", 2, "choose from"),
    ("--nonsense", 2, "--help"),
    ("doctor extra", 2, "unrecognized"),
    # -- demo
    ("demo -o demo", 1, "name a film such as film.mp4"),
    ("demo -o missing/demo.mp4", 1, "no such folder: make it first"),
    ("demo -o folder.mp4", 1, "folder.mp4: Is a directory"),
    ("demo -o /proc/version.mp4", 1, "choose another folder"),
    # -- render
    ("render", 2, "required: shader, -o/--output"),
    ("render nowhere.glsl -o out.mp4", 1, "nowhere.glsl: No such file"),
    ("render . -o out.mp4", 1, ".: Is a directory"),
    ("render empty.glsl -o out.mp4", 1, "empty.glsl: "),
    ("render bad.glsl -o out.mp4", 1, "nonsense"),
    ("render text.txt -o out.mp4", 1, "write void mainImage("),
    ("render picture.glsl -o out.mp4", 1, "not text: write a shader"),
    (f"render {SHORT} pipe:1", 1, "FFmpeg's standard output goes nowhere"),
    (f"render {SHORT} text.txt/out.mp4", 1, "text.txt: there is no such folder"),
    (f"render {SHORT} out.xyz", 1, "name a film such as film.mp4"),
    (f"render {SHORT} /dev/full --ffmpeg-option f=mpegts", 1, "already exists"),
    (f"render {SHORT} there-%03d.png", 1, "there-007.png: File exists (--overwrite"),
    (
        f"render {SHORT} /dev/full --ffmpeg-option f=mpegts --overwrite",
        1,
        "No space left",
    ),
    (f"render {SHORT} http://127.0.0.1:1/out.mp4", 1, "Connection refused"),
    (f"render {SHORT} nope://out", 1, "nope://out"),
    (f"render {SHORT} out.mp4 --codec nonsense", 1, "no encoder 'nonsense'"),
    (f"render {SHORT} out.mp4 --quality low --bitrate 1M", 2, "not allowed with"),
    (f"render {SHORT} out.mp4 --bitrate fast", 1, "fast"),
    (f"render {SHORT} out.mp4 --pix-fmt nonsense", 1, "--pix-fmt: pix_fmt must be"),
    (f"render {SHORT} out.mp4 --pix-fmt nv12 --size 63x35", 1, "an even width"),
    (f"render {SHORT} out.mp4 --ffmpeg-option nonsense", 2, "write NAME=VALUE"),
    (f"render {SHORT} out.mp4 --ffmpeg-option crf=many", 1, "many"),
    (f"render {SHORT} out.mp4 --ffmpeg-option preset=none", 1, "Error setting preset"),
    (f"render {SHORT} out.webm --codec libx264", 1, "WebM"),
    # -- capture
    ("capture", 2, "required: -o/--output"),
    ("capture -o there-%d.png", 1, "there-007.png: File exists (--overwrite"),
    (f"{CAPTURE} --display :4321", 1, "no X server answers at the display :4321"),
    (f"{CAPTURE} --display 127.0.0.1:4321", 1, "Connection refused"),
    (f"{CAPTURE} --display x", 1, "write a name such as :0"),
    (f"{CAPTURE} --display ''", 1, "DISPLAY is not set"),
    (f"{CAPTURE} --region 1x1+0+0 --monitor x", 2, "not allowed with"),
    ("serve screen --display :4321 --tcp 0", 1, "at the display :4321"),
    ("serve screen --source demo", 2, "write one of them"),
    ("serve screen --ffmpeg-input '-f v4l2'", 2, "not for screen"),
    ("serve demo --cursor", 2, "need the source screen"),
    # -- serve
    ("serve --web {busy}", 1, "choose another"),
    ("serve --tcp {busy}", 1, "choose another"),
    ("serve --host 999.999.999.999 --tcp 0", 1, "check the name"),
    ("serve --host 203.0.113.1 --tcp 0", 1, "an address of this machine"),
    ("serve --unix .", 1, "choose another"),
    ("serve --unix missing/frames", 1, "make the folder first"),
    ("serve --unix /proc/frames", 1, "/proc/frames"),
    (f"serve --unix {'x' * 200}", 1, "path too long"),
    ("serve --token a --token-file b", 2, "not allowed with"),
    ("serve --token-file nothing", 1, "No such file"),
    ("serve --token-file /dev/null", 1, "/dev/null is empty: write a token there"),
    ("serve --origin films.example.org", 2, "such as https://films.example.org"),
    ("serve nowhere.mp4 --tcp 0", 1, "nowhere.mp4: No such file"),
    ("serve text.txt --tcp 0", 1, "text.txt: Invalid data"),
    ("serve http://127.0.0.1:1/film.mp4 --tcp 0", 1, "Connection refused"),
    ("serve nope://film --tcp 0", 1, "Protocol not found"),
    ("serve text.txt --ffmpeg-input '-f nonsense' --tcp 0", 1, "nonsense"),
    ("serve --ffmpeg-input '-f v4l2'", 2, "not for demo"),
    ("serve text.txt --size 1280x720", 2, "--size is for the scene demo"),
    ("serve --file", 2, "not demo"),
    ("serve nowhere.mp4 --file", 2, "a source that is a file"),
    ("serve text.txt --file --tcp 0", 2, "--file needs --web"),
    ("serve demo --hardware --tcp 0", 2, "--hardware needs --web"),
    ("serve --tls-cert .", 1, ".: Is a directory"),
    ("serve --tls-cert text.txt", 1, "text.txt holds no certificate"),
    ("serve --tls-cert cert.pem", 1, "cert.pem holds no private key"),
    ("serve --tls-cert cert.pem --tls-key nowhere.pem", 1, "nowhere.pem: No such"),
    ("serve --tls-cert cert.pem --tls-key text.txt", 1, "text.txt holds no private"),
    ("serve --tls-cert cert.pem --tls-key other.pem", 1, "cert.pem with other.pem"),
    ("serve --tls-cert broken.pem --tls-key key.pem", 1, "broken.pem with key.pem"),
    ("serve --tls-key key.pem", 2, "needs --tls-cert"),
    ("serve --unix s --tls-cert cert.pem --tls-key key.pem", 2, "not encrypted"),
    # -- view
    ("view", 2, "required: address"),
    ("view http://127.0.0.1:{web}/", 2, "for browsers"),
    ("view tcp://127.0.0.1:{tcp}", 2, "is a URL: write HOST:PORT"),
    ("view nonsense.invalid:9000", 1, "check the name"),
    ("view 127.0.0.1:1", 1, "is the server running"),
    ("view nowhere.sock", 1, "'nowhere.sock': No such file"),
    (f"view {'x' * 200}", 1, "path too long"),
    ("view 127.0.0.1:{tcp} --to nonsense-program", 1, "nonsense-program: No such"),
    ("view 127.0.0.1:{tcp} --to false", 1, "false has ended with exit status 1"),
    ("view 127.0.0.1:{tcp} --token x", 1, "wants no token: leave out --token"),
    ("view 127.0.0.1:{tcp} --tls", 1, "speaks no TLS"),
    ("view 127.0.0.1:{tcp} --tls-ca ca.pem", 1, "speaks no TLS"),
    ("view 127.0.0.1:{tcp} --tls-ca text.txt", 1, "text.txt holds no certificate"),
    ("view 127.0.0.1:{tcp} --tls-ca broken.pem", 1, "broken.pem"),
    ("view 127.0.0.1:{web}", 1, "port of serve --tcp"),
    ("view 127.0.0.1:{foreign}", 1, "is another program's"),
    ("view 127.0.0.1:{tls}", 1, "speaks TLS: give --tls"),
    ("view 127.0.0.1:{tls_web}", 1, "speaks TLS: give --tls"),
    ("view 127.0.0.1:{tls_web} --tls-ca ca.pem", 1, "port of serve --tcp"),
    ("view 127.0.0.1:{tls} --tls", 1, "its authority with --tls-ca FILE"),
    ("view localhost:{tls} --tls-ca ca.pem", 1, "write a name that it is for"),
    ("view 127.0.0.1:{tls} --tls-ca other_ca.pem", 1, "not trusted by other_ca.pem"),
    ("view 127.0.0.1:{tls} --tls-ca ca.pem", 1, "wants a token: give --token-file"),
    ("view 127.0.0.1:{tls} --tls-ca ca.pem --token x", 1, "refused the token"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Good and bad files, in the current folder."""
    folder = tmp_path_factory.mktemp("bad")
    texts = {
        "shader.glsl": SHADER,
        "bad.glsl": SHADER.replace("vec4(1.0)", "nonsense"),
        "empty.glsl": "",
        "text.txt": "hello",
        "there.mp4": "mine",
        "there-007.png": "mine",
        "broken.pem": "-----BEGIN CERTIFICATE-----\nhello\n-----END CERTIFICATE-----\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "picture.glsl").write_bytes(bytes(range(256)))
    (folder / "folder.mp4").mkdir()
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    other.cert_pem.write_to_path(folder / "other_ca.pem")
    other.issue_cert("localhost").private_key_pem.write_to_path(folder / "other.pem")
    certificate = authority.issue_cert("127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        scenes.ShaderScene(SHADER, (64, 36)).close()  # starts the driver's threads
        yield folder


class Hello(BaseRequestHandler):
    """The server of another program."""

    def handle(self) -> None:
        with suppress(ConnectionError):
            self.request.sendall(b"220 hello\r\n")
            while self.request.recv(1024):  # (a reset would discard the hello)
                pass


@pytest.fixture(scope="module")
def places(folder: Path) -> Iterator[dict[str, str]]:
    """The ports of two servers, of another program, and of a listener."""
    tls = ["--tls-cert", "cert.pem", "--tls-key", "key.pem", "--token", "secret"]
    with ExitStack() as stack:
        words = ["serve", "--size=64x36", "--web=0", "--tcp=0"]
        servers = [start(*words, *more, cwd=folder, stderr=None) for more in ([], tls)]
        for server in servers:
            stack.enter_context(server)
            stack.callback(server.kill)
        busy = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        foreign = stack.enter_context(ThreadingTCPServer(("127.0.0.1", 0), Hello))
        thread = threading.Thread(target=foreign.serve_forever, args=(0.01,))
        thread.start()
        stack.callback(thread.join)
        stack.callback(foreign.shutdown)
        ports = [str(busy.getsockname()[1]), str(foreign.server_address[1])]
        for server in servers:
            assert server.stdout is not None
            for _ in ("web", "tcp"):
                match = re.search(r"127\.0\.0\.1:(\d+)", server.stdout.readline())
                assert match is not None
                ports.append(match[1])
        names = ("busy", "foreign", "web", "tcp", "tls_web", "tls")
        yield dict(zip(names, ports, strict=True))


def getaddrinfo(
    host: Any, *arguments: Any, ask: Any = socket.getaddrinfo, **details: Any
) -> Any:
    """Look a name up; fail for `NAMES_OF_NOBODY` without a name server."""
    if host in NAMES_OF_NOBODY:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    return ask(host, *arguments, **details)


@pytest.fixture
def run_in(
    places: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[[str], tuple[object, str]]:
    """Run a command line in this process; return its exit status and its message."""
    monkeypatch.setattr(greeting, "PATIENCE", LATER)
    monkeypatch.setattr(greeting, "LONGEST", LATER)
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    def run(line: str) -> tuple[object, str]:
        words = [word.format_map(places) for word in shlex.split(line)]
        began = time.monotonic()
        with pytest.raises(SystemExit) as exit_:
            raise SystemExit(cli.main(words))
        assert time.monotonic() - began < SOON
        said = capsys.readouterr().err
        assert said.startswith("aiozerocopy")
        assert said.count("\n") == 1
        return exit_.value.code, said

    return run


@pytest.mark.parametrize("command", sorted({line.split()[0] for line, *_ in CASES}))
def test_what_no_machine_could_do(
    command: str, run_in: Callable[[str], tuple[object, str]]
) -> None:
    for line, status, says in CASES:
        if status == 2 and line.split()[0] == command:
            code, said = run_in(line)
            assert (code, says in said) == (2, True), (line, said)


FAILING = [(line, says) for line, status, says in CASES if status == 1]


@pytest.mark.parametrize(
    ("line", "says"), FAILING, ids=[each[:60] for each, _ in FAILING]
)
def test_what_fails_on_this_machine(
    line: str,
    says: str,
    run_in: Callable[[str], tuple[object, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not says.startswith(EXPLAINED):
        monkeypatch.setattr(client, "SILENCE", LATER)
    code, said = run_in(line)
    assert (code, says in said) == (1, True), said


OF_FFMPEG = (
    "out.xyz",
    "crf=many",
    "preset=none",
    "nowhere.mp4 ",
    "serve text.txt --tcp",
)


@pytest.mark.parametrize(
    ("line", "says"),
    [each for each in FAILING if any(it in each[0] for it in OF_FFMPEG)],
)
def test_what_another_ffmpeg_says(
    line: str,
    says: str,
    run_in: Callable[[str], tuple[object, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Only the cause is shown: from version 7 on, FFmpeg reports consequences, too."""
    its = pytest.importorskip("imageio_ffmpeg").get_ffmpeg_exe()
    (tmp_path / "ffmpeg").symlink_to(its)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    code, said = run_in(line)
    assert (code, says in said) == (1, True), said
    assert not re.search("Error opening|Terminating|Task finished|Nothing was", said)
    assert ending.in_one_line("Task finished") == "Task finished"  # if that is all


# ---- faults of the machine ----------------------------------------------------------


@pytest.mark.parametrize("command", ["demo", "serve there.mp4 --tcp 0"])
def test_no_ffmpeg_at_all(
    command: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert cli.main(command.split()) == 1
    said = capsys.readouterr().err
    assert "install FFmpeg, or pip install 'imageio-ffmpeg>=" in said
    assert said.count("\n") == 1


# ---- faults that need a process of their own ----------------------------------------


def run(
    arguments: str, stdout: int | None = None, shell: str = "$A"
) -> tuple[int, str]:
    """Return a command's exit status and stderr; $A in `shell` is the command."""
    done = subprocess.run(
        ["bash", "-c", shell.replace("$A", shlex.join([*PROGRAM, *arguments.split()]))],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        timeout=15,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.fixture(
    params=[pytest.param("", marks=pytest.mark.slow), "1"],
    ids=["buffered", "unbuffered"],
)
def _buffering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", request.param)


@pytest.mark.parametrize("arguments", ["doctor", "--help", "demo --help", "serve"])
def test_standard_output_that_is_closed(arguments: str) -> None:
    status, said = run(arguments, shell="$A >&-")
    assert status == 1
    assert re.fullmatch("aiozerocopy.*: standard output is closed.*\n", said), said


def test_standard_error_that_is_closed() -> None:
    assert run("view 127.0.0.1", shell="$A 2>&-") == (2, "")
    assert run("view 127.0.0.1:1", shell="$A 2>&-") == (1, "")


@pytest.mark.usefixtures("_buffering")
@pytest.mark.parametrize("arguments", ["doctor --json", "--help", "serve --tcp 0"])
def test_standard_output_that_is_full(arguments: str) -> None:
    with open("/dev/full", "w") as full:
        status, said = run(arguments, full.fileno())
    assert status == 1
    assert re.fullmatch("aiozerocopy.*: standard output: No space.*\n", said), said


@pytest.mark.slow
@pytest.mark.usefixtures("_buffering")
@pytest.mark.parametrize("arguments", ["doctor", "--help", "serve --tcp 0"])
def test_reader_that_has_enough_is_no_fault(arguments: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        assert run(arguments, writer) == (141, "")
    finally:
        os.close(writer)


@pytest.mark.slow
@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="only root has the capability that is taken away here",
)
@pytest.mark.parametrize("where", ["--web", "--tcp"])
def test_privileged_port(where: str) -> None:
    without = "setpriv --bounding-set -net_bind_service $A"
    status, said = run(f"serve {where} 80", shell=without)
    assert status == 1
    assert "ports below 1024 are for root" in said
    assert said.count("\n") == 1
