"""Small messages between two processes: a ring, beside pipes, sockets and ZeroMQ.

First vectors from C into NumPy, and their means; then messages of any size one way, by
a producer in C (ring_peer.c) and a consumer in Python; then round trips in Python.
"""

import ctypes
import os
import socket
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

import aiozerocopy as azc
from aiozerocopy._core.binding import PORTABLE
from aiozerocopy._core.pipe_size import PIPE_SIZE, enlarge_pipe
from bench.feeding import needs_of
from bench.processes import PATIENCE, Lab, worker
from bench.race import Contender, Lacking, Race, Run, Work, WrongBytes, duels, need
from bench.worker import Job, cpu, percentile

SIZES = {"32 B": 32, "1 KiB": 1 << 10, "32 KiB": 32 << 10, "1 MiB": 1 << 20}
WAYS = {"ring": "ring", "pipe, batches": "pipe", "UNIX, batches": "unix"}
TRIPS = {
    "ring, asyncio": ("ring", "asyncio", 0),
    "ring, uvloop": ("ring", "uvloop", 0),
    "ring, asyncio, spin 50 us": ("ring", "asyncio", 50),
    "pyzmq ipc, asyncio": ("zmq", "asyncio", 0),
}
BATCH = 256  # messages that are taken at once, at most
BATCH_BYTES = 4 << 20  # and bytes
LEAST_RING = 4 << 20


