"""Serve moving pictures to any number of clients: see view_frames.py.

python serve_frames.py [PORT] [TOKEN]
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import anyio

import aiozerocopy as azc
from aiozerocopy.broadcast import Broadcast

if TYPE_CHECKING:
    import numpy as np

FPS = 30


async def main(port: int, token: str | None) -> None:
    async with Broadcast() as hub:

        async def watch(stream: azc.Stream) -> None:
            # A slow client misses frames; one that is stuck for 10 s is dropped.
            await hub.attach(stream, policy="latest", deadline=10).wait_closed()

        server = azc.serve_tcp(watch, port=port, token=token, max_connections=1000)
        pool = azc.FramePool((720, 1280, 3), "uint8", slots=3)
        async with server, pool:
            print(f"port {server.port}", flush=True)
            while True:
                with await pool.acquire() as frame:
                    draw(frame.array, hub.sequence)
                    await hub.publish(frame, pixel_format="rgb24")
                del frame  # the slot is free when the last client has it
                await anyio.sleep(1 / FPS)


def draw(picture: np.ndarray, number: int) -> None:
    """A bar that moves over a dark ground."""
    picture[:] = 24
    x = number * 8 % picture.shape[1]
    picture[:, x : x + 40] = (255, 160, 0)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    port = int(arguments[0]) if arguments else 8000
    anyio.run(main, port, arguments[1] if len(arguments) > 1 else None)
