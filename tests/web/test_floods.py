"""The web server while another process sends to it as fast as it can."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import anyio
import numpy as np
import pytest
from links import cut_short
from web_client import asking, upgrade

import aiozerocopy as azc
from aiozerocopy import web
from aiozerocopy.web import exchange as talk
from aiozerocopy.web import jpeg

pytestmark = pytest.mark.anyio

FLOODER = Path(__file__).parents[1] / "support" / "flooder.py"

# Seconds that the loop may be busy between two turns of another task.  It is 1 to 10
# ms; without limits it was 0.1 s (pings), 0.3 s (requests) or 1 to 6 s (others) for
# each answer.  Two pauses may be longer: on a virtual machine, time that its host takes
# counts as ours.
LONGEST_PAUSE = 0.05
FRAMES = 50


UPGRADE = upgrade("/raw")
MASK = bytes(4)
BEGUN = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


class Flood(NamedTuple):
    """What one connection sends: the opening once, and then the piece for ever."""

    opening: bytes
    piece: bytes
    status: int  # of the answers
    answers: int = 3  # to wait for: three show that two connections were ended


FLOODS = {
    "empty fragments": Flood(UPGRADE + b"\x01\x80" + MASK, b"\x00\x80" + MASK, 101),
    "pings": Flood(UPGRADE, b"\x89\x80" + MASK, 101),
    "pongs": Flood(UPGRADE, b"\x8a\x80" + MASK, 101),
    "tiny messages": Flood(UPGRADE, b"\x81\x81" + MASK + b"a", 101),
    "big messages": Flood(UPGRADE, b"\x81\xfe\x0f\xa0" + MASK + b"a" * 4000, 101),
    "many headers": Flood(b"", BEGUN + b"a:\r\n" * 3900 + b"\r\n", 431),
    "as many as may be": Flood(b"", BEGUN + b"a:\r\n" * 97 + b"\r\n", 200, 100),
    "a huge header": Flood(b"", BEGUN + b"a:" + b"x" * 16_000 + b"\r\n\r\n", 200, 100),
    "blanks and a zero": Flood(b"", BEGUN + b"a:" + b" " * 16_000 + b"\0\r\n\r\n", 400),
    "headers without end": Flood(BEGUN, b"a: b\r\n", 431),
    "a header without end": Flood(BEGUN + b"a:", b"x", 431),
    "a long query": Flood(b"", asking("/?a=" + "%41" * 5_000), 200, 100),
    "requests": Flood(b"", asking("/healthz"), 200, 1000),
    "requests that cost more": Flood(b"", asking("/metrics"), 200, 1000),
    "files": Flood(b"", asking("/file"), 200, 300),
    "parts of a file": Flood(b"", asking("/file", "Range: bytes=0-0"), 206, 300),
    "empty lines": Flood(b"", b"\r\n", 431),
    "bytes to a stream": Flood(asking("/stream.mjpg"), b"x", 200),
}


QUICK = ("pings", "requests", "headers without end")  # the others are like these


async def become_a_viewer(stream: azc.Stream) -> None:
    await stream.send(UPGRADE)
    said = b""
    while not said.endswith(b"\r\n\r\n\x89\x00"):  # the answer, and the first ping
        said += await stream.receive()


@contextmanager
def flooding(port: int, flood: Flood) -> Iterator[None]:
    arguments = [str(port), flood.opening.hex(), flood.piece.hex()]
    with subprocess.Popen([sys.executable, FLOODER, *arguments]) as process:
        try:
            yield
        finally:
            process.kill()


async def watch_the_loop(pauses: list[float]) -> None:
    """Note how long this thread was busy before each turn of this task."""
    while True:
        before = time.thread_time()
        await anyio.sleep(0.001)
        pauses.append(time.thread_time() - before)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in FLOODS
    ],
)
async def test_one_client_does_not_hold_up_the_others(name: str) -> None:
    flood = FLOODS[name]
    if name == "bytes to a stream" and jpeg.find_compressor() is None:
        pytest.skip("needs simplejpeg or Pillow")
    pauses: list[float] = []
    frame = np.zeros((48, 64, 3), np.uint8)
    async with azc.Broadcast() as hub, web.serve(hub, file=FLOODER) as to:
        async with azc.connect_tcp("127.0.0.1", to.port) as viewer:
            await become_a_viewer(viewer)
            message = bytearray(4 + 32 + frame.nbytes)
            with flooding(to.port, flood):
                async with cut_short(watch_the_loop, pauses):
                    while (
                        hub.sequence < FRAMES
                        or to._site._answers[flood.status] < flood.answers
                    ):
                        await hub.publish(frame)
                        await viewer.receive_exactly(message)
                        await anyio.sleep(0.01)
    assert sorted(pauses)[-3] < LONGEST_PAUSE


@pytest.mark.every_loop
async def test_what_is_too_much_is_told() -> None:
    """Within limits a viewer may say anything; beyond them, it hears why it must go."""
    ping = b"\x89\x80" + MASK
    async with azc.Broadcast() as hub, web.serve(hub) as to:
        async with azc.connect_tcp("127.0.0.1", to.port) as viewer:
            await become_a_viewer(viewer)
            await viewer.send(ping * talk.MAX_EVENTS)
            pongs = bytearray(2 * talk.MAX_EVENTS)
            await viewer.receive_exactly(pongs)
            assert pongs == b"\x8a\x00" * talk.MAX_EVENTS
            await viewer.send(ping * 6 * talk.MAX_EVENTS)  # some may still be answered
            said = b"".join([piece async for piece in viewer])
    assert said.startswith(b"\x8a\x00")
    assert said.endswith(b"\x03\xf0too many messages")
