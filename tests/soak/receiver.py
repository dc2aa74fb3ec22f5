"""The process that receives and compares every byte, with plain reads or our streams.

Two senders announce each stream, with its fd, and later how it ended on their side.  So
the receiver knows whether its own end was right: after a clean close everything has
arrived, and only a stream that was meant to die early is not read to its end.
"""

import contextlib
import json
import os
import socket
import stat
import sys
from dataclasses import dataclass
from typing import Any

import anyio
import sabotage

import aiozerocopy as azc

from .messages import Verifier
from .samples import sampling

ROOM = 1 << 20  # bytes of a read, at most
# The sizes of reads.  Small reads leave data in the link, which shows whether a sender
# believes that it has been read.
SIZES = (5000, 40_000, 256 << 10, ROOM)
NOTE = 4096  # bytes of a sender's note


class Wrong(Exception):
    """Wrong data arrived, or data in the wrong place."""


@dataclass
class Incoming:
    """A stream, and what is known of its end on either side."""

    verifier: Verifier
    way: str
    dies: int | None  # after this byte, this side closes it
    ended: str = ""  # "end", or "left" if it was closed here
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


class Receiver:
    """All open streams, and the counts of all that have ended.

    ``plain`` reads by system calls, into memory that all tasks share, as none uses it
    across an await; otherwise each stream is one of ours.
    """

    def __init__(self, *, plain: bool) -> None:
        self.plain = memoryview(bytearray(ROOM)) if plain else None
        self.open: dict[int, Incoming] = {}
        self.counts = dict.fromkeys(("bytes", "messages", "missing", "left"), 0)

    async def run(self, notices: list[socket.socket]) -> None:
        async with anyio.create_task_group() as helpers:
            helpers.start_soon(sampling, self.counts)
            async with anyio.create_task_group() as tasks:
                for sock in notices:
                    tasks.start_soon(self.hear, sock, tasks)
            helpers.cancel_scope.cancel()

    async def hear(self, sock: socket.socket, tasks: anyio.abc.TaskGroup) -> None:
        """Hear of streams, and of their ends on the sender's side, until it ends."""
        while True:
            await anyio.wait_readable(sock)
            note, fds, _, _ = socket.recv_fds(sock, NOTE, 1)
            if not note:
                return
            fact: dict[str, Any] = json.loads(note)
            number = fact["id"]
            if "fate" in fact:
                self.open[number].fate = fact["fate"]
                self.judge(self.open[number])
                continue
            one = Incoming(Verifier(number), fact["way"], fact["dies"])
            self.open[number] = one
            tasks.start_soon(self.receive, one, fds[0])

    async def receive(self, one: Incoming, fd: int) -> None:
        errors = (anyio.EndOfStream, azc.StreamBroken, ConnectionResetError)
        with contextlib.suppress(*errors):
            if self.plain is not None:
                await self.read(one, fd, self.plain)
            else:
                await self.stream(one, fd)
        one.ended = "left" if one.is_to_leave else "end"
        self.counts["left"] += one.is_to_leave
        self.judge(one)

    async def read(self, one: Incoming, fd: int, memory: memoryview) -> None:
        os.set_blocking(fd, False)
        try:
            while not one.is_to_leave:
                try:
                    n = os.readv(fd, [memory[: one.room()]])
                except BlockingIOError:
                    await anyio.wait_readable(fd)
                    continue
                if not n:
                    return
                self.feed(one, memory[:n])
                await anyio.lowlevel.checkpoint()
        finally:
            os.close(fd)

    async def stream(self, one: Incoming, fd: int) -> None:
        is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
        opener = azc.wrap_socket if is_socket else azc.open_reader
        memory = memoryview(bytearray(one.room()))
        stream: azc.ReceiveStream = opener(fd)
        try:
            while not one.is_to_leave:
                n = await stream.receive_into(memory[: one.room()])
                self.feed(one, memory[:n])
        finally:
            stream.abort()

    def feed(self, one: Incoming, piece: memoryview) -> None:
        self.counts["bytes"] += len(piece)
        try:
            one.verifier.feed(piece)
        except AssertionError as error:
            raise Wrong(f"{one.way} {one.verifier.stream}: {error}") from None

    def judge(self, one: Incoming) -> None:
        """Check whether the end was right, once it is known from both sides."""
        if not (one.ended and one.fate):
            return
        del self.open[one.verifier.stream]
        self.counts["messages"] += one.verifier.messages
        self.counts["missing"] += one.verifier.missing
        if one.ended == "end" and one.fate == "closed" and not one.verifier.ended:
            raise Wrong(f"{one}: it was closed, but the rest of it has not come")
        if one.ended == "end" and one.fate == "broken":
            raise Wrong(f"{one}: broken over there, but read to its end here")


def main(how: str, numbers: list[str]) -> int:
    sabotage.apply(os.environ.get(sabotage.VARIABLE, ""))
    receiver = Receiver(plain=how == "plain")
    notices = [socket.socket(fileno=int(number)) for number in numbers]
    try:
        options = {"use_uvloop": how == "ours"}
        anyio.run(receiver.run, notices, backend_options=options)
    except Exception as error:  # (Wrong, or a group that contains it)
        if "Wrong(" not in repr(error):
            raise
        print(json.dumps({"wrong": repr(error)}), flush=True)
        return 1
    print(json.dumps({"end": receiver.counts}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
