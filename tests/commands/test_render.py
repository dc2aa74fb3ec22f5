"""The commands `render` and `demo` make videos of shaders."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import numpy as np
import pytest
from command import start
from ffmpegs import frames_of

from aiozerocopy import ffmpeg
from aiozerocopy.commands import cli, demo, progress, scenes
from aiozerocopy.ffmpeg import codecs

SIZE = (64, 36)

# All pixels' red is the frame's number; the picture is not symmetric.
SHADER = """
void mainImage(out vec4 color, in vec2 pixel) {
    float top = step(0.5, pixel.y / iResolution.y);
    color = vec4(float(iFrame) / 255.0, top, step(0.25, iTime), 1.0);
}
"""


@pytest.fixture(scope="module", autouse=True)
def _driver() -> Iterator[None]:
    """The driver's threads and files exist before each test."""
    scene = scenes.ShaderScene(SHADER, SIZE)
    yield
    scene.close()


@pytest.fixture
def shader(tmp_path: Path) -> Path:
    path = tmp_path / "shader.glsl"
    path.write_text(SHADER)
    return path


def render(*arguments: object) -> int:
    return cli.main(["render", *map(str, arguments)])


class TestScenes:
    def test_a_whole_shader_is_taken_as_it_is(self) -> None:
        source = "#version 330\nout vec4 c;\nvoid main() { c = vec4(1.0); }"
        scenes.ShaderScene(source, SIZE).close()

    @pytest.mark.anyio
    async def test_without_opengl_numpy_draws(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "moderngl", None)
        scene = scenes.demo_scene(SIZE, 60)
        assert "NumPy" in scene.name
        with scene.new_pool(2) as pool:
            pictures = set()
            async for frame in scene.frames(pool, 5):
                with frame:
                    pictures.add(bytes(frame.view))
        assert len(pictures) == 5
        scene.close()


