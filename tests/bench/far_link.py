"""A link as remote viewers have it: slow, far away, or silent for a while.

Two TUN devices in network namespaces, and a process that carries each packet from one
to the other when it is due, or loses it.  (The kernel's netem is not on every
machine.)  What goes to the client is delayed, lost and squeezed, what comes back is
not; in a silence nothing passes either way.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import select
import subprocess
import time
from collections.abc import Iterator
from typing import NamedTuple

from bench.processes import ENVIRONMENT, worker
from bench.worker import Job

PERIOD, SILENCE = 7.0, 2.0  # seconds: from one silence to the next, and of a silence
PACKET = 1 << 16


class Shape(NamedTuple):
    """What the link does to packets."""

    delay: float = 0.0  # seconds, to the client
    loss: float = 0.0  # share of the packets to the client
    rate: float = 0.0  # bytes a second to the client; 0: no limit
    buffer: float = 0.1  # seconds that packets may wait because of `rate`
    silence: str = ""  # "holds" packets back until its end, or "loses" them


def back_at(now: float) -> float:
    """When the last silence that began before ``now`` ends or ended (`time.time`)."""
    return now - now % PERIOD + SILENCE


class Way:
    """One direction: packets come from one fd and leave by another, in order."""

    def __init__(self, source: int, sink: int, shape: Shape) -> None:
        self.source, self._sink, self._shape = source, sink, shape
        self._random = random.Random(1)
        self._free = 0.0  # when the last packet has passed the bottleneck
        self._waiting: collections.deque[tuple[float, bytes]] = collections.deque()

    def take(self, now: float) -> None:
        packet, shape = os.read(self.source, PACKET), self._shape
        silent = bool(shape.silence) and now < back_at(now)
        begin = max(now, self._free)
        is_full = shape.rate and begin - now > shape.buffer
        is_lost = self._random.random() < shape.loss or is_full
        if is_lost or (silent and shape.silence == "loses"):
            return
        self._free = begin + (len(packet) / shape.rate if shape.rate else 0.0)
        due = self._free + shape.delay
        self._waiting.append((max(due, back_at(now)) if silent else due, packet))

    def pass_on(self, now: float) -> float:
        """Write what is due; return when the next packet is."""
        while self._waiting and self._waiting[0][0] <= now:
            os.write(self._sink, self._waiting.popleft()[1])
        return self._waiting[0][0] if self._waiting else now + 1


def carry(job: Job) -> None:
    """Carry packets between both ends, until the process is killed."""
    server, client = job.ends
    there, back = Shape(*job.link), Shape(silence=Shape(*job.link).silence)
    ways = [Way(server, client, there), Way(client, server, back)]
    while True:
        now = time.time()
        due = min(way.pass_on(now) for way in ways)
        ready, _, _ = select.select([server, client], [], [], max(0.0, due - now))
        for way in ways:
            if way.source in ready:
                way.take(time.time())


@contextlib.contextmanager
def carried(job: Job) -> Iterator[None]:
    """A block in which a process carries packets, if the job has such a link."""
    if not job.ends:
        yield
        return
    command = worker(carry, ends=job.ends, link=job.link)
    with subprocess.Popen(
        command, pass_fds=job.ends, env=ENVIRONMENT, stdout=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            process.kill()