def races(lab: Lab, quick: bool) -> Iterator[Race]:
    """Raises: Lacking: this is the portable build, or NumPy is not there."""
    if PORTABLE:
        raise Lacking("rings need Linux, and this is the portable build")
    need("numpy")
    yield Race(
        "ring",
        "float32[256] from C, means in NumPy",
        Work(1024, 5_000 if quick else 200_000, warm=20_000, buffers=256),
        one_way(lab, means=True),
        duels(
            "ring",
            {"pipe, batches": "a pipe, in batches"},
            "vectors of 1 KiB from C, their means in NumPy: a ring",
            unit="vectors",
        ),
    )
    for name, size in SIZES.items():
        messages = max(20, min((5_000_000 if quick else 2 << 30) // size, 400_000))
        buffers = max(2, (256 << 10) // size)
        yield Race(
            "ring",
            f"{name} from C, one way",
            Work(size, messages, warm=messages // 10, buffers=buffers),
            one_way(lab, means=False),
            duels(
                "ring",
                {"UNIX, batches": "a UNIX socket, in batches"},
                f"records of {name} from C: a ring",
                unit="records",
            ),
            extra=size >= 32 << 10,
        )
    yield Race(
        "ring",
        "round trips of 64 B",
        Work(64, 500 if quick else 3_000, warm=2_000, buffers=1),
        [
            Contender(
                name,
                partial(trip, lab, way, loop, spin),
                needs_of(loop, *["zmq"] * (way == "zmq")),
            )
            for name, (way, loop, spin) in TRIPS.items()
        ],
        duels(
            "ring, asyncio",
            {"pyzmq ipc, asyncio": "pyzmq over ipc"},
            "64 B there and back, in asyncio: two rings",
            unit="turns",
        ),
    )


def told(lab: Lab, work: Work) -> dict[str, Any]:
    """What both processes need to know."""
    folder = lab.folder()
    paths = {"there": str(folder / "there"), "back": str(folder / "back")}
    return {**work.told, **paths, "pattern": pattern(lab, work)}


def pattern(lab: Lab, work: Work) -> str:
    """The path of a file with all buffers: numbers, since means are made of them."""
    n = work.size * work.buffers
    path = lab.path / f"numbers-{n}"
    if not path.exists():
        path.write_bytes(array("f", (number % 1000 for number in range(n // 4))))
    return str(path)


def capacity(size: int) -> int:
    """Of a ring: a power of two, of which four messages take a part."""
    return 1 << (max(LEAST_RING, 4 * (size + 256)) - 1).bit_length()


# ---- one way -------------------------------------------------------------------------


def one_way(lab: Lab, *, means: bool) -> list[Contender]:
    return [
        Contender(name, partial(pass_on, lab, name, way, means))
        for name, way in WAYS.items()
    ]


def pass_on(lab: Lab, name: str, way: str, means: bool, work: Work, check: bool) -> Run:
    about = {**told(lab, work), "way": way, "means": means, "check": check}
    if way == "pipe":
        os.mkfifo(about["there"])
    library = lab.library("ring_peer")
    reports = lab.reports(
        worker(consume, **about), worker(produce, library=library, **about)
    )
    sink, total = reports["sink"], work.warm + work.messages
    if sink["wrong"] >= 0 or sink["count"] != total:
        raise WrongBytes(
            f"{name}: {sink['count']:,} messages came and not {total:,}; the first "
            f"wrong one is number {sink['wrong']}"
        )
    return Run(sink["seconds"], reports["sender"]["cpu"], sink["cpu"])


def produce(job: Job) -> None:
    """Call a function of ring_peer.c once for all messages."""
    data, library = job.data(), ctypes.CDLL(job.library)
    amounts = job.size, job.buffers, job.warm + job.messages
    numbers = [ctypes.c_size_t(number) for number in amounts]
    if job.way == "ring":
        path = job.there.encode()
        # (nobody listens yet: ENOENT, ECONNREFUSED)
        while (error := library.produce_ring(path, data, *numbers)) in (-2, -111):
            time.sleep(0.001)
    else:
        is_pipe = job.way == "pipe"
        fd = os.open(job.there, os.O_WRONLY) if is_pipe else connected(job.there)
        error = library.produce_fd(fd, data, *numbers)
        os.close(fd)
    if error < 0:
        raise OSError(-error, os.strerror(-error))


def connected(path: str) -> int:
    made = socket.socket(socket.AF_UNIX)
    while True:
        with suppress(ConnectionRefusedError, FileNotFoundError):
            made.connect(path)
            return made.detach()
        time.sleep(0.001)


class Tally:
    """Takes batches, and notes the time from the end of the warm-up on."""

    def __init__(self, job: Job) -> None:
        import numpy

        self._numpy = numpy
        self._job = job
        self._pattern = numpy.frombuffer(job.data(), "f4").reshape(job.buffers, -1)
        self._began: tuple[float, float, int] | None = None
        self._total = 0.0
        self.count: int = 0
        self.wrong: int = -1  # the number of the first message that is

    def take(self, batch: Any) -> None:
        """Rows of floats, a message each."""
        if self._job.means:
            self._total += float(batch.mean(axis=1).sum())
        if self._job.check and self.wrong < 0:
            numbers = self._numpy.arange(self.count, self.count + len(batch))
            right = (batch == self._pattern[numbers % self._job.buffers]).all(axis=1)
            if not right.all():
                self.wrong = self.count + int(right.argmin())
        self.count += len(batch)
        if self._began is None and self.count >= self._job.warm:
            self._began = time.perf_counter(), cpu(), self.count

    def told(self) -> dict[str, Any]:
        began, used, since = self._began or (time.perf_counter(), cpu(), 0)
        # (the clock started with a batch, not with a message)
        part = self._job.messages / max(self.count - since, 1)
        return {
            "who": "sink",
            "seconds": (time.perf_counter() - began) * part,
            "cpu": (cpu() - used) * part,
            "count": self.count,
            "wrong": self.wrong,
        }


async def consume(job: Job) -> dict[str, Any]:
    tally = Tally(job)
    if job.way == "ring":
        from aiozerocopy import shm

        async with shm.listen_ring(job.there, capacity(job.size)) as ring:
            while tally.count < job.warm + job.messages:
                with await ring.receive_batch(BATCH) as batch:
                    tally.take(batch.array("f4"))
        return tally.told()
    stream: azc.ReceiveStream
    if job.way == "unix":
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(job.there)
            server.listen()
            stream = azc.wrap_socket(server.accept()[0])
    else:
        fd = os.open(job.there, os.O_RDONLY)
        enlarge_pipe(fd, PIPE_SIZE)
        stream = azc.open_reader(fd)
    most = max(1, min(BATCH, BATCH_BYTES // job.size))
    async with stream:
        async for rows in stream.batches((most, job.size // 4), "f4"):
            tally.take(rows)
    return tally.told()


# ---- there and back ------------------------------------------------------------------


def trip(lab: Lab, way: str, loop: str, spin: int, work: Work, check: bool) -> Run:
    """One process asks, the other echoes: every answer is compared, in every round."""
    about = {**told(lab, work), "way": way, "loop": loop, "spin": spin}
    reports = lab.reports(worker(ask, **about), worker(echo, **about))
    sink = reports["sink"]
    more = {"us (99 of 100)": sink["us"]}
    return Run(sink["seconds"], reports["sender"]["cpu"], sink["cpu"], more)


async def ask(job: Job) -> dict[str, Any]:
    data, clock = job.data(), time.perf_counter_ns
    async with AsyncExitStack() as stack:
        send, receive = await exchange(job, stack, asks=True)
        for numbers in job.numbers():
            times = []
            for _ in numbers:
                start = clock()
                await send(data)
                answer = await receive()
                times.append(clock() - start)
                if answer != data:
                    raise WrongBytes("another message has come back")
        job.end()
    late = percentile(times, 0.99) / 1e3
    return {"who": "sink", "us": late, "seconds": sum(times) / 1e9}


async def echo(job: Job) -> None:
    async with AsyncExitStack() as stack:
        send, receive = await exchange(job, stack, asks=False)
        for numbers in job.numbers():
            for _ in numbers:
                await send(await receive())
        job.end()


async def exchange(
    job: Job, stack: AsyncExitStack, *, asks: bool
) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """How to send a message, and how to receive one."""
    if job.way == "ring":
        from aiozerocopy import shm

        rings: list[Any] = []
        for path, sends in ((job.there, asks), (job.back, not asks)):
            made: Any = (
                shm.listen_ring(path, capacity(job.size), sends=sends, spin=job.spin)
                if asks
                else shm.connect_ring(path, spin=job.spin, timeout=PATIENCE)
            )
            rings.append(await stack.enter_async_context(made))
        out, into = rings if asks else rings[::-1]

        async def receive_record() -> bytes:
            with await into.receive() as record:
                return bytes(record)

        return out.send, receive_record
    import zmq.asyncio

    context = stack.enter_context(zmq.asyncio.Context())
    pair = stack.enter_context(context.socket(zmq.PAIR))
    address = f"ipc://{job.there}"
    _ = pair.bind(address) if asks else pair.connect(address)
    return pair.send, pair.recv
