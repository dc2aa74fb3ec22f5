"""`serve` and `view`, as two programs that find each other."""

import re
import shlex
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from command import PROGRAM, Terminal, environment, run, start
from scripts import ran

import aiozerocopy as azc
from aiozerocopy.commands import serve
from aiozerocopy.commands.options import Address
from aiozerocopy.commands.serve import FrameSource
from aiozerocopy.commands.view import Obstacle, Viewer, command_for
from aiozerocopy.ffmpeg.layouts import layout_of

np = pytest.importorskip("numpy")  # its threads exist before each test

SAID = re.compile("^(in a browser|by a program|for download) +")
WATCHING = re.compile(r"watching +\d+\n")
SMALL = ["--size=64x36", "--fps=60"]


@contextmanager
def serving(
    *arguments: str, addresses: int = 1, complaint: str = ""
) -> Iterator[list[str]]:
    """Run a server; yield the addresses that it prints; end it by Ctrl-C.

    ``complaint`` is a pattern of its further messages.
    """
    is_film = not arguments[0].startswith("--")
    with start("serve", *SMALL[is_film:], *arguments) as server:
        assert server.stdout is not None
        try:
            lines = [server.stdout.readline() for _ in range(addresses)]
            yield [SAID.sub("", line.strip()) for line in lines]
        finally:
            server.send_signal(signal.SIGINT)
            said, complained = server.communicate()
        end = "aiozerocopy serve: interrupted\n"
        said = WATCHING.sub("", said)
        assert said == ""
        assert re.fullmatch(complaint + end, complained)
        assert server.returncode == 130


