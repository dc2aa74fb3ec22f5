"""A control panel in FastAPI that shows what it controls: run it, open the address.

    python examples/fastapi_viewer.py --port 8000
    curl -X PUT 'http://127.0.0.1:8000/speed?value=3'

The viewer is mounted below the panel, which is a page of its own with the live picture
in a frame.  Needs numpy, fastapi, uvicorn, h11 and wsproto; PyAV or ffmpeg for H.264.
"""

from __future__ import annotations

import argparse
import contextlib
import math
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import numpy as np
import uvicorn
from fastapi import FastAPI
from fastapi.responses import HTMLResponse

import aiozerocopy as azc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HEIGHT, WIDTH, FPS = 360, 640, 30

PANEL = """<!doctype html>
<title>Pendulum</title>
<h1>Pendulum</h1>
<iframe src="viewer/" width="960" height="640"></iframe>
<p><label>Speed <input type="range" max="5" step="0.1" value="1"
  oninput="fetch(`speed?value=${this.value}`, {method: 'PUT'})"></label>
"""


@dataclass
class Pendulum:
    """The pendulum that the panel shows and controls."""

    speed: float = 1.0  # swings in two seconds
    phase: float = 0.0

    def draw(self, picture: np.ndarray) -> None:
        self.phase += math.pi * self.speed / FPS
        angle = 0.9 * math.sin(self.phase)
        x = int(WIDTH / 2 + 260 * math.sin(angle))
        y = int(40 + 260 * math.cos(angle))
        picture[:] = (16, 20, 26)
        for part in np.linspace(0, 1, 260):
            row, column = int(40 + (y - 40) * part), WIDTH / 2 + (x - WIDTH / 2) * part
            picture[row, int(column) - 1 : int(column) + 2] = 120
        picture[y - 20 : y + 20, x - 20 : x + 20] = (255, 160, 0)

    async def swing(self, hub: azc.Broadcast) -> None:
        """Publish one picture after the other; the hub copies none of them."""
        with azc.FramePool((HEIGHT, WIDTH, 3), "uint8", slots=4) as pool:
            begin = anyio.current_time()
            while True:
                with await pool.acquire() as frame:
                    self.draw(frame.array)
                    await hub.publish(frame, pixel_format="rgb24")
                await anyio.sleep_until(begin + hub.sequence / FPS)


def application() -> FastAPI:
    hub, pendulum = azc.Broadcast(), Pendulum()

    @asynccontextmanager
    async def lifespan(_api: FastAPI) -> AsyncIterator[None]:
        async with hub, anyio.create_task_group() as tasks:
            tasks.start_soon(pendulum.swing, hub)
            yield
            tasks.cancel_scope.cancel()

    api = FastAPI(lifespan=lifespan)

    async def panel() -> HTMLResponse:
        return HTMLResponse(PANEL)

    async def set_speed(value: float) -> dict[str, float]:
        pendulum.speed = min(max(value, 0.0), 5.0)
        return {"speed": pendulum.speed}

    api.add_api_route("/", panel, response_model=None)
    api.add_api_route("/speed", set_speed, methods=["PUT"])
    # No JPEG: at Ctrl-C uvicorn ends WebSockets, but waits for JPEG streams.
    viewer = azc.web.app(hub, title="Pendulum", modes=["h264", "raw"])
    api.mount("/viewer", viewer)
    return api


async def main(port: int, seconds: float) -> None:
    config = uvicorn.Config(
        application(),
        port=port,
        log_level="warning",
        ws_per_message_deflate=False,  # it makes no picture smaller
    )
    server = uvicorn.Server(config)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.serve)
        print(f"The panel is at http://127.0.0.1:{port}/", flush=True)
        await anyio.sleep(seconds)
        server.should_exit = True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--seconds", type=float, default=math.inf)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        anyio.run(main, options.port, options.seconds)
