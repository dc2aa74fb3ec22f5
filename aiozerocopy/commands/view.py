"""``aiozerocopy view``: receive frames, and show how they come, or pipe them on.

``--to COMMAND`` pipes the raw frames to a program that reads them on its stdin; where
``{size}`` and ``{pix_fmt}`` stand in the command, it gets what the frames are.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from typing import TYPE_CHECKING

import anyio

import aiozerocopy as azc
from aiozerocopy.client import connect_frames
from aiozerocopy.commands.options import add_client_tls, address, client_tls, count
from aiozerocopy.framing import FrameError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiozerocopy.framing import ReceivedFrame

FFPLAY = "ffplay -v error -f rawvideo -pixel_format {pix_fmt} -video_size {size} -"
EVERY = 1.0  # seconds from line to line


class Meter:
    """Frames, bytes, gaps and ages, a line a second."""

    def __init__(self) -> None:
        self.frames = self.gaps = self.nbytes = 0
        self._since = time.monotonic()
        self._counted = (0, 0)
        self._ages: list[float] = []
        self._last: int | None = None

    def count(self, frame: ReceivedFrame) -> None:
        """One frame more; prints a line when it is time."""
        if self._last is not None:
            self.gaps += frame.sequence - self._last - 1
        self._last = frame.sequence
        self.frames += 1
        self.nbytes += frame.view.nbytes
        self._ages.append((time.time_ns() - frame.timestamp_ns) / 1e6)
        now = time.monotonic()
        if now - self._since >= EVERY:
            self._report(now - self._since)
            self._since, self._counted = now, (self.frames, self.nbytes)
            self._ages.clear()

    def _report(self, seconds: float) -> None:
        frames, nbytes = (
            now - then
            for now, then in zip((self.frames, self.nbytes), self._counted, strict=True)
        )
        ages = sorted(self._ages)
        print(
            f"{frames / seconds:7.1f} fps  {nbytes / seconds / 1e6:8.1f} MB/s  "
            f"age {ages[len(ages) // 2]:6.1f} ms, {ages[-1]:6.1f} at most  "
            f"{self.gaps} missed",
            flush=True,
        )


def command_for(template: str, frame: ReceivedFrame) -> list[str]:
    """The program to pipe to, with what the frames are filled in."""
    height, width = frame.array.shape[:2]
    values = {"size": f"{width}x{height}", "pix_fmt": frame.pixel_format or "rgb24"}
    return [
        word.replace("{size}", values["size"]).replace("{pix_fmt}", values["pix_fmt"])
        for word in shlex.split(template)
    ]


async def run(options: argparse.Namespace) -> Meter:
    """Receive until the server ends, or so many frames have come."""
    meter = Meter()
    process: azc.Process | None = None
    try:
        async with connect_frames(
            *options.address,
            token=options.token,
            reconnect=options.reconnect,
            ssl_context=client_tls(options),
        ) as client:
            async for frame in client:
                with frame:
                    meter.count(frame)
                    if options.to is not None:
                        if process is None:
                            command = command_for(options.to, frame)
                            process = await azc.open_process(command, stderr=None)
                        assert process.stdin is not None
                        await process.stdin.send(frame.view)
                if meter.frames == options.frames:
                    break
    finally:
        if process is not None:
            await process.aclose()
    return meter


def main(argv: Sequence[str]) -> int:
    """View; 1 if nothing came, or what came were no frames."""
    parser = argparse.ArgumentParser(prog="aiozerocopy view", description=__doc__)
    parser.add_argument(
        "address", type=address, help="HOST:PORT, or the path of a Unix socket"
    )
    parser.add_argument("--token")
    add_client_tls(parser)
    parser.add_argument("--frames", type=count, help="end after so many")
    parser.add_argument(
        "--to", nargs="?", const=FFPLAY, metavar="COMMAND", help="ffplay, if not said"
    )
    parser.add_argument("--reconnect", action="store_true", help="when it is lost")
    options = parser.parse_args(argv)
    try:
        meter = anyio.run(run, options)
    except (FrameError, OSError, azc.StreamBroken, azc.StreamClosed) as error:
        print(f"aiozerocopy view: {error}", file=sys.stderr)
        return 1
    if not meter.frames:
        hint = "" if options.token else " (if it wants a token: --token)"
        print(
            f"aiozerocopy view: {options.address} closed the connection without a "
            f"frame{hint}",
            file=sys.stderr,
        )
        return 1
    print(f"{meter.frames} frames, {meter.nbytes / 1e6:,.0f} MB, {meter.gaps} missed")
    return 0
