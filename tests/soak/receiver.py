"""The process that receives and compares every byte, with plain reads or our streams.

Its two senders tell it of each stream, with the fd, and later how the stream ended over
there.  Of each it knows then whether the end was right: all of it came after a clean
close, and only the one who was meant to die early has not read to the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import stat
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import anyio
import sabotage

import aiozerocopy as azc

from .messages import Verifier
from .samples import EVERY, sample, sampling

ROOM = 1 << 20  # bytes of a read, at most
# What one stream or another is read with: who takes little at a time leaves the rest
# where it is, for a sender to show whether it believes that it has been read.
SIZES = (5000, 40_000, 256 << 10, ROOM)
NOTE = 4096  # bytes of what a sender says


class Wrong(Exception):
    """Something arrived that was not sent, or not in its place."""


@dataclass
class Incoming:
    """A stream; of its two ends each is known at some time."""

    verifier: Verifier
    way: str
    dies: int | None  # behind this byte it is closed here
    ended: str = ""  # "end", or "left" if it has died here
    fate: str = ""

    def room(self) -> int:
        size = SIZES[self.verifier.stream // 2 % len(SIZES)]
        return size if self.dies is None else min(size, self.dies - self.received)

    @property
    def received(self) -> int:
        return self.verifier.received

    @property
    def is_to_leave(self) -> bool:
        return self.dies is not None and self.received >= self.dies


class Desk:
    """All streams that are open, and what has come through those before."""

    def __init__(self) -> None:
        self.open: dict[int, Incoming] = {}
        self.counts = dict.fromkeys(("bytes", "messages", "missing", "left"), 0)

    def note(self, fact: dict[str, Any]) -> Incoming | None:
        """A new stream, or else the fate of one."""
        number = fact["id"]
        if "way" in fact:
            new = Incoming(Verifier(number), fact["way"], fact["dies"])
            self.open[number] = new
            return new
        self.open[number].fate = fact["fate"]
        self._close(self.open[number])
        return None

    def feed(self, one: Incoming, piece: memoryview) -> None:
        self.counts["bytes"] += len(piece)
        try:
            one.verifier.feed(piece)
        except AssertionError as error:
            raise Wrong(f"{one.way} {one.verifier.stream}: {error}") from None

    def end(self, one: Incoming) -> None:
        one.ended = "left" if one.is_to_leave else "end"
        self.counts["left"] += one.is_to_leave
        self._close(one)

    def tell(self) -> None:
        """What is still open, for who wonders why this does not end."""
        for one in self.open.values():
            print(f"receiver: {one}, {vars(one.verifier)}", file=sys.stderr)

    def _close(self, one: Incoming) -> None:
        """Judge it, if both ends are known."""
        if not (one.ended and one.fate):
            return
        del self.open[one.verifier.stream]
        self.counts["messages"] += one.verifier.messages
        self.counts["missing"] += one.verifier.missing
        if one.ended == "end" and one.fate == "closed" and not one.verifier.ended:
            raise Wrong(f"{one}: it was closed, but the rest of it has not come")
        if one.ended == "end" and one.fate == "broken":
            raise Wrong(f"{one}: broken over there, but read to its end here")


def heard(sock: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """What a sender said, and the fd that came with it; None at the end."""
    note, fds, _, _ = socket.recv_fds(sock, NOTE, 1)
    return (json.loads(note) if note else None), fds


# ---- with plain reads ---------------------------------------------------------------


class Plain:
    """One thread that reads what is ready."""

    def __init__(self, desk: Desk, notices: list[socket.socket]) -> None:
        self.desk = desk
        self.memory = memoryview(bytearray(ROOM))
        self.selector = selectors.DefaultSelector()
        self.talking = len(notices)
        for sock in notices:
            self.selector.register(sock, selectors.EVENT_READ, partial(self.hear, sock))

    def run(self) -> None:
        told = time.monotonic()
        while self.talking or self.desk.open:
            for key, _ in self.selector.select(EVERY):
                key.data()
            if time.monotonic() - told >= EVERY:
                told = time.monotonic()
                print(sample(self.desk.counts), flush=True)

    def hear(self, sock: socket.socket) -> None:
        fact, fds = heard(sock)
        if fact is None:
            self.talking -= 1
            self.selector.unregister(sock)
            return
        one = self.desk.note(fact)
        if one is not None:
            os.set_blocking(fds[0], False)
            read = partial(self.read, fds[0], one)
            self.selector.register(fds[0], selectors.EVENT_READ, read)

    def read(self, fd: int, one: Incoming) -> None:
        try:
            n = os.readv(fd, [self.memory[: one.room()]]) if not one.is_to_leave else 0
        except BlockingIOError:
            return
        except ConnectionResetError:
            n = 0
        if n:
            self.desk.feed(one, self.memory[:n])
        else:
            self.selector.unregister(fd)
            os.close(fd)
            self.desk.end(one)


# ---- with our streams ---------------------------------------------------------------


class Ours:
    """A task for each stream, with a memory that all share while nobody else runs."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    async def run(self, notices: list[socket.socket]) -> None:
        async with anyio.create_task_group() as helpers:
            helpers.start_soon(sampling, self.desk.counts)
            async with anyio.create_task_group() as tasks:
                for sock in notices:
                    tasks.start_soon(self.hear, sock, tasks)
            helpers.cancel_scope.cancel()

    async def hear(self, sock: socket.socket, tasks: anyio.abc.TaskGroup) -> None:
        while True:
            await anyio.wait_readable(sock)
            fact, fds = heard(sock)
            if fact is None:
                return
            one = self.desk.note(fact)
            if one is not None and one.way == "ring":
                tasks.start_soon(self.records, one, fact["path"])
            elif one is not None:
                tasks.start_soon(self.read, one, fds[0])

    async def read(self, one: Incoming, fd: int) -> None:
        is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
        opener = azc.wrap_socket if is_socket else azc.open_reader
        memory = memoryview(bytearray(one.room()))
        stream: azc.ReceiveStream = opener(fd)
        with contextlib.suppress(anyio.EndOfStream, azc.StreamBroken):
            while not one.is_to_leave:
                n = await stream.receive_into(memory[: one.room()])
                self.desk.feed(one, memory[:n])
        stream.abort()
        self.desk.end(one)

    async def records(self, one: Incoming, path: str) -> None:
        ring = await azc.shm.connect_ring(path, sends=False, timeout=60)
        with contextlib.suppress(anyio.EndOfStream, azc.StreamBroken):
            while not one.is_to_leave:
                async with await ring.receive() as record:
                    self.desk.feed(one, memoryview(record.view))
        ring.abort()
        self.desk.end(one)


def main(how: str, numbers: list[str]) -> int:
    sabotage.apply(os.environ.get(sabotage.VARIABLE, ""))
    desk = Desk()
    signal.signal(signal.SIGUSR1, lambda *_: desk.tell())
    notices = [socket.socket(fileno=int(number)) for number in numbers]
    try:
        if how == "plain":
            Plain(desk, notices).run()
        else:
            anyio.run(Ours(desk).run, notices, backend_options={"use_uvloop": True})
    except Exception as error:  # (Wrong, or a group with one)
        if "Wrong(" not in repr(error):
            raise
        print(json.dumps({"wrong": repr(error)}), flush=True)
        return 1
    print(json.dumps({"end": desk.counts}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
