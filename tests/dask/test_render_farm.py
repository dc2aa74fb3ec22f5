"""examples/render_farm.py: losses halfway cost no frame."""

import functools
import sys
from pathlib import Path
from typing import Any

import anyio
import ffmpegs
import pytest
import scripts
from ffmpegs import quick_ffmpeg  # noqa: F401
from links import linux_only

pytest.importorskip("distributed", reason="needs Dask")
np = pytest.importorskip("numpy")

SUPPORT = Path(__file__).parents[1] / "support"
FRAMES = 60
pytestmark = [linux_only, pytest.mark.slow, pytest.mark.timeout(60)]


@pytest.mark.parametrize("loss", ["worker", "scheduler"])
def test_farm_loses_no_frame(loss: str, tmp_path: Path) -> None:
    """The film has each frame once, in order."""
    film = tmp_path / "film.mkv"
    options = f"--size 64x48 --frames {FRAMES} --range 4 --ahead 4"
    program = [str(SUPPORT / "farm_losses.py"), loss, str(film), *options.split()]
    environment = scripts.environment()
    scripts.output([sys.executable, *program], cwd=tmp_path, env=environment)
    pictures = anyio.run(ffmpegs.frames_of, film)
    assert [nearest(picture) for picture in pictures] == list(range(FRAMES))


def nearest(picture: bytes) -> int:
    """Return the number of the frame that is most like this picture."""
    pixels = np.frombuffer(picture, "u1").reshape(48, 64, 3).astype("f4")
    differences = np.abs(reference() - pixels).mean(axis=(1, 2, 3))
    return int(differences.argmin())


@functools.cache
def reference() -> Any:
    """Draw all frames."""
    sys.path.insert(0, str(SUPPORT))
    from farm_losses import example

    return example().draw(range(FRAMES), (64, 48)).astype("f4")
