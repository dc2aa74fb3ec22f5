"""A sender that is killed at any byte: the reader gets an intact prefix.

The sender is a forked child, which reuses all memory that it gets back.  AZC_KILLS sets
how often it is killed, for each link.  (A killed reader closes its end, which
contract/test_p6_exact_failure.py covers.)
"""

import contextlib
import os
import random
import signal
import stat
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from io import FileIO
from pathlib import Path
from typing import Any

import anyio
import figures
import pytest
from links import LENDING, linux_only, open_link
from oracle import CANARY, Checker, message, poison

import aiozerocopy as azc

pytestmark = [
    linux_only,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
]

KILLS = int(os.environ.get("AZC_KILLS", "20"))
LINKS = ("pipe", *LENDING, "unix", "tcp4")
SIZE = 300_000


@pytest.mark.parametrize("kind", LINKS)
def test_sender_is_killed(kind: str, tmp_path: Path) -> None:
    dice = random.Random(kind)
    received = 0
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        # (now and then the sender is killed before it has begun)
        waits, seconds = dice.random() < 0.9, dice.uniform(0.0, 0.03)
        has_begun, begun = os.pipe()
        with open_link(kind, folder) as link, open(has_begun, "rb", 0) as word:
            fd = link.take_write_fd()
            sender = forked(lend if link.lends else send, fd, begun)
            os.close(fd)
            os.close(begun)
            arguments = (sender, word if waits else None, seconds)
            killer = threading.Thread(target=kill, args=arguments)
            killer.start()
            received += read_to_end(link.take_read_fd())
            killer.join()
        status = os.waitstatus_to_exitcode(os.waitpid(sender, 0)[1])
        assert status == -signal.SIGKILL
    assert received
    figures.count("kills of senders", KILLS)


def kill(sender: int, word: FileIO | None, seconds: float) -> None:
    if word is not None:
        word.read(1)
    time.sleep(seconds)
    os.kill(sender, signal.SIGKILL)


def read_to_end(fd: int) -> int:
    """Check every byte, to the end; return how many bytes came."""
    checker = Checker()
    try:
        with contextlib.suppress(ConnectionResetError):
            while data := os.read(fd, 100_000):
                checker.feed(data)
    finally:
        os.close(fd)
    return checker.received


# ---- in the child --------------------------------------------------------------------


def forked(call: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> int:
    """Fork a child that makes only this call; return its pid."""
    pid = os.fork()
    if not pid:
        try:
            anyio.run(call, *args)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def opened(fd: int, peer: str = "unknown") -> azc.SendStream:
    is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
    return azc.wrap_socket(fd, peer=peer) if is_socket else azc.open_writer(fd, peer)


async def send(fd: int, begun: int) -> None:
    """Send, cancel, and fill freed memory with bytes that must never arrive."""
    stream = opened(fd)
    waste = []
    for number in range(1 << 40):
        data = message(number, 0, SIZE - number % 7 * 40_000)
        with anyio.move_on_after(0.001 if number % 3 == 2 else None):
            await stream.send(data)
        if not number:
            os.write(begun, b"!")
        poison(data)
        size = len(data)
        del data
        waste.append(bytearray([CANARY]) * size)
        del waste[:-3]


async def lend(fd: int, begun: int) -> None:
    stream = opened(fd, "reads")
    pool = azc.FramePool(SIZE, slots=2)
    for number in range(1 << 40):
        frame = await pool.acquire()
        frame.view[:] = message(number, 0, SIZE - 32)
        if number % 3 == 2:
            await stream.put(frame)  # lent until it has been read
        else:
            await stream.send(frame)
            poison(frame.view)
        if not number:
            os.write(begun, b"!")
        frame.release()
