"""Every program in examples/ runs, and does in a few seconds what it says."""

import contextlib
import functools
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import pytest
from links import free_port, linux_only
from scripts import environment, ran
from xserver import x_server

from aiozerocopy.ffmpeg import Reader, find_ffmpeg

pytest.importorskip("numpy")  # its threads exist before each test

EXAMPLES = Path(__file__).parents[1] / "examples"
# These two need each other: tests/net/test_client.py runs both.
TOGETHER = {"serve_frames", "view_frames"}
PROGRAMS = sorted(path for path in EXAMPLES.glob("*.py") if path.stem not in TOGETHER)


class Example(NamedTuple):
    """Arguments that end it soon, its needs, its output, and its film's frames."""

    arguments: str = ""  # {folder} is an empty folder, in which it also runs
    needs: str = ""
    says: str = ""
    frames: int = 0


FOR_A_WHILE = "--seconds 0.5 --port {port}"
TABLE = {
    "numpy_to_ffmpeg": Example("{folder}/film.mkv 30 64x48", "", "30 frames in ", 30),
    "render_thread": Example("{folder}/film.mkv 30 64x48", "", "30 frames in ", 30),
    "decode_process_encode": Example(says="60 frames of (640, 360) in ", frames=60),
    "live_stream": Example("{folder}/film.ts --seconds 0.5", "", "15 frames sent", 15),
    "render_loop": Example(
        "{folder}/film.mp4 10 64x48", "moderngl", "10 frames as ", 10
    ),
    "from_turbopipe": Example("{folder}/film.mp4", "moderngl", "", 120),
    "web_viewer": Example("--frames 3", "wsproto", "Watch at http"),
    "aiohttp_frames": Example(FOR_A_WHILE, "aiohttp wsproto", "Watch at http"),
    "fastapi_viewer": Example(
        FOR_A_WHILE, "fastapi uvicorn wsproto", "The panel is at http"
    ),
    "live_film_aiohttp": Example(FOR_A_WHILE, "aiohttp", "Watch at http"),
    "live_film_fastapi": Example(FOR_A_WHILE, "fastapi uvicorn", "Watch at http"),
    "stream_server": Example(
        "--seconds 0.4 --port {port} --file {folder}/film.ts",
        "h11",
        "Watch at http",
        10,
    ),
    "render_farm": Example(
        "{folder}/film.mp4 --size 64x48 --frames 30 --workers 1",
        "distributed",
        "30 frames in ",
        30,
    ),
    "screen_recorder": Example(
        "{folder}/film.mkv --display {display} --seconds 0.5", "", "15 frames in ", 15
    ),
}
QUICK = ("numpy_to_ffmpeg", "live_stream", "web_viewer")


def run(
    path: Path, folder: Path, *arguments: str, seconds: float = 18, **settings: str
) -> str:
    """Run an example that must exit with 0 and an empty stderr; return its output."""
    command = [sys.executable, "-W", "error", path, *arguments]
    done = ran(command, cwd=folder, env=environment(**settings), timeout=seconds)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


async def frames_in(film: Path, *, is_ours: bool = False) -> int:
    """Count a film's frames; if it is ours, its colours must be tagged."""
    async with Reader(film, "gray", size=(16, 16), copy=True) as video:
        if is_ours:
            assert re.search(r"Input #0(.|\n)* yuv420p\(tv, bt709[,)]", video.log)
        return len([picture async for picture in video])


@pytest.fixture(scope="module")
def display() -> Iterator[str]:
    """The name of an X server's display; "" where Xvfb is missing."""
    if shutil.which("Xvfb") is None:
        yield ""
        return
    with x_server() as server:
        yield server.name


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=() if path.stem in QUICK else pytest.mark.slow)
        for path in PROGRAMS
    ],
    ids=lambda path: path.stem,
)
def test_example(path: Path, display: str, tmp_path: Path) -> None:
    name = path.stem
    if name == "screen_recorder" and not display:
        pytest.skip("needs Xvfb")
    assert path.read_text().startswith('"""')  # it has a docstring
    example = TABLE.get(name, Example())
    for needed in example.needs.split():
        pytest.importorskip(needed)
    port = free_port()
    places = {"folder": tmp_path, "port": port, "display": display}
    arguments = example.arguments.format(**places).split()
    assert example.says in run(path, tmp_path, *arguments)
    if example.frames:
        [film] = tmp_path.glob("film.*")
        is_ours = name != "stream_server"  # stream_server shows FFmpeg's test picture
        count = functools.partial(frames_in, film, is_ours=is_ours)
        assert anyio.run(count) == example.frames


