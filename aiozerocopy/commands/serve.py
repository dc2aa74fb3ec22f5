"""``aiozerocopy serve``: a scene, a video or FFmpeg's sources, for any viewers.

Viewers are browsers (``--web``, on by default) and programs that speak the wire format
(``--tcp``, ``--unix``; `aiozerocopy view` is one).  Each gets the newest whole frame; a
slow one misses frames, and costs the others nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

import aiozerocopy as azc
from aiozerocopy import broadcast
from aiozerocopy.commands import scenes
from aiozerocopy.commands.options import (
    Address,
    add_picture,
    add_server_tls,
    count,
    port,
    server_tls,
)
from aiozerocopy.ffmpeg import FFmpegError, Reader

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from aiozerocopy.broadcast import Broadcast

SLOTS = 4
FOREVER = 1 << 40  # frames


class FrameSource:
    """Frames at their own pace, with the name of their pixel format."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.pixel_format = "rgb24"

    async def frames(self) -> AsyncIterator[azc.Frame]:
        """All of them; each is the receiver's to release."""
        source = self._options.source
        while True:
            frames = self._scene() if source == "demo" else self._video(source)
            async for frame in frames:
                yield frame
            if not self._options.loop:
                return

    async def _scene(self) -> AsyncIterator[azc.Frame]:
        scene = scenes.open_scene(
            scenes.DEMO.read_text(),
            self._options.size,
            float(self._options.fps),
            "rgba",
        )
        self.pixel_format = scene.pix_fmt
        try:
            with scene.new_pool(SLOTS) as pool:
                async for frame in scene.frames(pool, FOREVER):
                    yield frame
        finally:
            scene.close()

    async def _video(self, source: str) -> AsyncIterator[azc.Frame]:
        arguments: Any = source
        if self._options.ffmpeg_input:
            arguments = [*self._options.ffmpeg_input.split(), "-i", source]
        async with Reader(arguments, pix_fmt="rgb24") as video:
            async for frame in video:
                yield frame


async def publish(hub: Broadcast, source: FrameSource, fps: float) -> None:
    """Publish every frame at its time; a late one at once."""
    due = anyio.current_time()
    async for frame in source.frames():
        with frame:
            await anyio.sleep_until(due)
            await hub.publish(frame, pixel_format=source.pixel_format)
        due = max(due + 1 / fps, anyio.current_time() - 1 / fps)


async def run(options: argparse.Namespace) -> None:
    """Serve until the source ends, or Ctrl-C."""

    async def give_frames(stream: azc.Stream) -> None:
        client = hub.attach(stream, policy="latest")
        with contextlib.suppress(azc.StreamBroken, azc.StreamClosed):
            await client.wait_closed()

    async with contextlib.AsyncExitStack() as stack:
        hub = await stack.enter_async_context(broadcast.Broadcast())
        encryption = server_tls(options)
        settings = {"max_connections": options.max_clients, "token": options.token}
        if options.web is not None:
            from aiozerocopy import web

            page = await stack.enter_async_context(
                web.serve(
                    hub,
                    options.host,
                    options.web,
                    token=options.token,
                    ssl_context=encryption,
                )
            )
            print(f"in a browser   {page.url}", flush=True)
        if options.tcp is not None:
            server = await stack.enter_async_context(
                azc.serve_tcp(
                    give_frames,
                    options.host,
                    options.tcp,
                    ssl_context=encryption,
                    **settings,
                )
            )
            where = Address(options.host, server.port)
            print(f"by a program   aiozerocopy view {where}", flush=True)
        if options.unix is not None:
            await stack.enter_async_context(
                azc.serve_unix(give_frames, options.unix, **settings)
            )
            print(f"by a program   aiozerocopy view {options.unix}", flush=True)
        await publish(hub, FrameSource(options), float(options.fps))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="aiozerocopy serve", description=__doc__)
    parser.add_argument(
        "source",
        nargs="?",
        default="demo",
        help="demo (a scene), or whatever FFmpeg reads: a file, a URL, /dev/video0",
    )
    parser.add_argument(
        "--ffmpeg-input",
        metavar="OPTIONS",
        help='before -i, such as "-f v4l2" or "-re -stream_loop -1"',
    )
    parser.add_argument("--loop", action="store_true", help="begin again at the end")
    add_picture(parser, (1280, 720), 30)
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 for everybody")
    parser.add_argument(
        "--web", type=port, metavar="PORT", help="8000 if none is given"
    )
    parser.add_argument("--tcp", type=port, metavar="PORT")
    parser.add_argument("--unix", type=Path, metavar="PATH")
    parser.add_argument("--token", help="what a viewer must say to get anything")
    add_server_tls(parser)
    parser.add_argument("--max-clients", type=count, default=1000)
    return parser


def main(argv: Sequence[str]) -> int:
    """Serve; 1 if it could not."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.tls_key is not None and options.tls_cert is None:
        parser.error("--tls-key needs --tls-cert")
    if options.web is options.tcp is options.unix is None:
        options.web = 8000
    try:
        anyio.run(run, options)
    except (FFmpegError, OSError) as error:
        print(f"aiozerocopy serve: {error}", file=sys.stderr)
        return 1
    return 0
