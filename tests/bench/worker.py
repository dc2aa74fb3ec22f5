"""What runs in a Python process of a bench: ``python -m bench.worker MODULE:FUNCTION``.

The function gets a `Job` and does all of the work.  What it returns is added to the
report, which goes to stdout in one line of JSON.
"""

import asyncio
import importlib
import inspect
import itertools
import json
import os
import resource
import socket
import sys
import time
from collections.abc import Coroutine, Iterator
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

DEFAULTS = {
    "loop": "asyncio",
    "fd": -1,  # a link's end; without a link the sink is started as a child
    "kind": "memoryview",  # of the buffers, or "bytes"
    "is_ours": False,  # whether the transport is ours
    "check": False,  # every byte that is received
    "wrong": -1,  # the first one found
}


class Job(SimpleNamespace):
    """What the process was told (`race.Work` and more), and its clock.

    The clock runs from `begin` to `end`, or to the end of the function.
    """

    wrong: int
    told: dict[str, Any]  # for another process with the same work

    def begin(self) -> None:
        """The warm-up is over."""
        self.ended: tuple[float, float] | None = None
        self.began = time.perf_counter(), cpu()

    def end(self) -> None:
        self.ended = time.perf_counter(), cpu()

    def report(self, returned: dict[str, Any] | None) -> None:
        end = self.ended or (time.perf_counter(), cpu())
        told = {
            "who": "sender",
            "seconds": end[0] - self.began[0],
            "cpu": end[1] - self.began[1],
            "children_cpu": cpu(resource.RUSAGE_CHILDREN),
            **(returned or {}),
        }
        # (in one write, since other processes write to the same pipe)
        os.write(1, json.dumps(told).encode() + b"\n")

    # -- what is sent

    def data(self) -> bytes:
        return Path(self.pattern).read_bytes()

    @cached_property
    def pieces(self) -> list[bytes]:
        """The contents of each buffer."""
        data = self.data()
        return [data[at : at + self.size] for at in range(0, len(data), self.size)]

    def messages_in_turn(self, *, are_bytes: bool = False) -> Iterator[Any]:
        """The messages of the warm-up, then those that count.

        The buffers rotate and never change, so a library that returns before the bytes
        are out is not at a disadvantage.
        """
        pieces = self.pieces
        return self.in_turn(pieces if are_bytes else changeable(pieces), 1)

    def batches(self) -> Iterator[list[memoryview]]:
        """The messages in batches of all buffers."""
        buffers = changeable(self.pieces)
        return self.in_turn([buffers], len(buffers))

    def in_turn(self, things: list[Any], size: int) -> Iterator[Any]:
        """Yield things in turn, of ``size`` messages each, until all are done."""

        def phases() -> Iterator[Iterator[Any]]:
            yield itertools.islice(itertools.cycle(things), self.warm // size)
            self.begin()
            yield itertools.islice(itertools.cycle(things), self.messages // size)

        return itertools.chain.from_iterable(phases())

    def phases(self) -> Iterator[Iterator[int]]:
        """The numbers of the messages of the warm-up, then of those that count."""
        yield iter(range(self.warm))
        self.begin()
        yield iter(range(self.warm, self.warm + self.messages))
        self.end()

    def numbers(self) -> Iterator[int]:
        """The numbers of both phases, where nothing is to be done between them."""
        return itertools.chain.from_iterable(self.phases())

    # -- what is received

    def memory(self) -> list[memoryview]:
        """Where messages go in turn: one buffer fewer than pieces, since otherwise old
        bytes could pass for new ones.
        """
        return [memoryview(bytearray(self.size)) for _ in range(self.buffers - 1)]

    def look(self, number: int, message: Any) -> None:
        """Compare a message, in the round that checks."""
        if self.check:
            # (views are compared item by item, which takes ten times as long)
            is_right = bytes(message) == self.pieces[number % self.buffers]
            if not is_right and self.wrong < 0:
                self.wrong = number * self.size

    def received(self) -> dict[str, Any]:
        """Return the part of the report about all messages received."""
        return {"who": "sink", "bytes": self.total, "wrong": self.wrong}

    def socket(self) -> socket.socket:
        """The socket with the number `fd`."""
        sock = socket.socket(fileno=self.fd)
        sock.setblocking(False)
        return sock


def changeable(pieces: list[bytes]) -> list[memoryview]:
    return [memoryview(bytearray(piece)) for piece in pieces]


def cpu(who: int = resource.RUSAGE_SELF) -> float:
    """CPU seconds so far, of all threads."""
    use = resource.getrusage(who)
    return use.ru_utime + use.ru_stime


async def run(job: Job, work: Coroutine[Any, Any, Any]) -> None:
    if "aiofastnet" in job.loop:
        import aiofastnet

        aiofastnet.patch_loop()
    job.report(await work)  # before the interpreter ends, which is not part of the work


def main(name: str, told: str) -> None:
    module, _, function = name.partition(":")
    call = getattr(importlib.import_module(module), function)
    job = Job(**{**DEFAULTS, **json.loads(told)})
    job.told = {**vars(job)}
    job.begin()
    if not inspect.iscoroutinefunction(call):
        job.report(call(job))
    elif job.loop.startswith("uvloop"):
        import uvloop

        uvloop.run(run(job, call(job)))
    else:
        asyncio.run(run(job, call(job)))


if __name__ == "__main__":
    main(*sys.argv[1:])
