"""Ten thousand signals a second, each of which interrupts a system call.

AZC_STORM_MB sets how much is sent meanwhile, over each link.
"""

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import figures
import pytest
from links import LENDING, linux_only, open_link, reading
from oracle import Checker, message, poison

import aiozerocopy as azc

# (method="signal" would use the same timer.)
pytestmark = [linux_only, pytest.mark.slow, pytest.mark.timeout(1800, method="thread")]

NBYTES = int(os.environ.get("AZC_STORM_MB", "20")) << 20
SIZE = 700_000
SECONDS = 1e-4


@contextmanager
def storm(handler: str) -> Iterator[list[int]]:
    """Send signals to this process, without SA_RESTART; yield how many Python saw."""
    libc = ctypes.CDLL(None)
    libc.signal.restype = None
    count = [0]

    def note(*_: object) -> None:
        count[0] += 1

    before = signal.signal(signal.SIGALRM, note)
    signal.siginterrupt(signal.SIGALRM, True)
    if handler == "C":  # any harmless function that takes a number
        harmless = ctypes.cast(libc.abs, ctypes.c_void_p)
        libc.signal(int(signal.SIGALRM), harmless)
    signal.setitimer(signal.ITIMER_REAL, SECONDS, SECONDS)
    try:
        yield count
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


async def send_all(stream: azc.SendStream) -> int:
    """Send in every way; return the number of messages."""
    number = 0
    pool = azc.FramePool(SIZE, slots=2)
    while stream.stats.bytes_sent < NBYTES:
        data = [message(1, number + n, SIZE - 32 - n) for n in range(5)]
        await stream.send(data[0])
        await stream.send(data[1][:9], data[1][9:])
        await (await stream.put(data[2]))
        await stream.send_many(data[3:4])
        async with await pool.acquire() as frame:
            view = frame.view[: len(data[4])]
            view[:] = data[4]
            await stream.send(view)
            poison(view)
            view.release()
        for each in data:
            poison(each)
            each.clear()
        number += 5
    return number


@pytest.mark.parametrize("handler", ["Python", "C"])
@pytest.mark.parametrize("kind", ["pipe", "adopted", *LENDING, "unix", "tcp4", "cat"])
@pytest.mark.parametrize("ours", [True, False], ids=["ours", "plain"])
def test_storm(kind: str, handler: str, ours: bool, tmp_path: Path) -> None:
    checker = Checker()
    sent: list[int] = []

    async def main() -> None:
        with open_link(kind, tmp_path) as link:
            async with reading(link, checker.feed, ours=ours), link.sender() as stream:
                sent.append(await send_all(stream))

    with storm(handler) as count:
        anyio.run(main)
    checker.finish()
    assert checker.counts == {1: sent[0]}
    assert checker.received >= NBYTES
    assert (count[0] > 0) == (handler == "Python")
    figures.count("bytes while signals storm", checker.received, "B")
    figures.count("signals that interrupted", count[0])
