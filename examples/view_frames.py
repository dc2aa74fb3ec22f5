"""Receive frames from serve_frames.py, through lost connections, and print statistics.

python view_frames.py [PORT] [TOKEN] [FRAMES]
"""

from __future__ import annotations

import sys
import time

import anyio

import aiozerocopy as azc
from aiozerocopy.client import connect_frames


async def main(port: int, token: str | None, frames: int) -> None:
    with azc.FramePool((1080, 1920, 3), "uint8", slots=2) as pool:
        async with connect_frames(
            "127.0.0.1", port, token=token, pool=pool, on_event=print
        ) as client:
            async for frame in client:
                with frame:
                    age = (time.time_ns() - frame.timestamp_ns) / 1e6
                    brightness = frame.array.mean()
                if client.stats.received % 30 == 0:
                    print(
                        f"frame {frame.sequence}: {frame.shape} {frame.pixel_format}, "
                        f"{age:.1f} ms old, brightness {brightness:.1f}, "
                        f"{client.stats.missing} missing",
                        flush=True,
                    )
                if client.stats.received == frames:
                    break


if __name__ == "__main__":
    arguments = dict(enumerate(sys.argv[1:]))
    anyio.run(
        main,
        int(arguments.get(0, 8000)),
        arguments.get(1) or None,
        int(arguments.get(2, -1)),
    )
