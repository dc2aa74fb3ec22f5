"""`capture` and `serve screen`, as users run them."""

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from command import run, start
from ffmpegs import frames_of
from ffmpegs import quick_ffmpeg as quick_ffmpeg
from xserver import COLOURS, SIZE, Painter, Server, as_bytes, x_server

np = pytest.importorskip("numpy")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with x_server() as server:
        yield server


def first_colours(path: Path, size: tuple[int, int] = SIZE) -> list[list[int]]:
    """Return the colour of the first pixel of each frame."""
    frames = anyio.run(frames_of, path, "rgb24")
    assert {len(frame) for frame in frames} == {size[0] * size[1] * 3}
    return [[*frame[:3]] for frame in frames]


@pytest.mark.parametrize(
    "options",
    [
        [],
        pytest.param(["--damage"], marks=pytest.mark.slow),
        pytest.param(["--damage", "--cursor"], marks=pytest.mark.slow),
    ],
)
def test_film_has_its_length_and_its_colours(
    options: list[str], server: Server, tmp_path: Path
) -> None:
    """This holds even if the screen does not change."""
    path = tmp_path / "screen.mp4"
    with Painter(server.name) as painter:
        painter.window(COLOURS[4], 0, 0, *SIZE)
        painter.point(100, 100)
        status, said, complained = run(
            "capture", "-o", path, "--display", server.name, "--seconds", 0.5, *options
        )
    assert (status, complained) == (0, "")
    begin, end = said.splitlines()
    assert begin == f"recording 160x120+0+0 of the display {server.name}"
    end, _, _ = end.partition("; FFmpeg was too slow")  # on a busy machine
    assert end == f"{path}: 15 frames, 0.50 s"
    found = first_colours(path)
    assert len(found) == 15
    assert abs(np.array(found) - as_bytes(COLOURS[4], "rgb")).max() <= 3


@pytest.mark.slow
def test_odd_region_is_padded_without_a_word(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "screen.mp4"
    options = ["--seconds", 0.1, "--region", "31x21+5+7"]
    status, _, complained = run(
        "capture", "-o", path, "--display", server.name, *options
    )
    assert (status, complained) == (0, "")
    assert len(first_colours(path, (32, 22))) == 3


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_film_is_complete(
    number: signal.Signals, server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "screen.mp4"
    with start("capture", "-o", path, "--display", server.name) as process:
        assert process.stdout is not None
        assert "Ctrl-C ends it" in process.stdout.readline()
        process.send_signal(number)
        _, complained = process.communicate()
    assert process.returncode == 128 + number
    match = re.fullmatch(
        rf"aiozerocopy capture: interrupted: {path}: "
        r"(\d+) frames?, [\d.]+ s(; FFmpeg was .*)?\n",
        complained,
    )
    assert match is not None, complained
    assert len(first_colours(path)) == int(match[1])


@pytest.mark.slow
def test_server_that_dies_leaves_the_film(tmp_path: Path) -> None:
    path = tmp_path / "screen.mp4"
    with x_server() as server:
        with start("capture", "-o", path, "--display", server.name) as process:
            assert process.stdout is not None
            process.stdout.readline()
            server.kill()
            _, complained = process.communicate()
    assert process.returncode == 1
    assert complained == (
        f"aiozerocopy capture: the X server of {server.name} has gone\n"
    )
    assert first_colours(path)


@pytest.mark.slow
@pytest.mark.parametrize("source", [["screen"], ["--source", "screen"]])
def test_screen_is_served(source: list[str], server: Server, tmp_path: Path) -> None:
    path = tmp_path / "film.mkv"
    place = ["--unix", tmp_path / "frames", "--display", server.name]
    with Painter(server.name) as painter:
        painter.window(COLOURS[5], 0, 0, *SIZE)
        with start("serve", *source, *place) as serving:
            assert serving.stdout is not None
            serving.stdout.readline()
            encode = "ffmpeg -v error -f rawvideo -pixel_format {pix_fmt} "
            encode += f"-video_size {{size}} -i - -c:v ffv1 -pix_fmt bgr0 {path}"
            place = [tmp_path / "frames", "--frames", 5, "--to", encode]
            status, _, complained = run("view", *place)
            # (a busy machine may be late with its first frame)
            assert (status, re.sub(".*no frames yet\n", "", complained)) == (0, "")
            serving.send_signal(signal.SIGINT)
            assert serving.communicate()[1] == "aiozerocopy serve: interrupted\n"
    assert first_colours(path) == [as_bytes(COLOURS[5], "rgb")] * 5
