"""The FFmpegs of this machine, and frames for them.

Tests run with the FFmpeg on PATH and with the one of imageio-ffmpeg, which differ by
years.
"""

import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from links import is_gone as is_gone

from aiozerocopy.ffmpeg import Reader, binary

SIZE = WIDTH, HEIGHT = 64, 48
SHAPE = (HEIGHT, WIDTH, 3)
NULL = ["-f", "null", "-"]
LOSSLESS: dict[str, Any] = {"codec": "ffv1", "options": ["-pix_fmt", "bgr0"]}


# ---- which FFmpeg ------------------------------------------------------------------

FOUND = {"path": shutil.which("ffmpeg"), "packaged": binary._packaged()}


@pytest.fixture(scope="module", autouse=True)
def quick_ffmpeg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Put imageio-ffmpeg's FFmpeg first on PATH, as it starts four times as fast.

    This affects the modules that import it.
    """
    if FOUND["packaged"] is None:
        yield
        return
    folder = tmp_path_factory.mktemp("bin")
    (folder / "ffmpeg").symlink_to(FOUND["packaged"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(folder), prepend=os.pathsep)
        yield


# The quick tests need only one FFmpeg: the one that starts faster, if it is there.
_SLOW = pytest.mark.slow if FOUND["packaged"] else ()


_EACH = [pytest.param("path", marks=_SLOW), "packaged"]


@pytest.fixture(params=_EACH)
def ffmpeg(request: pytest.FixtureRequest) -> str:
    """The FFmpeg on PATH, and the one of imageio-ffmpeg."""
    return needed(request.param)


def needed(name: str) -> str:
    found = FOUND[name]
    if found is None:
        pytest.skip(f"no FFmpeg ({name})")
    return found


@pytest.fixture
def pretend(tmp_path: Path) -> Callable[[str], str]:
    """Make a program that is called like FFmpeg, with another behaviour."""

    def make(body: str) -> str:
        path = tmp_path / "pretended"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


# ---- frames ------------------------------------------------------------------------


def picture(number: int, shape: tuple[int, ...] = SHAPE) -> np.ndarray[Any, Any]:
    """Return a frame that compresses badly and differs from every other one."""
    return np.random.default_rng(number).integers(0, 256, shape, "u1")


async def frames_of(
    source: Path | Sequence[str], pix_fmt: str = "rgb24", **options: Any
) -> list[bytes]:
    async with Reader(source, pix_fmt, **options) as video:
        frames: list[bytes] = []
        async for frame in video:
            with frame:
                frames.append(bytes(frame.view))
    return frames


def seen(
    film: Path | bytes, size: tuple[int, int], ffmpeg: str = "ffmpeg"
) -> np.ndarray[Any, Any]:
    """Return the middle pixel of each frame, as FFmpeg shows it by the film's tags."""
    data = film if isinstance(film, bytes) else None
    source = "-" if data else str(film)
    rgb = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-fps_mode", "passthrough", "-"]
    command = [ffmpeg, "-v", "error", "-i", source, *rgb]
    shown = subprocess.run(command, input=data, capture_output=True, check=True)
    width, height = size
    frames = np.frombuffer(shown.stdout, np.uint8).reshape(-1, height, width, 3)
    return frames[:, height // 2, width // 2]
