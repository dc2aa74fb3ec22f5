"""One hub behind aiohttp: a page for people, and whole frames for programs.

    python examples/aiohttp_frames.py --port 8000
    python examples/aiohttp_frames.py --watch http://127.0.0.1:8000/frames --frames 10

/viewer/ is the page, for any browser.  /frames is an endless answer in the wire format
of `FrameSender`: a `FrameReceiver` turns it into NumPy arrays again, with the number of
each frame and the time when it was published.  Needs numpy, aiohttp, h11 and wsproto.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import time
from typing import TYPE_CHECKING

import aiohttp
import anyio
import numpy as np
from aiohttp import web
from anyio.abc import ByteReceiveStream, ByteSendStream

import aiozerocopy as azc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HEIGHT, WIDTH, FPS = 360, 640, 30


class ToClient(ByteSendStream):
    """The body of an answer, as a stream that a hub can send to."""

    def __init__(self, request: web.Request, answer: web.StreamResponse) -> None:
        self._request = request
        self._answer = answer

    async def send(self, item: bytes) -> None:
        await self._answer.write(item)  # waits while the client is slow

    async def aclose(self) -> None:
        """Drop the client; the hub does this if the client takes too long."""
        if self._request.transport is not None:
            self._request.transport.abort()


class FromServer(ByteReceiveStream):
    """The body of an answer, as a stream that frames are received from."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if data := await self._answer.content.read(max_bytes):
            return data
        raise anyio.EndOfStream

    async def aclose(self) -> None:
        self._answer.close()


def application() -> web.Application:
    hub = azc.Broadcast()

    async def frames(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        # A slow client misses whole frames; a stuck one is dropped after 10 s.
        client = hub.attach(ToClient(request, answer), policy="latest", deadline=10)
        try:
            await client.wait_closed()
        finally:
            client.detach()
        return answer

    async def publish(_app: web.Application) -> AsyncIterator[None]:
        async with hub, anyio.create_task_group() as tasks:
            tasks.start_soon(draw, hub)
            yield
            tasks.cancel_scope.cancel()

    app = web.Application()
    app.cleanup_ctx.append(publish)
    app.add_routes([web.get("/frames", frames)])
    app.add_subapp("/viewer", azc.web.aiohttp_app(hub, title="A bar"))
    return app


async def draw(hub: azc.Broadcast) -> None:
    """A bar that moves over a dark ground."""
    with azc.FramePool((HEIGHT, WIDTH, 3), "uint8", slots=4) as pool:
        while True:
            with await pool.acquire() as frame:
                frame.array[:] = 24
                left = hub.sequence * 8 % (WIDTH - 40)
                frame.array[:, left : left + 40] = (255, 160, 0)
                await hub.publish(frame, pixel_format="rgb24")
            await anyio.sleep(1 / FPS)


async def serve(port: int, seconds: float) -> None:
    runner = web.AppRunner(application(), shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        print(f"Watch at http://127.0.0.1:{port}/viewer/", flush=True)
        await anyio.sleep(seconds)
    finally:
        await runner.cleanup()


async def watch(address: str, count: float) -> None:
    async with aiohttp.ClientSession() as session, session.get(address) as answer:
        answer.raise_for_status()
        receiver = azc.FrameReceiver(FromServer(answer))
        received = 0
        async for frame in receiver:
            with frame:
                age = (time.time_ns() - frame.timestamp_ns) / 1e6
                mean = np.asarray(frame.array).mean()
                print(f"frame {frame.sequence}, {age:.1f} ms old, mean {mean:.2f}")
            received += 1
            if received >= count:
                break
    print(f"{received} frames received")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--watch", metavar="ADDRESS", help="receive, and do not serve")
    parser.add_argument("--frames", type=float, default=math.inf, help="how many")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        if options.watch:
            anyio.run(watch, options.watch, options.frames)
        else:
            anyio.run(serve, options.port, options.seconds)