def view(printed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command that `serve` has printed, with more arguments."""
    command = [*shlex.split(printed), *arguments]
    done = ran(command, env=environment(), timeout=15)
    if done.returncode == 0:  # a busy machine may be late with its first frame
        done.stdout = re.sub(".* fps .*\n", "", done.stdout)
        done.stderr = re.sub(".*no frames yet.*\n", "", done.stderr)
    return done


def test_frames_arrive_over_tcp_unix_and_in_the_browser(tmp_path: Path) -> None:
    ports = ["--web", "0", "--tcp", "0", "--unix", str(tmp_path / "frames")]
    with serving(*ports, addresses=3) as (url, tcp, unix):
        for address in (tcp, unix):
            done = view(address, "--frames", "12")
            assert (done.returncode, done.stderr) == (0, "")
            assert re.fullmatch(r"12 frames, 0 MB, \d+ missed\n", done.stdout)
        with urllib.request.urlopen(f"{url}healthz") as answer:
            assert answer.read() == b"ok\n"


@pytest.mark.anyio
async def test_viewers_are_counted_when_they_change(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "SECOND", 0.0)
    counts = iter([0, 2, 2, 1, 1])
    with pytest.raises(RuntimeError):  # (a StopIteration inside of a coroutine)
        await serve.tell_viewers(lambda: next(counts))
    assert capsys.readouterr().out == "watching       2\nwatching       1\n"


@pytest.mark.slow
def test_page_has_the_films_title_and_the_servers_names(tmp_path: Path) -> None:
    film = Path(short_film(tmp_path)).rename(tmp_path / "a night.mkv")
    options = [str(film), "--web", "0", "--name", "films.example.org"]
    warning = r"refused 127.0.0.1: .* see hosts= \('another.example.org'\)\n"
    with serving(*options, complaint=warning) as (url,):
        request = urllib.request.Request(url, headers={"Host": "films.example.org"})
        with urllib.request.urlopen(request) as answer:
            assert "<title>a night.mkv" in answer.read().decode()
        request.add_header("Host", "another.example.org")
        with pytest.raises(urllib.error.HTTPError, match="403") as refused:
            urllib.request.urlopen(request)
        refused.value.close()


@pytest.mark.slow
def test_film_itself_can_be_downloaded(tmp_path: Path) -> None:
    film = Path(short_film(tmp_path))
    places = ["--web", "0", "--file", "--token", "secret"]
    warning = r"refused 127.0.0.1: it has no token\n"
    with serving(str(film), *places, addresses=2, complaint=warning) as (page, url):
        assert page.endswith("/")  # (the token must not get into logs)
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(url)
        refused.value.close()
        url += "?token=secret"
        with urllib.request.urlopen(url) as answer:
            assert answer.read() == film.read_bytes()
        probe = ["ffprobe", "-v", "error", "-count_frames", "-of", "csv=p=0"]
        entries = ["-show_entries", "stream=nb_read_frames"]
        assert subprocess.check_output([*probe, *entries, url]) == b"3\n"


@pytest.mark.slow
@pytest.mark.parametrize("token", ["secret", "-two words'\"$HOME"])
@pytest.mark.parametrize("place", ["file", "environment"])
def test_a_token_that_no_other_user_sees(
    token: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The printed commands work without the token."""
    places = ["--tcp", "0", "--unix", str(tmp_path / "host:80 frames")]
    if place == "file":
        path = tmp_path / "its token"
        path.write_text(f"\n{token}\nanother\n")
        places += ["--token-file", str(path)]
    else:
        monkeypatch.setenv("AIOZEROCOPY_TOKEN", token)
    with serving(*places, addresses=2) as printed:
        for line in printed:
            assert token not in line
            done = view(line, "--frames", "2")
            assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_terminal_shows_the_link_with_the_token_once(tmp_path: Path) -> None:
    places = ["--web", "0", "--tcp", "0", "--token", "se cret"]
    with Terminal([*PROGRAM, "serve", *SMALL, *places], tmp_path) as terminal:
        terminal.read_until("by a program")
    link = r"in a browser +http://127.0.0.1:\d+/\?token=se\+cret\r\n"
    assert re.search(link, terminal.said)
    assert terminal.said.count("cret") == 1


@pytest.mark.anyio
async def test_films_have_their_colours_and_their_speed(tmp_path: Path) -> None:
    """A film named by a path is opened twice, so a Reader knows its matrix."""
    path = tmp_path / "film.mkv"  # in HD, without tags
    source = "color=0x00C800:s=1280x720:r=10:d=0.5,format=gbrp"
    scale = ["-vf", "scale=out_color_matrix=bt709:flags=accurate_rnd"]
    encode = "-c:v libx264 -qp 0 -preset ultrafast -pix_fmt yuv420p"
    command = ["ffmpeg", "-v", "error", "-f", "lavfi", "-i", source, *scale]
    await anyio.run_process([*command, *encode.split(), str(path)])
    frames = FrameSource(
        Namespace(source=str(path), once=True, ffmpeg_input=None, fps=30)
    )
    count = 0
    async for frame in frames.frames():
        with frame:
            assert frame.array.shape == (720, 1280, 3)
            assert abs(frame.array.astype(int) - (0, 200, 0)).max() <= 2
            count += 1
    assert count == pytest.approx(15, abs=2)
    assert frames.pixel_format == "rgb24"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_encrypted(name: str, host: str, tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    certificate = authority.issue_cert(name)
    key, chain, trusted = (tmp_path / name for name in ("key", "chain", "trusted"))
    certificate.private_key_pem.write_to_path(key)
    certificate.cert_chain_pems[0].write_to_path(chain)
    authority.cert_pem.write_to_path(trusted)
    tls = ["--tls-cert", str(chain), "--tls-key", str(key), "--host", host]
    both = ["--web", "0", "--tcp", "0", *tls]
    said = r"(other machines can reach 0.0.0.0:\d+, without a token\n){2}"
    warning = said if host == "0.0.0.0" else ""
    with serving(*both, addresses=2, complaint=warning) as (url, tcp):
        assert f" {name}:" in tcp
        for more in ([], ["--tls-ca", str(trusted)]):
            done = view(tcp, "--frames", "3", *more)
            assert (done.returncode, done.stderr) == (0, "")
        assert url.startswith("https://")
        context = ssl.create_default_context(cafile=trusted)
        page = f"https://{name}:{url.rpartition(':')[2]}healthz"
        with urllib.request.urlopen(page, context=context) as answer:
            assert answer.read() == b"ok\n"


def short_film(folder: Path) -> str:
    """Make a film of three frames."""
    film = str(folder / "film.mkv")
    made = ["-f", "lavfi", "-i", "testsrc=size=64x36:rate=30", "-frames:v", "3", film]
    subprocess.run(["ffmpeg", "-v", "error", *made], check=True)
    return film


@pytest.mark.slow
def test_film_begins_again_unless_it_is_to_be_shown_once(tmp_path: Path) -> None:
    film = short_film(tmp_path)
    with serving(film, "--tcp", "0") as (tcp,):
        assert view(tcp, "--frames", "7").returncode == 0
    status, _, complained = run("serve", film, "--once", "--tcp", "0")
    assert (status, complained) == (0, "")


@pytest.mark.slow
def test_server_that_is_full() -> None:
    full = "refused 127.0.0.1: all places are taken, or those of its address\n"
    with serving("--tcp", "0", "--max-clients", "1", complaint=full) as (tcp,):
        port = int(tcp.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as first:
            first.recv(1)
            done = view(tcp)
    assert done.returncode == 1
    assert done.stderr.endswith(" without a frame: is it full?\n")


# ---- view alone ---------------------------------------------------------------------


@asynccontextmanager
async def viewer_of(
    give: Callable[[azc.Stream], Awaitable[None]], **options: Any
) -> AsyncIterator[Viewer]:
    """A viewer of a server with this handler."""
    given = dict.fromkeys(("token", "tls", "tls_ca", "to", "reconnect", "frames"))
    async with azc.serve_tcp(give, port=0) as server:
        given |= {"address": Address("127.0.0.1", server.port), **options}
        yield Viewer(Namespace(**given))


@pytest.mark.parametrize("size", [(64, 48), (62, 35), (640, 361), (2, 2)])
@pytest.mark.parametrize(
    "pix_fmt",
    [
        *("rgb24", "bgr0", "rgba64be", "gray", "gray10le", "gbrp", "gbrap12le"),
        *("yuv420p", "yuv420p10le", "nv12", "p010le", "yuva420p", "yuv422p", "yuv444p"),
    ],
)
def test_size_of_each_pixel_format(pix_fmt: str, size: tuple[int, int]) -> None:
    layout = layout_of(pix_fmt, size)
    assert layout is not None
    frame: Any = Namespace(shape=layout.shape, pixel_format=pix_fmt)
    said = command_for(["{pix_fmt}", "-s={size}"], frame)
    assert said == [pix_fmt, f"-s={size[0]}x{size[1]}"]


def test_size_of_other_frames() -> None:
    def said(word: str, pixel_format: str, *shape: int) -> list[str]:
        frame: Any = Namespace(shape=shape, pixel_format=pixel_format)
        return command_for([word], frame)

    assert said("{size} {pix_fmt}", "", 36, 64, 3) == ["64x36 rgb24"]
    assert said("{size}", "uyvy422", 36, 64, 2) == ["64x36"]
    assert said("{size}", "gray", 36, 64, 1) == ["64x36"]
    assert said("{pix_fmt}", "h264", 1000) == ["h264"]
    for pixel_format, shape in (
        ("h264", (1000,)),
        ("yuv420p", (3, 64, 36)),
        ("yuv420p", (55, 64)),  # the rows of no picture
        ("rgb24", (36, 192)),
        ("yuv444p", (0, 64)),
        ("yuv444p", (1, 64)),
    ):
        with pytest.raises(ValueError, match="write it in place of"):
            said("{size}", pixel_format, *shape)


@pytest.mark.anyio
async def test_program_gets_frames_of_one_size(tmp_path: Path) -> None:
    async def give(stream: azc.Stream) -> None:
        sender = azc.FrameSender(stream)
        for size in ("32x20", "32x20", "64x40"):
            width, height = map(int, size.split("x"))
            picture = np.full((height, width, 3), 7, "u1")
            await sender.send(picture, pixel_format="rgb24")
        await stream.aclose()

    path = tmp_path / "frames"
    to = ["sh", "-c", f"echo {{size}}; exec cat >{shlex.quote(str(path))}"]
    async with viewer_of(give, to=to) as viewer:
        with pytest.raises(Obstacle, match="another size or pixel format: run view"):
            await viewer._receive_all()
    assert path.read_bytes() == bytes([7]) * (2 * 32 * 20 * 3)


@pytest.mark.anyio
async def test_missed_frames_are_counted_over_a_restart() -> None:
    connections = 0

    async def give(stream: azc.Stream) -> None:
        nonlocal connections
        sender = azc.FrameSender(stream)
        for _ in range(3):
            await sender.send(bytes(4))
        if connections:  # a new server counts from 0 again
            sender.sequence += 2
            await sender.send(bytes(4))
        connections += 1
        await stream.aclose()

    async with viewer_of(give, reconnect=True, frames=7) as viewer:
        await viewer.run()
    assert (viewer.meter.frames, viewer.meter.missed) == (7, 2)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """The port of a server that accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_that_no_frames_come_is_said_at_once(silent_port: int) -> None:
    with start("view", f"127.0.0.1:{silent_port}") as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            assert said == f"aiozerocopy view: 127.0.0.1:{silent_port}: no frames yet\n"
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()
    assert process.returncode == 130
