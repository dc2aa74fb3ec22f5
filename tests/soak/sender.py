"""The process that sends on many streams at once, each followed by another one.

A stream ends by a clean close, by an abort in the middle of a message, or by its
reader, who may leave at any byte.  A buffer is overwritten as soon as it is ours again.
"""

import contextlib
import itertools
import json
import os
import random
import socket
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import sabotage
from links import LENDING
from oracle import CANARY, POISON, payload, poison, seed_of

import aiozerocopy as azc

from . import ways
from .messages import HEADER, LAST
from .samples import sampling

SMALL, LARGEST = 65537, 1 << 20  # sizes of messages in bytes
IN_FLIGHT = 3  # messages put at once
# The receiver of some ways: 0 uses only plain reads.
FIXED = dict.fromkeys(LENDING, 0)
BUDGET = (256 << 10, 64 << 20)  # bytes of a stream, exceeded by a message at most
THREADS = 4  # threads that send


def size(chance: random.Random) -> int:
    kind = chance.random()
    if kind < 0.25:
        return chance.choice((0, 1, 4095, 4096, 4097))
    if kind < 0.45:
        return chance.choice((65535, 65536, 65537))
    return chance.randint(1, 256 << 10) if kind < 0.85 else LARGEST


def room(nbytes: int) -> memoryview:
    """Make a buffer for a message, filled with bytes that are never sent."""
    view = memoryview(bytearray(HEADER.size + nbytes))
    poison(view, CANARY)
    return view


class Office:
    """Shared by all streams of the process: counters, and sockets to the receivers."""

    def __init__(
        self, number: int, receivers: list[socket.socket], folder: Path, until: float
    ) -> None:
        self.folder, self.receivers, self.until = folder, receivers, until
        self.ids = itertools.count(2 + number, 2)
        self.counts = dict.fromkeys(
            ("bytes", "messages", "streams", "cancels", "broken", "aborts"), 0
        )
        self.threads = anyio.CapacityLimiter(THREADS)
        self.gates = [anyio.Lock() for _ in receivers]

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    async def tell(self, receiver: int, *fds: int, **fact: Any) -> None:
        """Send a note to a receiver, which may be stopped, with a full socket."""
        sock = self.receivers[receiver]
        async with self.gates[receiver]:
            await anyio.wait_writable(sock)
            socket.send_fds(sock, [json.dumps(fact).encode()], fds)


