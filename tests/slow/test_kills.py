"""A reader or a sender that is killed at any byte: a beginning comes, and it is right.

AZC_KILLS says how often, for each link.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import figures
import pytest
from links import LENDING, linux_only, open_link
from oracle import CANARY, Checker, message, poison

import aiozerocopy as azc

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [linux_only, pytest.mark.slow, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("AZC_KILLS", "20"))
SERVER = Path(__file__).parents[1] / "support" / "kill_server.py"
SIZE = 150_000
LINKS = ("pipe", *LENDING, "unix", "tcp4")


class Killer:
    """The server: gives it an fd, and waits for the end of who got it."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(SERVER)],
                stdin=theirs.fileno(),
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )

    def give(self, fd: int, **order: Any) -> None:
        socket.send_fds(self._orders, [json.dumps(order).encode()], [fd])
        os.close(fd)

    def status(self) -> int:
        return int(json.loads(self._orders.recv(100)))

    def close(self) -> None:
        self._orders.close()
        self._process.wait()


@pytest.fixture
def killer() -> Iterator[Killer]:
    with contextlib.closing(Killer()) as running:
        yield running


@pytest.fixture(params=LINKS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# ---- readers ------------------------------------------------------------------------


async def use(stream: azc.SendStream, pool: azc.FramePool | None) -> int:
    """Send until the reader is gone; return how many messages were out before."""
    for number in range(1 << 40):
        if pool is None:
            data = message(number, 0, SIZE)
            try:
                await stream.send(data[:40_000], data[40_000:])
            except azc.StreamBroken:
                return number
            finally:
                poison(data)
                data.clear()
        else:
            frame = await pool.acquire()
            frame.view[:] = message(number, 0, SIZE - 32)
            try:
                await stream.send(frame)
            except azc.StreamBroken:
                return number
            finally:
                poison(frame.view, CANARY)
                frame.release()
    raise AssertionError


def test_reader_is_killed(kind: str, killer: Killer, tmp_path: Path) -> None:
    dice = random.Random(kind)

    async def one(folder: Path) -> None:
        order: dict[str, Any] = {
            "role": "read",
            "begun": False,
            "bytes": int(2 ** dice.uniform(0, 22)),
            "piece": dice.choice([1000, 4096, 65_536, 1 << 20]),
        }
        if dice.random() < 0.5:  # by somebody else, wherever it is
            order |= {"seconds": dice.uniform(0, 0.01), "bytes": 1 << 62}
        with open_link(kind, folder) as link:
            pool = azc.FramePool(SIZE, slots=2) if link.lends else None
            stream = link.sender()
            killer.give(link.take_read_fd(), **order)
            with anyio.fail_after(20):
                await use(stream, pool)
            for _ in range(2):  # and so it stays
                with pytest.raises(azc.StreamBroken):
                    await stream.send(b"more")
            with contextlib.suppress(azc.StreamBroken):
                await stream.aclose()
        assert killer.status() == -signal.SIGKILL

    async def all_of_them() -> None:
        for number in range(KILLS):
            folder = tmp_path / str(number)
            folder.mkdir()
            await one(folder)

    anyio.run(all_of_them)
    figures.count("kills of readers", KILLS)


# ---- senders ------------------------------------------------------------------------


def test_sender_is_killed(kind: str, killer: Killer, tmp_path: Path) -> None:
    dice = random.Random(kind)
    received = 0
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        with open_link(kind, folder) as link:
            killer.give(
                link.take_write_fd(),
                role="send",
                lends=link.lends,
                begun=dice.random() < 0.9,  # else it is killed while it begins
                seconds=dice.uniform(0.0, 0.03),
            )
            received += read_to_end(link.take_read_fd())
        assert killer.status() == -signal.SIGKILL
    assert received
    figures.count("kills of senders", KILLS)


def read_to_end(fd: int) -> int:
    """How many bytes came; each was right, and none was poison or canary."""
    checker = Checker()
    try:
        with contextlib.suppress(ConnectionResetError):
            while data := os.read(fd, 100_000):
                checker.feed(data)
    finally:
        os.close(fd)
    return checker.received