class TestRender:
    @pytest.mark.parametrize("pix_fmt", ["rgba", "rgb24"])
    def test_every_frame_is_in_the_file_top_down(
        self,
        pix_fmt: str,
        shader: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        path = tmp_path / "out.mkv"
        options = ["--size", "64x36", "--fps", 60, "--duration", 0.5]
        options += ["--codec", "ffv1", "--pix-fmt", pix_fmt]
        assert render(shader, "-o", path, *options) == 0
        assert "30 frames" in capsys.readouterr().out
        frames = anyio.run(frames_of, path, "rgb24")
        for number, frame in enumerate(frames):
            red, green, blue = np.frombuffer(frame, "u1").reshape(36, 64, 3).T
            assert (red == number).all()
            assert (green[:, :18] == 255).all()
            assert (green[:, 18:] == 0).all()
            assert (blue == (255 if number >= 15 else 0)).all()
        assert len(frames) == 30

    def test_odd_size(self, shader: Path, tmp_path: Path) -> None:
        path = tmp_path / "out.mp4"
        options = ["--size", "63x35", "--duration", "0.1"]
        assert render(shader, "-o", path, *options) == 0

    def test_lines_where_nobody_looks(
        self,
        shader: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(progress, "EVERY", 0.0)
        path = tmp_path / "out.mp4"
        options = ["--size", "64x36", "--fps", 10, "--duration", 0.3]
        assert render(shader, "-o", path, *options) == 0
        title, *lines, end = capsys.readouterr().out.splitlines()
        assert title == str(path)
        assert len(lines) == 3
        assert re.fullmatch(r".*out\.mp4: 2 of 3 frames, [\d,.]+ fps", lines[1])
        assert "out.mp4: 3 frames in" in end

    def test_one_line_where_somebody_looks(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(progress, "OFTEN", 0.0)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", "40")
        with progress.frames_bar("folder/film.mp4", 2, 100) as tick:
            tick("copy")
            tick("copy")
        *lines, wiped = capsys.readouterr().out.split(progress.WIPE)[1:]
        assert wiped == ""
        assert len(lines) == 2
        assert re.fullmatch(r"…?[\w/.]+: 2 of 2 frames, [\d,.]+ fps", lines[1])
        assert max(map(len, lines)) < 40

    def test_words_for_the_encoder(self, shader: Path, tmp_path: Path) -> None:
        output = tmp_path / "out.mkv"
        words = ["--codec", "libx264", "--quality", "lossless", "--preset", "fast"]
        words += ["--ffmpeg-option", "g=7", "--fps", "30000/1001", "--duration", "0.5"]
        assert render(shader, "-o", output, "--size", "64x36", *words) == 0
        facts = ["-show_entries", "stream=r_frame_rate,pix_fmt", "-of", "csv=p=0"]
        assert subprocess.check_output(["ffprobe", "-v", "error", *facts, output]) in (
            b"gbrp,30000/1001\n",
            b"yuv420p,30000/1001\n",
        )

    def test_film_that_is_there_stays(
        self, shader: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        output = tmp_path / "out.mp4"
        output.write_text("mine")
        arguments = [str(shader), "-o", str(output), "--size", "64x36"]
        assert render(*arguments) == 1
        assert "--overwrite replaces it" in capsys.readouterr().err
        assert output.read_text() == "mine"
        assert render(*arguments, "--overwrite") == 0
        assert output.read_bytes()[4:8] == b"ftyp"

    @pytest.mark.parametrize("names", ["there-%03d.png", "file:there-%d.png"])
    def test_pictures_that_are_there_stay(
        self,
        names: str,
        shader: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for name in ("there-002.png", "there-2.jpg", "there-x.png", "there.png"):
            (tmp_path / name).write_text("mine")
        arguments = ["--size", "64x36", "--fps", 10, "--duration", 0.2]
        assert render(shader, "-o", names, *arguments) == 1
        said = capsys.readouterr().err
        assert "there-002.png: File exists (--overwrite replaces it)" in said
        assert {path.read_text() for path in tmp_path.glob("there*")} == {"mine"}
        assert len(list(tmp_path.glob("there*"))) == 4
        assert render(shader, "-o", names, *arguments, "--overwrite") == 0
        assert render(shader, "-o", "other-%d.png", *arguments) == 0
        assert len(list(tmp_path.glob("other-[12].png"))) == 2

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("out.mp4", []),
            ("out.mp4", ["--codec", "auto"]),
            ("out.mkv", ["--ffmpeg-option", "c:v=mpeg4"]),
            ("out.mkv", ["--ffmpeg-option", "f=mpegts"]),
        ],
    )
    def test_encoder_without_presets(
        self,
        name: str,
        words: list[str],
        shader: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The default preset is not for it: an FFmpeg may lack libx264, for one."""
        if name == "out.mp4":
            lacks = anyio.run(codecs.encoders_of, ffmpeg.find_ffmpeg()) - {*codecs.H264}

            async def encoders_of(_: str) -> frozenset[str]:
                return lacks | {"mpeg4"}

            monkeypatch.setattr(codecs, "encoders_of", encoders_of)
            monkeypatch.setattr(codecs, "_HARDWARE", ())
            monkeypatch.setattr(codecs, "_hardware", {})
        path = tmp_path / name
        arguments = ["--size", "64x36", "--duration", "0.1", *words]
        assert render(shader, "-o", path, *arguments) == 0
        assert len(anyio.run(frames_of, path, "gray")) == 6

    def test_options_of_one_name(self, shader: Path, tmp_path: Path) -> None:
        path = tmp_path / "out.mkv"
        words = [f"--ffmpeg-option=metadata={one}" for one in ("title=A", "artist=B")]
        arguments = ["--size", "64x36", "--duration", "0.1", *words]
        assert render(shader, "-o", path, *arguments) == 0
        facts = ["-show_entries", "format_tags=title,ARTIST", "-of", "csv=p=0"]
        said = subprocess.check_output(["ffprobe", "-v", "error", *facts, path])
        assert said == b"A,B\n"

    @pytest.mark.slow
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_what_was_drawn_until_a_signal_is_kept(
        self, number: signal.Signals, shader: Path, tmp_path: Path
    ) -> None:
        output = tmp_path / "out.mp4"
        long = [shader, "-o", output, "--size", "64x36", "--duration", 3600]
        at_once = ["--ffmpeg-option", "g=10", "--ffmpeg-option", "flush_packets=1"]
        with start("render", *long, *at_once, stdout=None) as process:
            try:
                unfinished: list[Path] = []
                while not any(path.stat().st_size for path in unfinished):
                    assert process.poll() is None
                    unfinished = list(tmp_path.glob("out.unfinished-*.mp4"))
                process.send_signal(number)
                _, said = process.communicate()
            finally:
                process.kill()
        assert process.returncode == 128 + number
        kept = re.fullmatch(
            r"aiozerocopy render: interrupted: "
            r".*out\.mp4: ([\d,]+) of 216,000 frames are in it\n",
            said,
        )
        assert kept is not None, said
        count = len(anyio.run(frames_of, output, "gray"))
        assert count == int(kept[1].replace(",", "")) > 0
        assert sorted(path.name for path in tmp_path.glob("out*")) == ["out.mp4"]


def test_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "SIZE", (320, 180))
    path = tmp_path / "demo.mp4"
    arguments = ["--frames", "24", "--checked-frames", "3", "-o", str(path)]
    assert cli.main(["demo", *arguments]) == 0
    said = capsys.readouterr().out
    assert "NumPy" not in said
    assert "FFmpeg decodes 24 of them: all" in said
    assert "hash of the rendered one: yes" in said
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


def test_sheet_of_numbered_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "SIZE", (320, 180))
    arguments = ["--frames", "2", "--checked-frames", "1"]
    assert cli.main(["demo", *arguments, "-o", str(tmp_path / "x-%03d.png")]) == 0
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["x-001.png", "x-002.png", "x-sheet.png"]
