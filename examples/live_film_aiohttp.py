"""A live film over HTTP, by aiohttp: run it, and open the address in many tabs.

    python examples/live_film_aiohttp.py --port 8000
    ffplay http://127.0.0.1:8000/film.mp4

Needs numpy, aiohttp and ffmpeg.
"""

from __future__ import annotations

import argparse
import contextlib
import math

import anyio
import numpy as np
from aiohttp import web

from aiozerocopy import ffmpeg

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


def application(clients: ffmpeg.Clients) -> web.Application:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(text=PAGE, content_type="text/html")

    async def film(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "video/mp4"})
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):  # a viewer may leave
            async with clients.subscribe() as pieces:
                async for piece in pieces:
                    await response.write(piece)
        return response

    app = web.Application()
    app.add_routes([web.get("/", page), web.get("/film.mp4", film)])
    return app


async def main(port: int, seconds: float) -> None:
    encoder = ffmpeg.Encoder((WIDTH, HEIGHT), FPS, group=FPS, low_delay=True)
    async with encoder, encoder.clients() as clients:
        # At Ctrl-C the films do not end by themselves.
        runner = web.AppRunner(application(clients), shutdown_timeout=1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", port).start()
            print(f"Watch at http://127.0.0.1:{port}/", flush=True)
            await draw(encoder, seconds)
        finally:
            await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--seconds", type=float, default=math.inf)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        anyio.run(main, options.port, options.seconds)
