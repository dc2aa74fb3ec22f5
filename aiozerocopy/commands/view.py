"""``aiozerocopy view``: receive frames, and measure them or pipe them to a program."""

from __future__ import annotations

import shlex
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

import aiozerocopy as azc
from aiozerocopy.client import connect_frames
from aiozerocopy.commands import ending
from aiozerocopy.commands.options import (
    Parser,
    Size,
    add_client_tls,
    add_token,
    address,
    client_tls,
    count,
    tokens,
    words,
)
from aiozerocopy.commands.progress import counted
from aiozerocopy.ffmpeg.layouts import layout_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from aiozerocopy.client import ConnectionEvent, FrameClient
    from aiozerocopy.framing import ReceivedFrame

FFPLAY = "ffplay -v error -f rawvideo -pixel_format {pix_fmt} -video_size {size} -"
OTHER_NAME = (62, 64)  # OpenSSL's codes for a certificate of another host or address
EVERY = 1.0  # seconds from line to line

# What is wrong with the server, by the names of `FrameClient`.
_REASONS = {
    "web": "is for browsers: view needs the port of serve --tcp",
    "tls": "speaks TLS: give --tls, or --tls-ca FILE",
    "plain": "speaks no TLS: leave out --tls and --tls-ca",
    "token": "wants a token: give --token-file or --token",
    "wrong token": "refused the token: give the server's own",
    "no token": "wants no token: leave out --token",
    "foreign": "is another program's: view needs the port of serve --tcp",
}


class Meter:
    """Prints frames, bytes, ages and missed frames, a line a second."""

    def __init__(self) -> None:
        self.frames: int = 0
        self.missed: int = 0
        self.nbytes: int = 0
        self._since = time.monotonic()
        self._bytes_before = 0
        self._ages: list[float] = []  # since then, one a frame

    def count(self, frame: ReceivedFrame, missed: int) -> None:
        """Count a frame, note how many were missed; print a line when it is time."""
        self.missed = missed
        self.frames += 1
        self.nbytes += frame.view.nbytes
        self._ages.append((time.time_ns() - frame.timestamp_ns) / 1e6)
        now = time.monotonic()
        if now - self._since >= EVERY:
            self._report(now - self._since)
            self._since, self._bytes_before = now, self.nbytes
            self._ages.clear()

    def _report(self, seconds: float) -> None:
        nbytes, ages = self.nbytes - self._bytes_before, sorted(self._ages)
        print(
            f"{len(ages) / seconds:7.1f} fps  {nbytes / seconds / 1e6:8.1f} MB/s  "
            f"age {ages[len(ages) // 2]:6.1f} ms, {ages[-1]:6.1f} at most  "
            f"{self.missed} missed",
            flush=True,
        )


def command_for(template: Sequence[str], frame: ReceivedFrame) -> list[str]:
    """Return the command, with the frames' size and pixel format filled in.

    Raises: ValueError: it needs the size, which this frame does not tell.
    """
    size = _size_of(frame)
    if size is None and any("{size}" in word for word in template):
        raise ValueError(
            f"a frame of {frame.pixel_format or 'no pixel format'} with the shape "
            f"{frame.shape} does not tell its size: write it in place of {{size}}"
        )
    pix_fmt = frame.pixel_format or "rgb24"
    return [
        word.replace("{size}", str(size)).replace("{pix_fmt}", pix_fmt)
        for word in template
    ]


def _size_of(frame: ReceivedFrame) -> Size | None:
    """Return the picture's size; None if the shape is not that of the pixel format."""
    pix_fmt, shape = frame.pixel_format, frame.shape
    if shape[2:] == (1,):  # one channel, as an axis
        shape = shape[:2]
    if len(shape) < 2 or 0 in shape:
        return None
    height, width = shape[:2]
    layout = layout_of(pix_fmt, (8, 8))
    if layout is None:  # a format, or a name, that we do not know
        return Size(width, height)
    if not layout.packed and len(layout.shape) == 3:  # a plane for each channel
        height, width = shape[-2:]
    elif not layout.packed:  # all planes in rows as wide as the picture
        height = round(height * 8 * 8 * layout.itemsize / layout.nbytes)
    whole = layout_of(pix_fmt, (width, height))
    is_whole = whole is not None and whole.shape == shape
    return Size(width, height) if is_whole else None


class Obstacle(ConnectionError):
    """The reason why no frames can come."""


