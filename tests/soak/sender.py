"""The process that sends: so many streams at once, each followed by another one.

A life is one stream from its opening to its end.  It ends by a clean close, by an abort
in the middle of a message, or by its reader, who may leave at any byte.  What a buffer
held is overwritten as soon as it is ours again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import sabotage
from oracle import CANARY, POISON

import aiozerocopy as azc

from . import ways
from .messages import HEADER, LAST, PIECE, seed_of, write
from .samples import Beats, sampling

SMALL, MIDDLE = 65537, 1 << 20
HUGE = {8 << 20: 3, 64 << 20: 1}  # bytes of a message: buffers for all streams
IN_FLIGHT = 3  # messages of put
BUDGET = (256 << 10, 64 << 20)  # bytes of a life, or a message more
THREADS = 4  # that send from threads
INK = {value: bytes([value]) * PIECE for value in (POISON, CANARY)}


def size(chance: random.Random) -> int:
    kind = chance.random()
    if kind < 0.25:
        return chance.choice((0, 1, 4095, 4096, 4097))
    if kind < 0.45:
        return chance.choice((65535, 65536, 65537))
    if kind < 0.85:
        return chance.randint(1, 256 << 10)
    if kind < 0.98:
        return 1 << 20
    return 8 << 20 if kind < 0.998 else 64 << 20


def overwrite(view: memoryview, value: int) -> None:
    for start in range(0, len(view), PIECE):
        part = view[start : start + PIECE]
        part[:] = memoryview(INK[value])[: len(part)]


def room(nbytes: int) -> memoryview:
    """For a message, with what was never sent in it."""
    view = memoryview(bytearray(HEADER.size + nbytes))
    overwrite(view, CANARY)
    return view


class Office:
    """What all streams of the process share: big buffers, counters, the way to R."""

    def __init__(
        self, number: int, receivers: list[socket.socket], folder: Path
    ) -> None:
        self.number = number
        self.folder = folder
        self.receivers = receivers
        self.counts = dict.fromkeys(
            ("bytes", "messages", "streams", "cancels", "broken", "aborts"), 0
        )
        self.threads = anyio.CapacityLimiter(THREADS)
        self._gates = [anyio.Lock() for _ in receivers]
        self._ids = 0
        self._big: dict[int, asyncio.Queue[memoryview]] = {}
        for nbytes, many in HUGE.items():
            self._big[nbytes] = asyncio.Queue()
            for _ in range(many):
                self._big[nbytes].put_nowait(room(nbytes))

    def new_id(self) -> int:
        self._ids += 1
        return 2 * self._ids + self.number

    def big(self, nbytes: int) -> asyncio.Queue[memoryview]:
        return self._big[nbytes]

    async def tell(self, receiver: int, fd: int | None = None, **fact: Any) -> None:
        """(The receiver may be stopped for a while, and the socket full.)"""
        sock = self.receivers[receiver]
        async with self._gates[receiver]:
            await anyio.wait_writable(sock)
            socket.send_fds(
                sock, [json.dumps(fact).encode()], [] if fd is None else [fd]
            )


class Place:
    """One of the streams at a time, and its buffers."""

    def __init__(self, office: Office, way: str, seed: int) -> None:
        self.office = office
        self.way = way
        self.life: Life | None = None
        self.chance = random.Random(seed)
        self.small = [room(SMALL) for _ in range(IN_FLIGHT)]
        lends = way == "lent"
        self.middle = None if lends else room(MIDDLE)
        self.pool = azc.FramePool(HEADER.size + MIDDLE, slots=2) if lends else None

    async def live(self, until: float) -> None:
        """One life after the other."""
        while time.monotonic() < until:
            doomed = self.chance.random() < 0.2
            life = Life(self, doomed)
            receiver = self.receiver()
            after = self.chance.randint(0, BUDGET[1] // 4) if doomed else None
            self.life = life
            await life.run(receiver, after, until)
        self.life = None

    def receiver(self) -> int:
        """Which one: 0 only ever reads, 1 has our streams and rings."""
        return {"lent": 0, "ring": 1}.get(self.way, self.chance.randint(0, 1))


class Life:
    """One stream, from its opening to its end."""

    def __init__(self, place: Place, doomed: bool) -> None:
        self.place, self.office, self.chance = place, place.office, place.chance
        self.doomed = doomed
        self.number = self.office.new_id()
        self.sequence = self.cancelled = self.sent = 0
        self.budget = int(BUDGET[0] * (BUDGET[1] / BUDGET[0]) ** self.chance.random())

    async def run(self, receiver: int, after: int | None, until: float) -> None:
        self.office.counts["streams"] += 1
        fact: dict[str, Any] = {"id": self.number, "way": self.place.way, "dies": after}
        async with anyio.create_task_group() as tasks:
            if self.place.way == "ring":
                path = str(self.office.folder / f"ring{self.number}")
                await self.office.tell(receiver, **fact, path=path)
                ring = await azc.shm.listen_ring(path, ways.RING, sends=True)
                self.stream: Any = ring
            else:
                kind = self.place.way
                if kind == "relay":
                    kind = self.chance.choice([w for w in ways.KERNEL if w != "lent"])
                end = ways.OPEN[kind](self.office.folder)
                self.stream = end.stream
                if self.place.way == "relay":
                    relayed = ways.Relayed(end)
                    self.stream = relayed.writer
                    tasks.start_soon(relayed.run)
                await self.office.tell(receiver, end.fd, **fact)
                os.close(end.fd)
            fate = await self._fate(until)
        await self.office.tell(receiver, id=self.number, fate=fate)

    async def _fate(self, until: float) -> str:
        try:
            while self.sent < self.budget and time.monotonic() < until:
                await self._message()
            if self.chance.random() < 0.2:
                return await self._abort()
            await self._send(0, last=True)
            await self.stream.aclose()
            return "closed"
        except (azc.StreamBroken, azc.StreamClosed):
            if not self.doomed:
                raise
            self.office.counts["broken"] += 1
            self.stream.abort()
            return "broken"

    async def _abort(self) -> str:
        """End in the middle of a message, if it has one."""
        self.office.counts["aborts"] += 1
        async with anyio.create_task_group() as tasks:

            async def send() -> None:
                with contextlib.suppress(azc.StreamBroken, azc.StreamClosed):
                    await self._send(self._size())

            tasks.start_soon(send)
            await anyio.sleep(self.chance.random() / 500)
            self.stream.abort()
        return "aborted"

    # -- messages -----------------------------------------------------------------

    async def _message(self) -> None:
        kind = self.chance.random()
        is_ring = self.place.way == "ring"
        if kind < 0.15 and not is_ring:
            await self._put()
        elif kind < 0.25 and not is_ring:
            await self._send_many()
        else:
            await self._send(self._size())

    def _size(self) -> int:
        nbytes = size(self.chance)
        return nbytes % ways.LARGEST if self.place.way == "ring" else nbytes

    def _head(self, view: memoryview, last: bool = False) -> int:
        """Write a header; return the seed of what follows it."""
        nbytes = len(view) - HEADER.size
        flags = self.cancelled | (LAST if last else 0)
        HEADER.pack_into(view, 0, self.number, self.sequence, nbytes, flags)
        seed = seed_of(self.number, self.sequence)
        self.sequence += 1
        return seed

    def _fill(self, buffer: memoryview, nbytes: int) -> memoryview:
        view = buffer[: HEADER.size + nbytes]
        seed = self._head(view)
        done = 0
        while done < nbytes:
            done = write(view[HEADER.size :], seed, done)
        return view

    def _count(self, messages: int, nbytes: int) -> None:
        self.cancelled = 0
        self.sent += nbytes
        self.office.counts["messages"] += messages
        self.office.counts["bytes"] += nbytes

    async def _send(self, nbytes: int, last: bool = False) -> None:
        if nbytes in HUGE:
            queue = self.office.big(nbytes)
            buffer = await queue.get()
            try:
                await self._send_from(buffer, nbytes, last)
            finally:
                queue.put_nowait(buffer)
        elif self.place.pool is not None:
            async with await self.place.pool.acquire() as frame:
                with frame.view as buffer:  # (an error's traceback may hold it)
                    await self._send_from(buffer, nbytes, last)
        else:
            assert self.place.middle is not None
            await self._send_from(self.place.middle, nbytes, last)

    async def _send_from(self, buffer: memoryview, nbytes: int, last: bool) -> None:
        view = buffer[: HEADER.size + nbytes]
        seed, done = self._head(view, last), 0
        while done < nbytes:
            done = write(view[HEADER.size :], seed, done)
            if nbytes > 2 * PIECE:
                await anyio.lowlevel.checkpoint()  # others send meanwhile
        ends = not last and nbytes <= 8 << 20 and self.chance.random() < 0.1
        seconds = self.chance.random() / 200 if ends else None
        with anyio.move_on_after(seconds) as scope:
            try:
                await self._hand_over(view)
            finally:
                overwrite(view, CANARY if scope.cancel_called else POISON)
                sent = len(view)
                view.release()  # (an error would be that somebody still borrows it)
            self._count(1, sent)
            return
        self.cancelled += 1
        self.office.counts["cancels"] += 1

    async def _hand_over(self, view: memoryview) -> None:
        kind = self.chance.random()
        if self.place.way == "ring" or kind < 0.8:
            await self.stream.send(view)
        elif kind < 0.9:
            cut = self.chance.randint(0, len(view))
            await self.stream.send(view[:cut], view[cut:])
        else:
            await anyio.to_thread.run_sync(
                self.stream.send_from_thread, view, limiter=self.office.threads
            )

    async def _put(self) -> None:
        """Some in flight; each buffer is overwritten when its ticket is done."""
        tickets = []
        for buffer in self.place.small:
            view = self._fill(buffer, self.chance.choice((1, 4096, 65536, 65537)))
            tickets.append((await self.stream.put(view), view))
            self._count(1, len(view))
        for ticket, view in tickets:
            await ticket
            overwrite(view, POISON)

    async def _send_many(self) -> None:
        sizes = self.chance.choices((0, 1, 100, 4095, 4096, 4097), k=8)
        buffer, views = self.place.small[0], []
        for nbytes in sizes:
            views.append(self._fill(buffer, nbytes))
            buffer = buffer[HEADER.size + nbytes :]
            # (if these are cancelled, any number of them may be missing)
        with anyio.move_on_after(0.001 if self.chance.random() < 0.1 else None):
            try:
                await self.stream.send_many(views)
            finally:
                for view in views:
                    overwrite(view, POISON)
            self._count(len(views), sum(map(len, views)))
            return
        self.cancelled += len(views)
        self.office.counts["cancels"] += 1


# ---- the process --------------------------------------------------------------------


def tell(places: list[Place]) -> None:
    """What is still open, for who wonders why this does not end."""
    for place in places:
        if life := place.life:
            print(f"sender: {place.way}, {vars(life)}", file=sys.stderr)
            print(f"        {getattr(life.stream, 'stats', None)}", file=sys.stderr)
            if place.pool:
                print(f"        {place.pool.stats}", file=sys.stderr)


async def run(number: int, streams: int, seconds: float, seed: int) -> None:
    receivers = [socket.socket(fileno=int(fd)) for fd in sys.argv[6:]]
    for sock in receivers:
        sock.setblocking(False)
    until = time.monotonic() + seconds
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        office = Office(number, receivers, Path(folder))
        beats = Beats()
        async with anyio.create_task_group() as helpers:
            helpers.start_soon(beats.run)
            helpers.start_soon(sampling, office.counts, beats)
            async with anyio.create_task_group() as tasks:
                places = [
                    Place(office, way, seed * 1_000_003 + number * 1009 + n)
                    for n, way in enumerate(ways.shared_out(streams))
                ]
                signal.signal(signal.SIGUSR1, lambda *_: tell(places))
                for place in places:
                    tasks.start_soon(place.live, until)
            helpers.cancel_scope.cancel()
    print(json.dumps({"end": office.counts}), flush=True)


if __name__ == "__main__":
    loop, number, streams, seconds, seed = sys.argv[1:6]
    sabotage.apply(os.environ.get(sabotage.VARIABLE, ""))
    options = {"use_uvloop": loop == "uvloop"}
    anyio.run(
        run, int(number), int(streams), float(seconds), int(seed),
        backend_options=options,
    )  # fmt: skip
