"""``aiozerocopy view``: receive frames, and show how they come, or pipe them on."""

from __future__ import annotations

import contextlib
import shlex
import ssl
import time
from typing import TYPE_CHECKING

import anyio

import aiozerocopy as azc
from aiozerocopy._net.foreign_streams import drop_stream
from aiozerocopy._net.frame_header import MAGIC
from aiozerocopy.client import TokenRefused, connect_frames, open_stream
from aiozerocopy.commands import ending
from aiozerocopy.commands.options import (
    Parser,
    add_client_tls,
    address,
    client_tls,
    count,
    token,
    words,
)
from aiozerocopy.commands.progress import counted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from aiozerocopy.commands.options import Address
    from aiozerocopy.framing import ReceivedFrame

FFPLAY = "ffplay -v error -f rawvideo -pixel_format {pix_fmt} -video_size {size} -"
OTHER_NAME = (62, 64)  # what OpenSSL says of a certificate for another host or IP
EVERY = 1.0  # seconds from line to line
SILENCE = 0.4  # seconds without a first frame, until it is said why
PATIENCE = 0.4  # seconds for an answer to a greeting

# How an answer begins, and what that means for a viewer.
_WEB = "is for browsers: view needs the port of serve --tcp"
_ENCRYPTED = "speaks TLS: say --tls, or --tls-ca FILE"
_NO_TOKEN = "wants a token: say --token"
_FOREIGN = "is another program's: view needs the port of serve --tcp"
_MEANINGS = {
    b"HTTP/": _WEB,
    b"\x16\x03": _ENCRYPTED,  # a handshake
    b"\x15\x03": _ENCRYPTED,  # an alert
    b"\x15": _NO_TOKEN,  # what `admission` says to a wrong token
}


class Meter:
    """Frames, bytes, gaps and ages, a line a second."""

    def __init__(self) -> None:
        self.frames: int = 0
        self.gaps: int = 0
        self.nbytes: int = 0
        self._since = time.monotonic()
        self._bytes_before = 0
        self._ages: list[float] = []  # since then, one a frame
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
            self._since, self._bytes_before = now, self.nbytes
            self._ages.clear()

    def _report(self, seconds: float) -> None:
        nbytes, ages = self.nbytes - self._bytes_before, sorted(self._ages)
        print(
            f"{len(ages) / seconds:7.1f} fps  {nbytes / seconds / 1e6:8.1f} MB/s  "
            f"age {ages[len(ages) // 2]:6.1f} ms, {ages[-1]:6.1f} at most  "
            f"{self.gaps} missed",
            flush=True,
        )


def command_for(template: Sequence[str], frame: ReceivedFrame) -> list[str]:
    """The program to pipe to, with what the frames are filled in."""
    height, width = frame.array.shape[:2]
    size, pix_fmt = f"{width}x{height}", frame.pixel_format or "rgb24"
    return [
        word.replace("{size}", size).replace("{pix_fmt}", pix_fmt) for word in template
    ]


class Obstacle(ConnectionError):
    """No frames can come, and why."""


