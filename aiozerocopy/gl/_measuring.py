"""Which pixel format reaches a pipe's reader first on this machine: it is measured."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from aiozerocopy.gl._drawing import Drawing
from aiozerocopy.gl._functions import Functions
from aiozerocopy.gl._picture import Slot
from aiozerocopy.gl._planes import Format

if TYPE_CHECKING:
    from collections.abc import Iterator

PIPE_SECONDS_PER_BYTE = 0.5e-9  # to bring a byte to another process


def measure(
    context: Any,
    size: tuple[int, int],
    pix_fmts: tuple[str, ...] = ("rgba", "yuv420p"),
    rounds: int = 3,
) -> dict[str, float]:
    """Seconds from submission to picture for each format, the least of some rounds.

    Blocks for all of it, some tens of milliseconds: for a program's start.

    Raises:
        ValueError: a size or format that cannot be.
        GLError: OpenGL refused.
    """
    formats = {pix_fmt: Format(size, pix_fmt) for pix_fmt in pix_fmts}
    texture = context.texture(size, 4)
    blank = context.framebuffer([texture])
    try:
        return {
            pix_fmt: min(_rounds(context, blank, layout, rounds))
            for pix_fmt, layout in formats.items()
        }
    finally:
        blank.release()
        texture.release()


def _rounds(context: Any, blank: Any, layout: Format, rounds: int) -> Iterator[float]:
    functions = Functions(context)
    with functions.current():
        drawing = Drawing(functions, layout)
        functions.forget_errors()
        slot = Slot(functions, layout.nbytes, functions.has_storage, lambda _: None)
        try:
            functions.check("a pixel-pack buffer was made")
            for _ in range(rounds + 1):  # the first one compiles
                context.finish()
                start = time.perf_counter()
                slot.begin(lambda: drawing.read(blank))
                while not slot.poll():
                    pass
                yield time.perf_counter() - start
                slot.abandon()
        finally:
            slot.delete()
            drawing.release()


def fastest(context: Any, size: tuple[int, int]) -> str:
    """yuv420p, unless converting takes longer than sending the bytes that it saves."""
    seconds = measure(context, size)
    for pix_fmt in seconds:
        seconds[pix_fmt] += Format(size, pix_fmt).nbytes * PIPE_SECONDS_PER_BYTE
    return min(seconds, key=seconds.__getitem__)
