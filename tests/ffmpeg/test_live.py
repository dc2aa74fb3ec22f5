"""Live streams for real: one FFmpeg sends by RTMP, SRT and UDP, another receives.

The frames are plain, each a little brighter than the one before, so that those that
come out of H.264 tell which they are.
"""

import itertools
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import anyio
import ffmpegs
import numpy as np
import pytest
from ffmpegs import HEIGHT, SIZE, WIDTH, free_port, is_gone, is_listening
from links import linux_only, until

from aiozerocopy.ffmpeg import FFmpegError, Reader, Writer

pytestmark = [pytest.mark.anyio, pytest.mark.slow, linux_only]

STEP = 4  # from one frame's grey to the next one's
ENOUGH = 20  # frames

H264 = [
    *("-preset", "ultrafast", "-tune", "zerolatency", "-pix_fmt", "yuv420p"),
    *("-g", "10"),
]
PACED = [*H264, "-vf", "realtime"]
# A receiver waits for seconds of a stream before it believes what that is.
AT_ONCE = ["-probesize", "32k", "-analyzeduration", "100000"]


@dataclass
class Protocol:
    """How one FFmpeg sends and another receives; {} is the port."""

    muxer: str
    sends_to: str
    receives: list[str]
    kind: socket.SocketKind = socket.SOCK_STREAM
    ends_by: signal.Signals = signal.SIGKILL


_RTMP = "rtmp://127.0.0.1:{}/live/film"
PROTOCOLS = {
    "rtmp": Protocol("flv", _RTMP, ["-listen", "1", "-i", _RTMP]),
    "srt": Protocol(
        "mpegts",
        "srt://127.0.0.1:{}?mode=caller&latency=200000",
        ["-i", "srt://127.0.0.1:{}?mode=listener&latency=200000"],
        socket.SOCK_DGRAM,
        ends_by=signal.SIGTERM,
    ),
    "udp": Protocol(
        "mpegts",
        "udp://127.0.0.1:{}?connect=1&pkt_size=1316",
        ["-i", "udp://127.0.0.1:{}"],
        socket.SOCK_DGRAM,
    ),
}
# No packet tells the sender that a receiver was killed: it takes SRT 5 seconds.
PROTOCOLS["srt_killed"] = replace(PROTOCOLS["srt"], ends_by=signal.SIGKILL)


def plain(number: int) -> np.ndarray[Any, Any]:
    return np.full((HEIGHT, WIDTH), number * STEP % 256, "u1")


def number_of(frame: np.ndarray[Any, Any]) -> int:
    return round(float(frame.mean()) / STEP)


def new_writer(output: list[str], ffmpeg: str, options: Sequence[str] = H264) -> Writer:
    return Writer(output, SIZE, 100, "gray", "libx264", options, ffmpeg=ffmpeg)


async def send_until_error(video: Writer) -> None:
    for number in itertools.count():
        await video.send(plain(number))


@pytest.mark.parametrize("name", PROTOCOLS)
async def test_frames_arrive_and_a_receivers_end_is_told(
    ffmpeg: str, name: str
) -> None:
    ffmpegs.need_protocol(ffmpeg, name.partition("_")[0])
    protocol = PROTOCOLS[name]
    port = free_port(protocol.kind)
    source = [word.format(port) for word in [*AT_ONCE, *protocol.receives]]
    output = ["-f", protocol.muxer, protocol.sends_to.format(port)]
    receiver = Reader(source, "gray", ffmpeg=ffmpeg)
    numbers: list[int] = []

    async def receive() -> None:
        async for frame in await receiver:
            with frame:
                numbers.append(number_of(frame.array))
            if len(numbers) == ENOUGH:
                break

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        await until(lambda: is_listening(port, protocol.kind))
        video = await new_writer(output, ffmpeg, PACED)
        for number in itertools.count():
            if len(numbers) == ENOUGH:
                break
            await video.send(plain(number))
    # (Where nothing is sent again, a frame may be missing on a busy machine.)
    assert numbers == sorted(numbers)
    assert len(set(numbers)) > ENOUGH / 2
    os.kill(receiver.pid, protocol.ends_by)
    with pytest.raises(FFmpegError, match=r"Broken pipe|refused|Input/output|reset"):
        await send_until_error(video)
    await receiver.aclose()
    with pytest.raises(FFmpegError):
        await video.aclose()
    assert is_gone(video.pid)
