"""``python -m aiozerocopy demo``: NumPy frames to a child process and to a TCP client.

Every frame is drawn into the same array, right after `send` has returned: if a single
later byte got out, the receiver's hash would not match ours.  Each link runs twice: a
receiver that hashes what it gets, to check every byte, and one that only reads, for
the rate.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np

import aiozerocopy as azc

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

SHAPE = (1080, 1920, 3)
FRAMES, CHECKED_FRAMES = 400, 60

# A reader as anybody would write one: it knows nothing of this package.
READER = """
import hashlib, sys
hasher, buffer, total = hashlib.sha256(), bytearray(256 * 1024), 0
while n := sys.stdin.buffer.raw.readinto(buffer):
    total += n
    if sys.argv[1] == "hash":
        hasher.update(memoryview(buffer)[:n])
print(total, hasher.hexdigest())
"""

CLIENT = """
import hashlib, socket, sys
hasher, buffer, total = hashlib.sha256(), bytearray(256 * 1024), 0
with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as connection:
    while n := connection.recv_into(buffer):
        total += n
        if sys.argv[1] == "hash":
            hasher.update(memoryview(buffer)[:n])
print(total, hasher.hexdigest())
"""


@dataclass
class Sent:
    """What one run has sent, and what its receiver says of it."""

    link: str
    frames: int
    seconds: float
    stats: azc.Stats
    digest: str
    report: str

    @property
    def matches(self) -> bool | None:
        """None where the receiver only counted."""
        total, _, digest = self.report.strip().partition(" ")
        if total != str(self.stats.bytes_sent):
            return False
        return digest == self.digest if self.digest else None


class Scene:
    """An animated picture, drawn into one array over and over."""

    def __init__(self) -> None:
        height, width, _ = SHAPE
        self.frame: NDArray[np.uint8] = np.empty(SHAPE, np.uint8)
        y, x = np.mgrid[0:height, 0:width].astype(np.uint8)
        self._layers = [x + y, x - y, x ^ y]

    def draw(self, number: int) -> NDArray[np.uint8]:
        for channel, layer in enumerate(self._layers):
            np.add(layer, np.uint8(number & 255), out=self.frame[:, :, channel])
        return self.frame

    def stamp(self, number: int) -> NDArray[np.uint8]:
        """Only a few rows: to draw must not be what the rate measures."""
        self.frame[:8] = number & 255
        return self.frame


Tick = Callable[[], None]


async def send_frames(
    stream: azc.SendStream, frames: int, check: bool, tick: Tick
) -> str:
    scene, hasher = Scene(), hashlib.sha256()
    scene.draw(0)
    for number in range(frames):
        frame = scene.draw(number) if check else scene.stamp(number)
        if check:
            hasher.update(frame)
        await stream.send(frame)
        tick()
    return hasher.hexdigest() if check else ""


async def everything(stream: azc.ReceiveStream) -> str:
    return b"".join([chunk async for chunk in stream]).decode()


async def to_child(frames: int, check: bool, tick: Tick) -> Sent:
    """Through an enlarged pipe to a child process."""
    command = [sys.executable, "-c", READER, "hash" if check else "count"]
    async with azc.open_process(command, stdin=True, stdout=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        begin = time.perf_counter()
        digest = await send_frames(child.stdin, frames, check, tick)
        await child.stdin.aclose()
        report = await everything(child.stdout)
        seconds = time.perf_counter() - begin
        return Sent("pipe", frames, seconds, child.stdin.stats, digest, report)


async def to_client(frames: int, check: bool, tick: Tick) -> Sent:
    """To a client that connects to our TCP server."""
    done: list[tuple[float, azc.Stats, str]] = []

    async def handler(stream: azc.Stream) -> None:
        begin = time.perf_counter()
        digest = await send_frames(stream, frames, check, tick)
        await stream.send_eof()
        done.append((time.perf_counter() - begin, stream.stats, digest))

    async with azc.serve_tcp(handler, "127.0.0.1", 0) as server:
        mode = "hash" if check else "count"
        command = [sys.executable, "-c", CLIENT, mode, str(server.port)]
        async with azc.open_process(command, stdin=False, stdout=True) as client:
            assert client.stdout is not None
            report = await everything(client.stdout)
    seconds, stats, digest = done[0]
    return Sent("TCP", frames, seconds, stats, digest, report)


LINKS: dict[str, Callable[[int, bool, Tick], Awaitable[Sent]]] = {
    "a pipe to a child process": to_child,
    "TCP to a client": to_client,
}


@contextmanager
def _plain_progress(title: str, total: int) -> Iterator[Tick]:
    print(title, flush=True)
    yield lambda: None


@contextmanager
def _bar(title: str, total: int) -> Iterator[Tick]:
    from rich import progress

    columns = (
        progress.TextColumn("{task.description:<40}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
    )
    frame_size = int(np.prod(SHAPE))
    with progress.Progress(*columns) as bars:
        bar = bars.add_task(title, total=total * frame_size)
        yield lambda: bars.advance(bar, frame_size)


def progress_bar(title: str, total: int) -> AbstractContextManager[Tick]:
    """A bar where rich is installed and somebody looks, else a line."""
    try:
        import rich  # noqa: F401
    except ModuleNotFoundError:
        return _plain_progress(title, total)
    if not sys.stdout.isatty():
        return _plain_progress(title, total)
    return _bar(title, total)


async def run(frames: int, checked_frames: int) -> list[Sent]:
    results = []
    for name, link in LINKS.items():
        with progress_bar(f"{name}, every byte checked", checked_frames) as tick:
            results.append(await link(checked_frames, True, tick))
        with progress_bar(f"{name}, as fast as it goes", frames) as tick:
            results.append(await link(frames, False, tick))
    return results


def describe(sent: Sent) -> str:
    stats = sent.stats
    verdict = {True: "hash matches", False: "NOT WHAT WAS SENT", None: "count matches"}
    return (
        f"  {sent.link:<5}{sent.frames:>5} frames{stats.bytes_sent / 1e6:>9,.0f} MB "
        f"in{sent.seconds:>7.2f} s{stats.bytes_sent / sent.seconds / 1e9:>7.2f} GB/s "
        f"{stats.send_calls / sent.frames:>7.1f} system calls a frame   "
        f"{verdict[sent.matches]}"
    )


def main(argv: Sequence[str]) -> int:
    """Run the demo; 1 if anything arrived that was not sent."""
    parser = argparse.ArgumentParser(prog="aiozerocopy demo", description=__doc__)
    parser.add_argument("--frames", type=int, default=FRAMES)
    parser.add_argument("--checked-frames", type=int, default=CHECKED_FRAMES)
    parser.add_argument("--loop", choices=("asyncio", "uvloop", "trio"))
    options = parser.parse_args(argv)
    height, width, channels = SHAPE
    print(
        f"Frames of {width} x {height} x {channels} bytes, all drawn into one NumPy "
        "array:\neach is overwritten as soon as `await stream.send(frame)` returns.\n"
    )
    backend: dict[str, Any] = {"backend": options.loop or "asyncio"}
    if options.loop == "uvloop":
        backend = {"backend": "asyncio", "backend_options": {"use_uvloop": True}}
    results = anyio.run(run, options.frames, options.checked_frames, **backend)
    print("\nSent, with one copy (the kernel's) and none in user space:")
    for sent in results:
        print(describe(sent))
    return 0 if all(sent.matches is not False for sent in results) else 1
