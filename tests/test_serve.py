"""`serve` and `view`, as two programs that find each other."""

from __future__ import annotations

import argparse
import os
import re
import signal
import ssl
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import pytest

from aiozerocopy.commands import cli
from aiozerocopy.commands.serve import FrameSource

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("numpy")  # its threads are there before each test

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
SMALL = ["--size", "64x36", "--fps", "60"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-W", "error", "-m", "aiozerocopy", *arguments]


@contextmanager
def serving(*arguments: str, addresses: int = 1) -> Iterator[list[str]]:
    """What a server says where it is; it ends by Ctrl-C, and says nothing more."""
    with subprocess.Popen(
        command("serve", *SMALL, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    ) as server:
        assert server.stdout is not None
        try:
            lines = [server.stdout.readline() for _ in range(addresses)]
            yield [line.split()[-1] for line in lines]
        finally:
            server.send_signal(signal.SIGINT)
            said, complained = server.communicate()
        assert (said, complained, server.returncode) == ("", "", 130)


def view(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("view", *arguments),
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=15,
        check=False,
    )


def test_frames_arrive_over_tcp_unix_and_in_the_browser(tmp_path: Path) -> None:
    ports = ["--web", "0", "--tcp", "0", "--unix", str(tmp_path / "frames")]
    with serving(*ports, addresses=3) as (url, tcp, unix):
        for address in (tcp, unix):
            done = view(address, "--frames", "12")
            assert (done.returncode, done.stderr) == (0, "")
            assert re.fullmatch(r"12 frames, 0 MB, \d+ missed\n", done.stdout)
        with urllib.request.urlopen(f"{url}healthz") as answer:
            assert answer.read() == b"ok\n"


def test_frames_are_piped_on(tmp_path: Path) -> None:
    film = tmp_path / "film.mkv"
    encode = "ffmpeg -v error -f rawvideo -pixel_format {pix_fmt} -video_size {size} "
    with serving("--tcp", "0") as (tcp,):
        done = view(tcp, "--frames", "10", "--to", f"{encode} -i - -c:v ffv1 {film}")
        assert (done.returncode, done.stderr) == (0, "")
    probe = ["ffprobe", "-v", "error", "-count_frames", "-show_entries"]
    said = subprocess.run(
        [*probe, "stream=width,height,nb_read_frames", "-of", "csv=p=0", str(film)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == "64,36,10"


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize(
    ("size", "options"),
    [
        ((1280, 720), "-c:v libx264 -qp 0 -preset ultrafast -pix_fmt yuv420p"),
        ((161, 91), "-c:v ffv1 -pix_fmt yuv420p"),
        ((160, 90), "-c:v ffv1 -pix_fmt yuv420p10le"),
        ((160, 90), "-c:v png -pix_fmt rgba"),
    ],
    ids=["HD without tags", "odd", "10 bits", "alpha"],
)
async def test_films_have_their_colours(
    size: tuple[int, int], options: str, tmp_path: Path
) -> None:
    """By its path the film opens twice, so a Reader knows its matrix as players do."""
    path = tmp_path / "film.mov" if "png" in options else tmp_path / "film.mkv"
    matrix = "bt709" if size == (1280, 720) else "bt601"
    source = f"color=0x00C800:s={size[0]}x{size[1]}:r=30:d=0.1,format=gbrp"
    scale = ["-vf", f"scale=out_color_matrix={matrix}:flags=accurate_rnd"]
    if "rgba" in options:
        scale = []
    command = ["ffmpeg", "-v", "error", "-f", "lavfi", "-i", source, *scale]
    await anyio.run_process([*command, *options.split(), str(path)])
    named = argparse.Namespace(source=str(path), loop=False, ffmpeg_input=None)
    frames = FrameSource(named)
    count = 0
    async for frame in frames.frames():
        with frame:
            assert frame.array.shape == (size[1], size[0], 3)
            drawn = frame.array[:-1, :-1]  # (FFmpeg 5.1 spoils the corner of odd ones)
            assert abs(drawn.astype(int) - (0, 200, 0)).max() <= 2
            count += 1
    assert (count, frames.pixel_format) == (3, "rgb24")


@pytest.mark.slow  # the server waits for a token that never comes
def test_who_does_not_know_the_token_gets_nothing() -> None:
    with serving("--tcp", "0", "--token", "secret") as (tcp,):
        assert view(tcp, "--frames", "2", "--token", "secret").returncode == 0
        for wrong in ([], ["--token", "wrong"]):
            done = view(tcp, "--frames", "2", *wrong)
            assert done.returncode == 1
            assert done.stderr.startswith("aiozerocopy view: ")
            assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_encrypted(tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    key, chain, trusted = (tmp_path / name for name in ("key", "chain", "trusted"))
    certificate.private_key_pem.write_to_path(key)
    certificate.cert_chain_pems[0].write_to_path(chain)
    authority.cert_pem.write_to_path(trusted)
    tls = ["--tls-cert", str(chain), "--tls-key", str(key)]
    with serving("--web", "0", "--tcp", "0", *tls, addresses=2) as (url, tcp):
        done = view(tcp, "--frames", "3", "--tls-ca", str(trusted))
        assert (done.returncode, done.stderr) == (0, "")
        for wrong in ([], ["--tls"]):
            done = view(tcp, "--frames", "3", *wrong)
            assert done.returncode == 1
            assert done.stderr.startswith("aiozerocopy view: ")
            assert "Traceback" not in done.stderr
        assert url.startswith("https://")
        context = ssl.create_default_context(cafile=trusted)
        with urllib.request.urlopen(f"{url}healthz", context=context) as answer:
            assert answer.read() == b"ok\n"


@pytest.mark.parametrize(
    "arguments", [["--tls-cert", "/nowhere"], ["--tls-cert", __file__]]
)
def test_certificates_that_are_none(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", "--web", "0", *arguments]) == 1
    assert capsys.readouterr().err.startswith("aiozerocopy serve: ")


def test_a_key_without_its_certificate() -> None:
    with pytest.raises(SystemExit):
        cli.main(["serve", "--tls-key", "key.pem"])


@pytest.mark.parametrize("source", ["/nowhere/film.mp4", __file__])
def test_a_source_that_is_none(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", source, "--tcp", "0"]) == 1
    assert capsys.readouterr().err.startswith("aiozerocopy serve: ")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "/nowhere/socket", "nonsense"])
def test_an_address_where_nobody_is(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["view", address]) == 1
    assert capsys.readouterr().err.startswith("aiozerocopy view: ")