class Sender:
    """Plays one stream after the other, and owns their buffers."""

    def __init__(self, office: Office, way: str, seed: int) -> None:
        self.office, self.way = office, way
        self.chance = random.Random(seed)
        self.small = [room(SMALL) for _ in range(IN_FLIGHT)]
        self.large = room(0 if way in LENDING else LARGEST)
        self.pool: azc.FramePool | None = None
        if way in LENDING:
            self.pool = azc.FramePool(HEADER.size + LARGEST, slots=2)
        self.stream: Any = None
        self.number = self.sequence = self.cancelled = self.sent = 0  # for this stream

    async def live(self) -> None:
        while not self.office.is_over:
            await self._life()
        self.stream = None

    async def _life(self) -> None:
        """Play one stream, from its opening to its end."""
        doomed = self.chance.random() < 0.2  # the reader leaves after some bytes
        dies = self.chance.randint(0, BUDGET[1] // 4) if doomed else None
        receiver = FIXED.get(self.way, self.chance.randint(0, 1))
        self.number = next(self.office.ids)
        self.sequence = self.cancelled = self.sent = 0
        self.office.counts["streams"] += 1
        fact: dict[str, Any] = {"id": self.number, "way": self.way, "dies": dies}
        async with anyio.create_task_group() as tasks:
            is_relay = self.way == "relay"
            way = self.chance.choice(ways.RELAYED) if is_relay else self.way
            self.stream, fd = ways.open_end(way, self.office.folder)
            if is_relay:
                source, writer = azc.pipe()
                tasks.start_soon(ways.relay, source, self.stream)
                self.stream = writer
            await self.office.tell(receiver, fd, **fact)
            os.close(fd)
            fate = await self._fate(doomed)
        await self.office.tell(receiver, id=self.number, fate=fate)

    async def _fate(self, doomed: bool) -> str:
        budget = int(BUDGET[0] * (BUDGET[1] / BUDGET[0]) ** self.chance.random())
        try:
            while self.sent < budget and not self.office.is_over:
                await self._message()
            if self.chance.random() < 0.2:
                return await self._abort()
            await self._send(0, last=True)
            await self.stream.aclose()
            return "closed"
        except (azc.StreamBroken, azc.StreamClosed):
            if not doomed:
                raise
            self.office.counts["broken"] += 1
            self.stream.abort()
            return "broken"

    async def _abort(self) -> str:
        """End in the middle of a message, if one is being sent."""
        self.office.counts["aborts"] += 1
        async with anyio.create_task_group() as tasks:

            async def send() -> None:
                with contextlib.suppress(azc.StreamBroken, azc.StreamClosed):
                    await self._send(size(self.chance))

            tasks.start_soon(send)
            await anyio.sleep(self.chance.random() / 500)
            self.stream.abort()
        return "aborted"

    # -- messages -----------------------------------------------------------------

    async def _message(self) -> None:
        kind = self.chance.random()
        if kind < 0.15:
            await self._put()
        elif kind < 0.25:
            await self._send_many()
        else:
            await self._send(size(self.chance))

    def _fill(self, buffer: memoryview, nbytes: int, last: bool = False) -> memoryview:
        """Write a message into the start of a buffer."""
        view = buffer[: HEADER.size + nbytes]
        flags = self.cancelled | (LAST if last else 0)
        HEADER.pack_into(view, 0, self.number, self.sequence, nbytes, flags)
        seed = seed_of(self.number, self.sequence)
        view[HEADER.size :] = payload(seed, nbytes)
        self.sequence += 1
        return view

    def _count(self, messages: int, nbytes: int) -> None:
        self.cancelled = 0
        self.sent += nbytes
        self.office.counts["messages"] += messages
        self.office.counts["bytes"] += nbytes

    async def _send(self, nbytes: int, last: bool = False) -> None:
        if self.pool is not None:
            async with await self.pool.acquire() as frame:
                with frame.view as buffer:  # (no traceback must hold it)
                    await self._send_from(buffer, nbytes, last)
        else:
            await self._send_from(self.large, nbytes, last)

    async def _send_from(self, buffer: memoryview, nbytes: int, last: bool) -> None:
        view = self._fill(buffer, nbytes, last)
        ends = not last and self.chance.random() < 0.1
        seconds = self.chance.random() / 200 if ends else None
        with anyio.move_on_after(seconds) as scope:
            try:
                await self._hand_over(view)
            finally:
                poison(view, CANARY if scope.cancel_called else POISON)
                sent = len(view)
                view.release()  # (this fails if the buffer is still borrowed)
            self._count(1, sent)
            return
        self.cancelled += 1
        self.office.counts["cancels"] += 1

    async def _hand_over(self, view: memoryview) -> None:
        kind = self.chance.random()
        if kind < 0.8:
            await self.stream.send(view)
        elif kind < 0.9:
            cut = self.chance.randint(0, len(view))
            await self.stream.send(view[:cut], view[cut:])
        else:
            await anyio.to_thread.run_sync(
                self.stream.send_from_thread, view, limiter=self.office.threads
            )

    async def _put(self) -> None:
        """Keep messages in flight; overwrite each buffer when its ticket is done."""
        tickets = []
        for buffer in self.small:
            view = self._fill(buffer, self.chance.choice((1, 4096, 65536, 65537)))
            tickets.append((await self.stream.put(view), view))
            self._count(1, len(view))
        for ticket, view in tickets:
            await ticket
            poison(view, POISON)

    async def _send_many(self) -> None:
        sizes = self.chance.choices((0, 1, 100, 4095, 4096, 4097), k=8)
        buffer, views = self.small[0], []
        for nbytes in sizes:
            views.append(self._fill(buffer, nbytes))
            buffer = buffer[HEADER.size + nbytes :]
            # (if these are cancelled, any number of them may be missing)
        with anyio.move_on_after(0.001 if self.chance.random() < 0.1 else None):
            try:
                await self.stream.send_many(views)
            finally:
                for view in views:
                    poison(view, POISON)
            self._count(len(views), sum(map(len, views)))
            return
        self.cancelled += len(views)
        self.office.counts["cancels"] += 1


# ---- the process --------------------------------------------------------------------


async def run(number: int, streams: int, seconds: float, seed: int) -> None:
    receivers = [socket.socket(fileno=int(fd)) for fd in sys.argv[6:]]
    for sock in receivers:
        sock.setblocking(False)
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        office = Office(number, receivers, Path(folder), until)
        senders = [
            Sender(office, way, seed * 1_000_003 + number * 1009 + n)
            for n, way in enumerate(ways.shared_out(streams))
        ]
        async with anyio.create_task_group() as helpers:
            helpers.start_soon(sampling, office.counts)
            async with anyio.create_task_group() as tasks:
                for sender in senders:
                    tasks.start_soon(sender.live)
            helpers.cancel_scope.cancel()
    print(json.dumps({"end": office.counts}), flush=True)


if __name__ == "__main__":
    loop, number, streams, seconds, seed = sys.argv[1:6]
    sabotage.apply(os.environ.get(sabotage.VARIABLE, ""))
    work = partial(run, int(number), int(streams), float(seconds), int(seed))
    anyio.run(work, backend_options={"use_uvloop": loop == "uvloop"})