class Viewer:
    """Receives frames; what comes instead of them, it explains."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.meter: Meter = Meter()
        self._options = options
        self._ssl_context = client_tls(options)
        self._process: azc.Process | None = None

    async def run(self) -> None:
        """Receive until the server ends, or --frames have come."""
        # (in tasks, since a cancelled one does not wait for the program at the end)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._explain_silence)
            tasks.start_soon(self._receive_all, tasks.cancel_scope)

    async def _receive_all(self, scope: anyio.CancelScope) -> None:
        try:
            await self._receive()
            if not self.meter.frames:
                text = "has closed the connection without a frame: is it full?"
                raise Obstacle(f"{self._where} {text}")
        except TokenRefused:
            await self._raise_obstacle()
            raise Obstacle(
                f"{self._where} refused the token: it wants another, or none"
            ) from None
        except ssl.SSLError as error:
            raise Obstacle(f"{self._where}: {self._of_tls(error)}") from error
        finally:
            if self._process is not None:
                await self._process.aclose()
        scope.cancel()

    async def _receive(self) -> None:
        async with connect_frames(
            *self._options.address,
            token=self._options.token,
            reconnect=self._options.reconnect,
            ssl_context=self._ssl_context,
        ) as client:
            async for frame in client:
                with frame:
                    self.meter.count(frame)
                    if self._options.to is not None and not await self._pipe_on(frame):
                        return
                if self.meter.frames == self._options.frames:
                    return

    async def _pipe_on(self, frame: ReceivedFrame) -> bool:
        """False if the program has ended, and all was well."""
        command = command_for(self._options.to, frame)
        if self._process is None:
            self._process = await azc.open_process(command, stderr=None)
        assert self._process.stdin is not None
        try:
            await self._process.stdin.send(frame.view)
        except azc.StreamBroken:
            if status := await self._process.wait():
                text = f"{command[0]} has ended with exit status {status}"
                raise ChildProcessError(text) from None
            return False
        return True

    # -- where no frames come ---------------------------------------------------------

    @property
    def _where(self) -> str:
        return str(self._options.address)

    async def _explain_silence(self) -> None:
        await anyio.sleep(SILENCE)
        if self.meter.frames:
            return
        reason = "no frames yet"
        try:
            await self._raise_obstacle()
        except Obstacle:
            raise
        except OSError as error:
            reason += f": {ending.line_for(error)}"
        if self.meter.frames:  # meanwhile
            return
        ending.complain("aiozerocopy view", f"{self._where}: {reason}")

    async def _raise_obstacle(self) -> None:
        has_token = self._options.token is not None
        told = await obstacle(
            self._options.address, self._ssl_context, has_token=has_token
        )
        if told is not None:
            raise Obstacle(f"{self._where} {told}")

    def _of_tls(self, error: ssl.SSLError) -> str:
        if not isinstance(error, ssl.SSLCertVerificationError):
            reason = (error.reason or "unknown").replace("_", " ").lower()
            return f"it speaks no TLS ({reason}): leave --tls and --tls-ca away"
        if error.verify_code in OTHER_NAME:
            return f"{error.verify_message.rstrip('.')}: write the name that it is for"
        trusted = self._options.tls_ca or "this system"
        return (
            f"its certificate is not one that {trusted} vouches for "
            f"({error.verify_message}): --tls-ca FILE says whom to trust"
        )


# ---- who answers at an address, if no frames come from there -------------------------


async def obstacle(
    address: Address, ssl_context: ssl.SSLContext | None, *, has_token: bool
) -> str | None:
    """What keeps a viewer from getting frames there; None if nothing is known.

    A server that waits for something else says nothing.  So a second connection greets
    it as TLS does, at which each of our servers shows what it is.

    Raises:
        OSError: nobody answers at all.
    """
    answer = b""
    with anyio.move_on_after(PATIENCE):
        stream = await open_stream(*address, ssl_context=ssl_context)
        try:
            with contextlib.suppress(
                anyio.EndOfStream, anyio.BrokenResourceError, ssl.SSLError
            ):
                await stream.send(_greeting())
                answer = await stream.receive(16)
        finally:
            await drop_stream(stream)
    if not answer or answer.startswith(MAGIC):
        return None
    for beginning, meaning in _MEANINGS.items():
        if answer.startswith(beginning):
            return None if meaning is _NO_TOKEN and has_token else meaning
    return _FOREIGN


def _greeting() -> bytes:
    """What a TLS client says first."""
    said = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(
            ssl.MemoryBIO(), said, server_hostname="localhost"
        ).do_handshake()
    return said.read()


def _parser() -> Parser:
    parser = Parser(
        prog="aiozerocopy view",
        description="Receive frames, and show how they come: a line a second.",
    )
    parser.add_argument(
        "address", type=address, help="HOST:PORT, or the path of a Unix socket"
    )
    parser.add_argument("--token", type=token, help="as it was given to serve")
    add_client_tls(parser)
    parser.add_argument("--frames", type=count, metavar="N", help="end after so many")
    parser.add_argument(
        "--to",
        nargs="?",
        type=words,
        const=shlex.split(FFPLAY),
        metavar="COMMAND",
        help="pipe the raw frames to it, with {size} and {pix_fmt} filled in "
        "(default: ffplay)",
    )
    parser.add_argument(
        "--reconnect", action="store_true", help="come back when the connection is lost"
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """View; 0, or an exception."""
    viewer = Viewer(_parser().parse_args(argv))
    anyio.run(viewer.run)
    meter = viewer.meter
    print(f"{counted(meter.frames)}, {meter.nbytes / 1e6:,.0f} MB, {meter.gaps} missed")
    return 0
