"""A sender that is killed at any byte: a beginning comes, and it is right.

(A reader that is killed closes its end, as others do: contract/test_p6_exact_failure.py
has that.)  AZC_KILLS says how often, for each link.
"""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import figures
import pytest
from links import LENDING, linux_only, open_link
from oracle import Checker

pytestmark = [linux_only, pytest.mark.slow, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("AZC_KILLS", "20"))
SERVER = Path(__file__).parents[1] / "support" / "kill_server.py"
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


@pytest.mark.parametrize("kind", LINKS)
def test_sender_is_killed(kind: str, killer: Killer, tmp_path: Path) -> None:
    dice = random.Random(kind)
    received = 0
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        with open_link(kind, folder) as link:
            killer.give(
                link.take_write_fd(),
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
