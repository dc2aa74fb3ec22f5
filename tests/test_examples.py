"""Every program in examples/ does in a few seconds what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
# These two need each other: tests/test_client.py has both.
TOGETHER = {"serve_frames", "view_frames"}
PROGRAMS = sorted(path for path in EXAMPLES.glob("*.py") if path.stem not in TOGETHER)

# What makes each end soon; {folder} is an empty one, where it also runs.
ARGUMENTS = {
    "numpy_to_ffmpeg": "{folder}/film.mkv --size 64x48 --frames 30",
    "decode_process_encode": "",
    "live_stream": "{folder}/film.ts --seconds 0.5",
    "render_loop": "{folder}/film.mp4 --size 64x48 --frames 10",
    "from_turbopipe": "{folder}/film.mp4",
    "web_viewer": "--frames 3",
}
NEEDED = {
    "render_loop": "moderngl",
    "from_turbopipe": "moderngl",
    "web_viewer": "wsproto",
}
SAID = {
    "numpy_to_ffmpeg": "30 frames in ",
    "decode_process_encode": "60 frames of (640, 360) in film.mp4",
    "live_stream": "15 frames sent",
    "web_viewer": "Watch at http",
}
NO_FILM = {"web_viewer"}


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_example(path: Path, tmp_path: Path) -> None:
    name = path.stem
    if needed := NEEDED.get(name):
        pytest.importorskip(needed)
    arguments = ARGUMENTS.get(name, "").format(folder=tmp_path).split()
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path), *arguments],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=18,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert SAID.get(name, "") in done.stdout
    if name in ARGUMENTS.keys() - NO_FILM:
        films = list(tmp_path.glob("film.*"))
        assert [film.stat().st_size > 500 for film in films] == [True]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_example_says_what_it_is(path: Path) -> None:
    """On its first lines; and it can be imported without running."""
    assert path.read_text().startswith('"""')
    assert 'if __name__ == "__main__":' in path.read_text()


def test_table_has_no_others() -> None:
    names = {path.stem for path in PROGRAMS}
    assert (ARGUMENTS.keys() | NEEDED.keys() | SAID.keys()) - names == set()
