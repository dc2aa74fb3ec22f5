"""A live film over HTTP, by FastAPI: run it, and open the address in many tabs.

    python examples/live_film_fastapi.py --port 8000
    ffplay http://127.0.0.1:8000/film.mp4

Needs numpy, fastapi, uvicorn and ffmpeg.
"""

from __future__ import annotations

import argparse
import contextlib
import math
from typing import TYPE_CHECKING

import anyio
import numpy as np
import uvicorn
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, StreamingResponse

from aiozerocopy import ffmpeg

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

WIDTH, HEIGHT, FPS = 640, 360, 30
PAGE = "<title>Live</title><video src=film.mp4 autoplay muted controls></video>"


async def draw(encoder: ffmpeg.Encoder, seconds: float) -> None:
    """A bar that crosses a blue picture in two seconds, at the pace of the film."""
    start, number = anyio.current_time(), 0
    while number < seconds * FPS:
        await anyio.sleep_until(start + number / FPS)
        picture = np.full((HEIGHT, WIDTH, 3), (20, 30, 80), "u1")
        left = number * (WIDTH // (2 * FPS)) % WIDTH
        picture[:, left : left + 20] = 255
        await encoder.send(picture)
        number += 1
    await encoder.finish()


def application(clients: ffmpeg.Clients) -> FastAPI:
    async def pieces() -> AsyncIterator[bytes]:
        async with clients.subscribe() as subscription:
            async for piece in subscription:
                yield piece

    async def page() -> HTMLResponse:
        return HTMLResponse(PAGE)

    async def film() -> StreamingResponse:
        return StreamingResponse(pieces(), media_type="video/mp4")

    app = FastAPI()
    app.add_api_route("/", page, response_model=None)
    app.add_api_route("/film.mp4", film, response_model=None)
    return app


async def main(port: int, seconds: float) -> None:
    encoder = ffmpeg.Encoder((WIDTH, HEIGHT), FPS, group=FPS, low_delay=True)
    async with encoder, encoder.clients() as clients:
        config = uvicorn.Config(
            application(clients),
            port=port,
            log_level="warning",
            timeout_graceful_shutdown=1,  # at Ctrl-C the films do not end by themselves
        )
        server = uvicorn.Server(config)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve)
            print(f"Watch at http://127.0.0.1:{port}/", flush=True)
            await draw(encoder, seconds)
            server.should_exit = True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--seconds", type=float, default=math.inf)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        anyio.run(main, options.port, options.seconds)
