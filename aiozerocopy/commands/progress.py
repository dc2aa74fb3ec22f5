"""The progress of long work: one changing line on a terminal, else new lines."""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OFTEN, EVERY = 0.1, 5.0  # seconds between two lines: on a terminal, and elsewhere
WIPE = "\r\x1b[K"


@contextmanager
def frames_bar(
    title: str, frames: int, frame_bytes: int
) -> Iterator[Callable[[str], None]]:
    """Show frames, frames a second and, if there is room, bytes and the lane.

    It yields a function: call that for each frame, with the lane that the frame took.
    """
    looks = sys.stdout.isatty()
    if not looks:
        print(title, flush=True)
    drawn, begun = 0, time.monotonic()
    said = begun

    def tick(lane: str) -> None:
        nonlocal drawn, said
        drawn += 1
        now = time.monotonic()
        if now - said < (OFTEN if looks else EVERY):
            return
        said = now
        rate = drawn / (now - begun)
        text = f"{drawn:,} of {counted(frames)}, {rate:,.1f} fps"
        if looks:
            room = shutil.get_terminal_size().columns - len(text) - 3
            more = f", {rate * frame_bytes / 1e9:.2f} GB/s by {lane}"
            text += more if len(title) + len(more) <= room else ""
            print(f"{WIPE}{shortened(title, room)}: {text}", end="", flush=True)
        else:
            print(f"{title}: {text}", flush=True)

    try:
        yield tick
    finally:
        if looks:
            print(WIPE, end="", flush=True)


def counted(frames: int) -> str:
    """``1 frame``, ``2,000 frames``."""
    return f"{frames:,} frame{'s' * (frames != 1)}"


def shortened(title: str, most: int) -> str:
    """Return the end of the title, in which films differ."""
    return title if len(title) <= most else f"…{title[len(title) - most + 1 :]}"
