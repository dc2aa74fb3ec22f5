"""50 viewers beside 3,200 hostile connections: see support/crowd.py.

AZC_CROWD_SECONDS sets the duration.  Times mean something only on an idle machine, so
this test runs alone; support/figures.py keeps them.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import figures
import pytest
from crowd import FACES, VIEWERS
from links import linux_only
from scripts import environment

SECONDS = float(os.environ.get("AZC_CROWD_SECONDS", "3"))
BEFORE, STORM = 2.0, 3.0  # seconds of the viewers alone, and until the crowd has come
CROWD = Path(__file__).parents[1] / "support" / "crowd.py"
MIB = 1 << 20

pytestmark = [linux_only, pytest.mark.quiet, pytest.mark.timeout(120 + 3 * SECONDS)]


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, str(CROWD), *arguments],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


class Server:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._asks, self._answers = process.stdin, process.stdout
        self.port = self._answers.readline().strip()

    def now(self) -> dict[str, float]:
        self._asks.write("\n")
        self._asks.flush()
        told: dict[str, float] = json.loads(self._answers.readline())
        return told

    def load(self, seconds: float) -> tuple[float, dict[str, float]]:
        """Return the share of a core in use, and the highest of the other figures."""
        begin, first = time.monotonic(), self.now()
        most = last = first
        while time.monotonic() < begin + seconds:
            time.sleep(0.5)
            last = self.now()
            most = {what: max(most[what], last[what]) for what in most}
        return (last["cpu"] - first["cpu"]) / (time.monotonic() - begin), most


@pytest.mark.parametrize("face", FACES)
def test_a_hostile_crowd(face: str) -> None:
    if face not in ("tcp", "distributed"):
        pytest.importorskip("wsproto")
    if face not in ("tcp", "ours"):
        pytest.importorskip(face)
    watched = BEFORE + STORM + SECONDS + 2
    with running("serve", face) as process:
        server = Server(process)
        with running("watch", face, server.port, str(watched)) as watch:
            while (alone := server.now())["viewers"] < VIEWERS:
                time.sleep(0.05)
            own, _ = server.load(BEFORE)
            with running("attack", face, server.port):
                _, most = server.load(STORM)
                load, later = server.load(SECONDS)
            assert watch.stdout is not None
            seen: dict[str, Any] = json.loads(watch.stdout.readline())
        while (after := server.now())["fds"] > alone["fds"] - VIEWERS:
            time.sleep(0.1)
    grown = max(most["rss"], later["rss"]) - alone["rss"]
    figures.worst(f"{face}: CPU for the crowd", 100 * (load - own), "%")
    figures.worst(f"{face}: p99 of a frame", seen["p99"], "ms")
    figures.worst(f"{face}: frames lost", seen["lost"])
    figures.worst(f"{face}: memory for the crowd", grown, "B")
    assert seen["gone"] == 0
    assert seen["lost"] < 0.05 * seen["frames"]
    assert after["threads"] <= alone["threads"]
    if face in ("ours", "tcp"):  # (others have their own costs, and admit everybody)
        assert grown < 64 * MIB
        if SECONDS >= 20:  # (in less time, silent clients still come and go)
            assert load - own < 0.4
    assert grown < 128 * MIB
    assert seen["unanswered"] <= 0.1 * seen["probes"]
