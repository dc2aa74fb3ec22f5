"""A frame has the bytes that FFmpeg expects, in every format that it knows."""

import functools
import os
import re
import subprocess
from pathlib import Path

import anyio
import numpy as np
import pytest
from ffmpegs import NULL, SIZE

from aiozerocopy.ffmpeg import Writer
from aiozerocopy.ffmpeg.layouts import frame_layout

FRAMES = 3


@functools.lru_cache
def formats(ffmpeg: str) -> dict[str, str]:
    """Return all formats that FFmpeg lists, with flags: Input, Output, Hardware, ..."""
    command = [ffmpeg, "-hide_banner", "-loglevel", "error", "-pix_fmts"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^([IOHPB.]{5}) ([a-z]\S+) ", told, re.MULTILINE)
    return {name: flags for flags, name in found}


def taken(
    ffmpeg: str, nbytes: dict[str, int], size: tuple[int, int], folder: Path
) -> dict[str, list[int]]:
    """Return, for each format, the sizes of the frames that FFmpeg reads from zeros."""
    command = [ffmpeg, "-nostdin", "-hide_banner", "-loglevel", "error"]
    for name, n in nbytes.items():
        path = folder / name
        path.touch()
        os.truncate(path, n)
        command += ["-f", "rawvideo", "-pix_fmt", name]
        command += ["-video_size", f"{size[0]}x{size[1]}", "-i", str(path)]
    for number in range(len(nbytes)):
        command += ["-map", str(number)]
    told = subprocess.run(
        [*command, "-f", "framecrc", "-"], capture_output=True, text=True, check=True
    )
    assert told.stderr == ""
    frames: dict[str, list[int]] = {name: [] for name in nbytes}
    lists = list(frames.values())
    for line in told.stdout.splitlines():
        if not line.startswith("#"):
            fields = line.split(",")
            lists[int(fields[0])].append(int(fields[4]))
    return frames


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("size", [(64, 48), (17, 13)], ids=str)
def test_frame_has_as_many_bytes_as_ffmpeg_takes(
    ffmpeg: str, size: tuple[int, int], tmp_path: Path
) -> None:
    names = [name for name, flags in formats(ffmpeg).items() if "H" not in flags]
    assert len(names) > 150
    nbytes = {}
    for name in names:
        layout = anyio.run(frame_layout, name, size, ffmpeg)
        assert np.empty(layout.shape, layout.dtype).nbytes == layout.nbytes
        nbytes[name] = layout.nbytes
    files = {name: n * FRAMES for name, n in nbytes.items()}
    assert taken(ffmpeg, files, size, tmp_path) == {
        name: [n] * FRAMES for name, n in nbytes.items()
    }


@pytest.mark.anyio
async def test_ffmpeg_is_asked_once(ffmpeg: str, tmp_path: Path) -> None:
    asked = tmp_path / "ffmpeg"
    asked.symlink_to(ffmpeg)
    first = await frame_layout("pal8", SIZE, str(asked))
    asked.unlink()
    assert await frame_layout("pal8", SIZE, str(asked)) == first


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("pix_fmt", "size", "says"),
    [
        ("cuda", SIZE, "^'cuda' is a hardware format, [^.]*$"),
        ("drm_prime", SIZE, "^'drm_prime' is a hardware format, [^.]*$"),
        ("nonesuch", SIZE, "no pixel format 'nonesuch'"),
        ("yuyv422", (1 << 30, 1 << 30), "FFmpeg takes no frames of 1073741824x"),
    ],
    ids=str,
)
async def test_format_that_is_refused(
    ffmpeg: str, pix_fmt: str, size: tuple[int, int], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        await Writer(NULL, size, pix_fmt=pix_fmt, ffmpeg=ffmpeg)