def is_listening(port: int) -> bool:
    """Ask the kernel, as the example serves only one connection."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return any(
        line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"
        for line in lines
    )


@contextmanager
def started(name: str, *arguments: str) -> Iterator[tuple[Any, str]]:
    """An example that listens, and its address; it is killed if it has not ended."""
    for needed in TABLE[name].needs.split():
        pytest.importorskip(needed)
    port = free_port()
    program = [str(EXAMPLES / f"{name}.py"), "--port", str(port), *arguments]
    server = subprocess.Popen(
        [sys.executable, "-W", "error", *program],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not is_listening(port):
            assert server.poll() is None
        yield server, f"http://127.0.0.1:{port}"
    finally:
        server.kill()
        server.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["live_film_aiohttp", "live_film_fastapi"])
def test_live_film_in_a_browser(name: str, tmp_path: Path) -> None:
    """The films of both viewers play, and end with the example."""
    with started(name, "--seconds", "2") as (server, address):
        film = f"{address}/film.mp4"
        viewers = [urllib.request.urlopen(film, timeout=15) for _ in range(2)]
        films = [viewer.read() for viewer in viewers]
        _, complained = server.communicate(timeout=10)
    assert (complained, server.returncode) == ("", 0)
    for film in films:
        (tmp_path / "film.mp4").write_bytes(film)
        assert 0 < anyio.run(frames_in, tmp_path / "film.mp4") <= 60


@contextmanager
def serving(name: str) -> Iterator[str]:
    """The address of an example that listens until Ctrl-C."""
    with started(name) as (server, address):
        yield address
        server.send_signal(signal.SIGINT)
        _, complained = server.communicate(timeout=10)
    # (before 3.11, anyio.run raises a CancelledError instead)
    if sys.version_info >= (3, 11) or not complained.endswith("CancelledError\n"):
        assert complained == ""


@pytest.mark.slow
def test_aiohttp_frames_arrive(tmp_path: Path) -> None:
    with serving("aiohttp_frames") as address:
        page = urllib.request.urlopen(f"{address}/viewer", timeout=15)
        assert b"<title>A bar</title>" in page.read()
        path = EXAMPLES / "aiohttp_frames.py"
        arguments = ("--watch", f"{address}/frames", "--frames", "3")
        said = run(path, tmp_path, *arguments).splitlines()
    means = {line.rpartition(" ")[2] for line in said[:-1]}
    assert (means, said[-1]) == ({"31.15"}, "3 frames received")


@pytest.mark.slow
def test_fastapi_viewer_is_controlled() -> None:
    with serving("fastapi_viewer") as address:
        for path, seen in (("/", b"<iframe"), ("/viewer", b"<title>Pendulum</title>")):
            assert seen in urllib.request.urlopen(address + path, timeout=15).read()
        request = urllib.request.Request(f"{address}/speed?value=9", method="PUT")
        assert urllib.request.urlopen(request, timeout=15).read() == b'{"speed":5.0}'


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_stream_server_shows_what_it_files(tmp_path: Path) -> None:
    """Viewers that leave or are stuck do not harm the others."""
    pytest.importorskip("h11")
    film = tmp_path / "film.ts"
    arguments = ("stream_server", "--seconds", "2", "--file", str(film))
    with started(*arguments) as (server, address):
        viewers = [urllib.request.urlopen(f"{address}/", timeout=15) for _ in range(4)]
        viewers.pop().close()
        stuck = viewers.pop()
        seen = [viewer.read() for viewer in viewers]
        stuck.close()
        said, complained = server.communicate(timeout=10)
    assert (complained, server.returncode) == ("", 0)
    assert said.count(" bytes, end") >= 3  # of two viewers, and of the film
    whole = film.read_bytes()
    for one in seen:
        assert len(one) > 188
        assert len(one) % 188 == 0
        assert whole.endswith(one)


@linux_only
def test_stream_server_whose_ffmpeg_is_killed_within_a_packet(tmp_path: Path) -> None:
    pytest.importorskip("h11")
    program = tmp_path / "ffmpeg"
    program.write_text("#!/bin/sh\nprintf half\nkill -KILL $$\n")
    program.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    command = [sys.executable, EXAMPLES / "stream_server.py", "--port", free_port()]
    done = ran(command, env=environment(PATH=path), timeout=18)
    assert (done.stderr, done.returncode) == ("FFmpeg failed: -9\n", 1)


@pytest.mark.slow
def test_ctrl_c_ends_a_live_film_that_somebody_watches() -> None:
    with serving("live_film_aiohttp") as address:
        viewer = urllib.request.urlopen(f"{address}/film.mp4", timeout=15)
        assert viewer.read(1)
    viewer.close()


# The path that a viewer of each server requests; /raw is a WebSocket of a page.
WATCHED = {
    "web_viewer": "/raw",
    "aiohttp_frames": "/frames",
    "fastapi_viewer": "/viewer/raw",
    "live_film_aiohttp": "/film.mp4",
    "live_film_fastapi": "/film.mp4",
    "stream_server": "/",
}
WEBSOCKET = (
    "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13"
    "\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
)
RESET = struct.pack("ii", 1, 0)  # SO_LINGER


@linux_only
@pytest.mark.slow
@pytest.mark.parametrize("name", WATCHED)
def test_viewers_leave_and_sigterm_ends_it(name: str) -> None:
    """Neither is an error; other viewers continue, and no child remains."""
    with started(name) as (server, address), contextlib.ExitStack() as viewers:
        host, port = address.removeprefix("http://").split(":")
        asks = f"GET {WATCHED[name]} HTTP/1.1\r\nHost: localhost"
        asks += WEBSOCKET * WATCHED[name].endswith("/raw") + "\r\n\r\n"

        def watch() -> socket.socket:
            viewer = socket.create_connection((host, int(port)), timeout=15)
            viewers.enter_context(viewer).sendall(asks.encode())
            assert viewer.recv(12).startswith(b"HTTP/1.1 ")
            return viewer

        leaver, other = watch(), watch()
        assert leaver.recv(1 << 16)
        leaver.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        leaver.close()
        for _ in range(10):  # (the first bytes may be from before the close)
            assert other.recv(1 << 20)
        listed = Path(f"/proc/{server.pid}/task/{server.pid}/children")
        children = listed.read_text().split()
        server.send_signal(signal.SIGTERM)
        _, complained = server.communicate(timeout=15)
        while any(Path(f"/proc/{child}").exists() for child in children):
            time.sleep(0.05)
    assert "Traceback" not in complained
    assert server.returncode == -signal.SIGTERM


@linux_only
@pytest.mark.slow
def test_live_stream_to_a_server(tmp_path: Path) -> None:
    """Another FFmpeg listens, and counts the received pictures and sounds."""
    port = free_port()
    url = f"rtmp://127.0.0.1:{port}/live/film"
    listen = ["-v", "error", "-nostdin", "-listen", "1", "-i", url]
    count = ["-map", "0:v", "-map", "0:a", "-f", "framecrc", "-"]
    server = subprocess.Popen(
        [find_ffmpeg(), *listen, *count], stdout=subprocess.PIPE, text=True
    )
    try:
        while not is_listening(port):
            assert server.poll() is None
        said = run(EXAMPLES / "live_stream.py", tmp_path, url, "--seconds", "1")
        assert "30 frames sent" in said
        counted = server.communicate(timeout=10)[0].splitlines()
    finally:
        server.kill()
        server.communicate()
    kinds = [line[0] for line in counted if line[0] != "#"]
    assert kinds.count("0") == 30
    assert kinds.count("1") > 15


@pytest.mark.slow
@pytest.mark.timeout(120)
@linux_only
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_vectors_from_c_and_rust(tmp_path: Path) -> None:
    """Each receiver checks every value; without cargo, Rust is left out."""
    program = EXAMPLES / "vectors" / "vectors.py"
    said = run(program, tmp_path, "--count", "3000", seconds=110)
    rows = [re.split(r"  +", line.strip()) for line in said.splitlines()[1:]]
    has_cargo = shutil.which("cargo") is not None
    wanted = [
        [f"{language} to Python", way, "3,000"]
        for language in (("C", "Rust") if has_cargo else ("C",))
        for way in ("ring", "pipe", "UNIX socket")
    ]
    if has_cargo:
        wanted.append(["Python to Rust", "ring", "3,000"])
    else:
        assert "no cargo" in rows.pop()[0]
    assert [row[:3] for row in rows] == wanted


def test_table_has_no_others() -> None:
    assert set(TABLE) <= {path.stem for path in PROGRAMS}