class Viewer:
    """Receives frames, or explains why none come."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.meter: Meter = Meter()
        self._options = options
        self._where = str(options.address)
        self._ssl_context = client_tls(options)
        self._process: azc.Process | None = None
        self._command: list[str] = []  # of the process
        self._has_complained = False

    async def run(self) -> None:
        """Receive until the server ends, or as many frames as --frames says."""
        # (in a child task: a cancelled main task would not wait for the program's end)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._receive_all)

    async def _receive_all(self) -> None:
        host, port = self._options.address
        client = connect_frames(
            *(host, port) if port is not None else (Path(host),),
            token=self._options.token,
            reconnect=self._options.reconnect,
            ssl_context=self._ssl_context,
            on_event=self._hear,
        )
        try:
            async with client:
                await self._receive(client)
            if not self.meter.frames:
                text = "has closed the connection without a frame: is it full?"
                raise Obstacle(f"{self._where} {text}")
        except (azc.FrameError, azc.TokenRefused):
            if client._obstacle is None:
                raise
            reason = _REASONS[client._obstacle]
            raise Obstacle(f"{self._where} {reason}") from None
        except ssl.SSLError as error:
            raise Obstacle(f"{self._where}: {self._of_tls(error)}") from error
        finally:
            if self._process is not None:
                await self._process.aclose()

    async def _receive(self, client: FrameClient) -> None:
        async for frame in client:
            with frame:
                self.meter.count(frame, client.stats.missing)
                if self._options.to is not None and not await self._pipe_on(frame):
                    return
            if self.meter.frames == self._options.frames:
                return

    def _hear(self, event: ConnectionEvent, detail: Any) -> None:
        """Say once that no frames come, and why."""
        if self._has_complained or event not in ("silent", "lost"):
            return
        self._has_complained = True
        reason = "no frames yet" if not self.meter.frames else "no frames for now"
        if event == "lost":
            reason += f": {ending.line_for(detail)}"
        ending.complain("aiozerocopy view", f"{self._where}: {reason}")

    async def _pipe_on(self, frame: ReceivedFrame) -> bool:
        """Send a frame to the program; False if that has ended without an error."""
        command = command_for(self._options.to, frame)
        if self._process is None:
            self._process = await azc.open_process(command, stderr=None)
            self._command = command
        elif command != self._command:  # (a new film could replace the first)
            text = "now sends frames of another size or pixel format: run view again"
            raise Obstacle(f"{self._where} {text}")
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send(frame.view)
        except azc.StreamBroken:
            if status := await self._process.wait():
                text = f"{command[0]} has ended with exit status {status}"
                raise ChildProcessError(text) from None
            return False
        return True

    # -- TLS --------------------------------------------------------------------------

    def _of_tls(self, error: ssl.SSLError) -> str:
        if not isinstance(error, ssl.SSLCertVerificationError):
            reason = (error.reason or "unknown").replace("_", " ").lower()
            return f"it speaks no TLS ({reason}): leave out --tls and --tls-ca"
        if error.verify_code in OTHER_NAME:
            return f"{error.verify_message.rstrip('.')}: write a name that it is for"
        trusted = self._options.tls_ca or "this system"
        return (
            f"its certificate is not trusted by {trusted} ({error.verify_message}): "
            "name its authority with --tls-ca FILE"
        )


def _parser() -> Parser:
    parser = Parser(
        prog="aiozerocopy view",
        description="Receive frames, and print a line a second: frames and bytes a "
        "second, how old the frames are, and how many were missed.",
    )
    add = parser.add_argument
    add("address", type=address, help="HOST:PORT, or the path of a Unix socket")
    add_token(parser)
    add_client_tls(parser)
    add("--frames", type=count, metavar="N", help="stop after N frames")
    add(
        "--to",
        nargs="?",
        type=words,
        const=shlex.split(FFPLAY),
        metavar="COMMAND",
        help="pipe the raw frames to COMMAND, with {size} and {pix_fmt} filled in "
        "(default: ffplay)",
    )
    add(
        "--reconnect",
        action="store_true",
        help="connect again when the connection is lost",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """View; return 0 or raise."""
    options = _parser().parse_args(argv)
    options.token = next(iter(tokens(options) or ()), None)
    viewer = Viewer(options)
    anyio.run(viewer.run)
    meter = viewer.meter
    missed = f"{meter.missed} missed"
    print(f"{counted(meter.frames)}, {meter.nbytes / 1e6:,.0f} MB, {missed}")
    return 0
