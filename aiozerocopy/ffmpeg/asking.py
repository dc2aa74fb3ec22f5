"""An FFmpeg that is asked something, and ends."""

from __future__ import annotations

from aiozerocopy.ffmpeg.finding import environment
from aiozerocopy.ffmpeg.running import QUIETLY
from aiozerocopy.process import open_process


async def ask(ffmpeg: str, *arguments: str) -> tuple[int, str]:
    """Its exit code, and what it said on its standard output."""
    async with open_process(
        [ffmpeg, *QUIETLY, *arguments],
        stdin=False,
        stdout=True,
        env=environment(),
        start_new_group=True,
    ) as process:
        assert process.stdout is not None
        said = b"".join([piece async for piece in process.stdout])
        return await process.wait(), said.decode(errors="replace")
