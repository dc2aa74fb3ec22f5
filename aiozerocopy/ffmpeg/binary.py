"""The FFmpeg binary: where it is, the environment it gets, and what it answers."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shutil
import threading
from typing import TYPE_CHECKING

import anyio

from aiozerocopy._core import extras
from aiozerocopy.process import open_process

if TYPE_CHECKING:
    from collections.abc import Iterator

SILENT = 5.0  # seconds without an answer, after which the log warns
PATIENCE = 60.0  # seconds without an answer, after which FFmpeg is killed

QUIETLY = ["-nostdin", "-hide_banner", "-nostats"]

# Newer FFmpegs map and unmap the memory of every frame, unless malloc keeps it.  With
# these settings FFmpeg 9 takes 1080p twice as fast.  The user's own settings win.
ROOMY = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "268435456",
}

log: logging.Logger = logging.getLogger("aiozerocopy")


def find_ffmpeg() -> str:
    """Return the FFmpeg on PATH, else the one that comes with imageio-ffmpeg.

    Raises: FileNotFoundError: there is none; the text says how to get one.
    """
    found = shutil.which("ffmpeg") or _packaged()
    if found is None:
        raise FileNotFoundError(
            f"no ffmpeg on PATH: install FFmpeg, or {extras.command('ffmpeg')}, "
            "or name one with ffmpeg=..."
        )
    return found


def _packaged() -> str | None:
    try:
        import imageio_ffmpeg

        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except (ImportError, RuntimeError):  # not installed, or installed without a binary
        return None


def environment() -> dict[str, str]:
    """Return our environment, with settings for a faster FFmpeg and a plain log."""
    return {**ROOMY, "AV_LOG_FORCE_NOCOLOR": "1", **os.environ}


async def ask(
    ffmpeg: str, *arguments: str, patience: float | None = PATIENCE, tail: bool = False
) -> tuple[int, str, str]:
    """Return FFmpeg's exit code, its standard output, and the ``tail`` of its stderr.

    Raises: TimeoutError: FFmpeg ran longer than ``patience`` (None: no limit).
    """
    async with open_process(
        [ffmpeg, *QUIETLY, *arguments],
        stdin=False,
        stdout=True,
        stderr="tail" if tail else False,  # (a tail's thread cannot start at exit)
        env=environment(),
        start_new_group=True,
    ) as process:
        assert process.stdout is not None
        told = contextlib.nullcontext() if patience is None else silence_told(ffmpeg)
        with told, anyio.move_on_after(patience) as waiting:
            said = b"".join([piece async for piece in process.stdout])
            code = await process.wait()
        if waiting.cancelled_caught:
            process.abort()
            what = f"it has not answered for {patience:g} s: is it FFmpeg?"
            raise TimeoutError(errno.ETIMEDOUT, what, ffmpeg)
    return code, said.decode(errors="replace"), process.stderr_tail


@contextlib.contextmanager
def silence_told(ffmpeg: str) -> Iterator[None]:
    """Log a warning if the block, which waits for FFmpeg, takes long.

    A thread does that, since no timer works on every kind of loop.
    """
    told = threading.Timer(
        SILENT, log.warning, ("%s has not answered for %g s", ffmpeg, SILENT)
    )
    told.name, told.daemon = "aiozerocopy silence", True
    told.start()
    try:
        yield
    finally:
        told.cancel()
        told.join()
