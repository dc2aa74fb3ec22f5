"""The two processes of a run of `ring`: one sends, or echoes; the other counts.

Whatever is said to be in C is a function of ring_peer.c, called once for all messages.
Tachyon's own functions are looked up in its extension module, which exports them.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import time
from array import array
from contextlib import AsyncExitStack, ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiozerocopy as azc
from aiozerocopy._core.pipe_size import PIPE_SIZE, enlarge_pipe
from aiozerocopy.bench.feeding import PATIENCE
from aiozerocopy.bench.frames import cpu
from aiozerocopy.bench.network import run_on, tell

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

BATCH = 256  # messages that are taken at once, at most
BATCH_BYTES = 4 << 20  # and bytes
LEAST_RING = 4 << 20


@dataclass(frozen=True)
class Job:
    """What both processes are told."""

    role: str  # of this process: a name in `ROLES`
    way: str
    loop: str
    folder: str
    library: str
    pattern: str
    size: int
    buffers: int
    warm: int
    messages: int
    means: bool  # the consumer computes the mean of each
    check: bool
    spin: int

    @property
    def there(self) -> str:
        return f"{self.folder}/there"

    @property
    def back(self) -> str:
        return f"{self.folder}/back"

    @property
    def total(self) -> int:
        return self.warm + self.messages

    @property
    def capacity(self) -> int:
        """A power of two, of which four messages take a part."""
        wanted = max(LEAST_RING, 4 * (self.size + 256))
        return 1 << (wanted - 1).bit_length()

    def data(self) -> bytes:
        return Path(self.pattern).read_bytes()


# ---- in C ----------------------------------------------------------------------------


class Tachyon(ctypes.Structure):
    """Its functions, as ring_peer.c wants them."""

    _fields_ = [
        (name, ctypes.c_void_p)
        for name in ("acquire_tx", "commit_tx", "flush", "acquire_rx", "commit_rx")
    ]

    def __init__(self) -> None:
        from tachyon import _tachyon

        self.exported: ctypes.CDLL = ctypes.CDLL(_tachyon.__file__)
        names = ["acquire_tx", "commit_tx", "flush", "acquire_rx_blocking", "commit_rx"]
        super().__init__(
            *(
                ctypes.cast(self.exported[f"tachyon_{name}"], ctypes.c_void_p).value
                for name in names
            )
        )

    def bus(self, path: str, capacity: int, *, listens: bool) -> ctypes.c_void_p:
        """Raises: ConnectionError: it has refused."""
        bus = ctypes.c_void_p()
        if listens:
            size = ctypes.c_size_t(capacity)
            error = self.exported.tachyon_bus_listen(
                path.encode(), size, ctypes.byref(bus)
            )
        else:
            wait_for(path)
            while error := self.exported.tachyon_bus_connect(
                path.encode(), ctypes.byref(bus)
            ):
                time.sleep(0.001)
        if error:
            raise ConnectionError(f"Tachyon's error {error} at {path}")
        return bus


def call(job: Job, name: str, *arguments: Any) -> None:
    """Call a function of ring_peer.c, with what all of them want at the end.

    Raises:
        OSError: it has failed.
    """
    function = ctypes.CDLL(job.library)[name]
    result = function(*arguments)
    while -result in (2, 111):  # nobody listens yet: ENOENT, ECONNREFUSED
        time.sleep(0.001)
        result = function(*arguments)
    if result < 0:
        raise OSError(-result, os.strerror(-result), name)


def wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.001)


def connected(path: str) -> socket.socket:
    wait_for(path)
    while True:
        made = socket.socket(socket.AF_UNIX)
        with suppress(ConnectionRefusedError):
            made.connect(path)
            return made
        made.close()
        time.sleep(0.001)


def accepted(path: str) -> socket.socket:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        return server.accept()[0]


# ---- messages one way: the producer --------------------------------------------------


def produce(job: Job) -> None:
    data = job.data()
    numbers = [ctypes.c_size_t(number) for number in (job.size, job.buffers, job.total)]
    began = cpu()
    if job.way == "ring":
        call(job, "produce_ring", job.there.encode(), data, *numbers)
    elif job.way == "tachyon":
        functions = Tachyon()
        bus = functions.bus(job.there, job.capacity, listens=False)
        at = ctypes.byref(functions)
        call(job, "produce_tachyon", at, bus, data, *numbers)
        while os.path.exists(job.back):  # the consumer's: until it has read all
            time.sleep(0.001)
    else:
        fd = (
            connected(job.there).detach()
            if job.way == "unix"
            else os.open(job.there, os.O_WRONLY)
        )
        call(job, "produce_fd", fd, data, *numbers)
        os.close(fd)
    tell({"who": "sender", "cpu": cpu() - began})


# ---- the consumer --------------------------------------------------------------------


class Tally:
    """Takes batches, and notes the time from the end of the warm-up on."""

    def __init__(self, job: Job) -> None:
        import numpy

        self._numpy = numpy
        self._job = job
        self._pattern = numpy.frombuffer(job.data(), "f4").reshape(job.buffers, -1)
        self._began: tuple[float, float, int] | None = None
        self.count: int = 0
        self.wrong: int = -1  # the number of the first message that is
        self.total: float = 0.0

    @property
    def is_full(self) -> bool:
        return self.count >= self._job.total

    def take(self, batch: Any) -> None:
        """Rows of floats, a message each."""
        if self._job.means:
            self.total += float(batch.mean(axis=1).sum())
        if self._job.check and self.wrong < 0:
            numbers = self._numpy.arange(self.count, self.count + len(batch))
            right = (batch == self._pattern[numbers % self._job.buffers]).all(axis=1)
            if not right.all():
                self.wrong = self.count + int(right.argmin())
        self.count += len(batch)
        if self._began is None and self.count >= self._job.warm:
            self._began = time.perf_counter(), cpu(), self.count

    def report(self) -> None:
        began, used, since = self._began or (time.perf_counter(), cpu(), 0)
        # (the clock started with a batch, not with a message)
        part = self._job.messages / max(self.count - since, 1)
        tell(
            {
                "who": "sink",
                "seconds": (time.perf_counter() - began) * part,
                "cpu": (cpu() - used) * part,
                "count": self.count,
                "wrong": self.wrong,
            }
        )


async def consume_ring(job: Job, tally: Tally) -> None:
    from aiozerocopy import shm

    async with shm.listen_ring(job.there, job.capacity, spin=job.spin) as ring:
        while not tally.is_full:
            with await ring.receive_batch(BATCH) as batch:
                tally.take(batch.array("f4"))


async def consume_stream(stream: azc.ReceiveStream, job: Job, tally: Tally) -> None:
    most = max(1, min(BATCH, BATCH_BYTES // job.size))
    async with stream:
        async for batch in stream.batches((most, job.size // 4), "f4"):
            tally.take(batch)


async def consume_unix(job: Job, tally: Tally) -> None:
    await consume_stream(azc.wrap_socket(accepted(job.there)), job, tally)


async def consume_pipe(job: Job, tally: Tally) -> None:
    fd = os.open(job.there, os.O_RDONLY)
    enlarge_pipe(fd, PIPE_SIZE)
    await consume_stream(azc.open_reader(fd), job, tally)


async def consume_tachyon(job: Job, tally: Tally) -> None:
    import numpy
    import tachyon

    os.close(os.open(job.back, os.O_CREAT))
    with tachyon.Bus.listen(job.there, job.capacity) as bus:
        while not tally.is_full:
            with bus.drain_batch(BATCH) as batch:
                tally.take(
                    numpy.array(
                        [numpy.frombuffer(batch[i], "f4") for i in range(len(batch))]
                    )
                )
    os.unlink(job.back)  # now the producer may go


CONSUMERS = {
    "ring": consume_ring,
    "unix": consume_unix,
    "pipe": consume_pipe,
    "tachyon": consume_tachyon,
}


def consume(job: Job) -> None:
    tally = Tally(job)
    run_on(job.loop, CONSUMERS[job.way](job, tally))
    tally.report()


# ---- there and back ------------------------------------------------------------------


def report_trips(job: Job, times: Any, used: float) -> None:
    counted = array("Q", times)[job.warm :]
    Path(job.folder, "times").write_bytes(counted)
    tell({"who": "sink", "seconds": sum(counted) / 1e9, "cpu": used, "wrong": -1})


def trip_in_c(job: Job, *, asks: bool) -> None:
    data = ctypes.create_string_buffer(job.data(), job.size)
    times = (ctypes.c_uint64 * job.total)() if asks else None
    numbers = [ctypes.c_size_t(number) for number in (job.size, job.total)]
    began = cpu()
    if job.way == "c_ring":
        paths = job.there.encode(), job.back.encode()
        call(job, "trip_ring", *paths, data, *numbers, times, job.spin)
    elif job.way == "c_tachyon":
        functions = Tachyon()
        buses = [
            functions.bus(path, job.capacity, listens=asks)
            for path in (job.there, job.back)
        ]
        to_them, from_them = buses if asks else buses[::-1]
        at = ctypes.byref(functions)
        call(job, "trip_tachyon", at, from_them, to_them, data, *numbers, times)
    else:
        into, out = fds(job, asks=asks)
        call(job, "trip_fd", into, out, data, *numbers, times)
    used = cpu() - began
    if times is None:
        tell({"who": "sender", "cpu": used})
    else:
        report_trips(job, times, used)


def fds(job: Job, *, asks: bool) -> tuple[int, int]:
    """What this process reads from and writes to."""
    if job.way.endswith("unix"):
        fd = (accepted if asks else connected)(job.there).detach()
        return fd, fd
    # (each opens the one pipe before the other, or both would wait for ever)
    if asks:
        out = os.open(job.there, os.O_WRONLY)
        return os.open(job.back, os.O_RDONLY), out
    into = os.open(job.there, os.O_RDONLY)
    return into, os.open(job.back, os.O_WRONLY)


Exchange = tuple["Callable[[Any], Awaitable[Any]]", "Callable[[], Awaitable[Any]]"]


async def exchange(job: Job, stack: AsyncExitStack, *, asks: bool) -> Exchange:
    """How to send a message, and how to receive one, in Python."""
    if job.way == "ring":
        from aiozerocopy import shm

        rings = []
        for path, sends in ((job.there, asks), (job.back, not asks)):
            if asks:
                made = shm.listen_ring(path, job.capacity, sends=sends, spin=job.spin)
            else:
                made = shm.connect_ring(path, spin=job.spin, timeout=PATIENCE)
            rings.append(await stack.enter_async_context(made))
        out, into = rings if asks else rings[::-1]

        async def receive_record() -> bytes:
            with await into.receive() as record:
                return bytes(record)

        return out.send, receive_record
    if job.way == "zmq":
        import zmq.asyncio

        context = stack.enter_context(zmq.asyncio.Context())
        pair = stack.enter_context(context.socket(zmq.PAIR))
        address = f"ipc://{job.there}"
        _ = pair.bind(address) if asks else pair.connect(address)
        return pair.send, pair.recv
    from_fd, to_fd = fds(job, asks=asks)
    if from_fd == to_fd:
        reader: Any = await stack.enter_async_context(azc.wrap_socket(from_fd))
        writer = reader
    else:
        reader = await stack.enter_async_context(azc.open_reader(from_fd))
        writer = await stack.enter_async_context(azc.open_writer(to_fd))
    memory = bytearray(job.size)

    async def receive() -> bytearray:
        await reader.receive_exactly(memory)
        return memory

    return writer.send, receive


async def trip_in_python(job: Job, *, asks: bool) -> None:
    data, clock = job.data()[: job.size], time.perf_counter_ns
    times = []
    async with AsyncExitStack() as stack:
        send, receive = await exchange(job, stack, asks=asks)
        began = cpu()
        for _ in range(job.total):
            if asks:
                start = clock()
                await send(data)
                answer = await receive()
                times.append(clock() - start)
                if answer != data:
                    raise ValueError("another message has come back")
            else:
                await send(await receive())
        used = cpu() - began
        if asks:
            report_trips(job, times, used)
        else:
            tell({"who": "sender", "cpu": used})


def trip(job: Job, *, asks: bool) -> None:
    if job.way.startswith("c_"):
        trip_in_c(job, asks=asks)
    elif job.way.startswith("blocking_"):
        trip_blocking(job, asks=asks)
    else:
        run_on(job.loop, trip_in_python(job, asks=asks))


def trip_blocking(job: Job, *, asks: bool) -> None:
    """Rivals in Python, without a loop."""
    data, clock = job.data()[: job.size], time.perf_counter_ns
    with ExitStack() as stack:
        send, receive = BLOCKING[job.way](job, stack, asks)
        began, times = cpu(), []
        for _ in range(job.total):
            if asks:
                start = clock()
                send(data)
                answer = receive()
                times.append(clock() - start)
                if answer != data:
                    raise ValueError("another message has come back")
            else:
                send(receive())
        used = cpu() - began
    if asks:
        report_trips(job, times, used)
    else:
        tell({"who": "sender", "cpu": used})


def blocking_zmq(job: Job, stack: ExitStack, asks: bool) -> Any:
    import zmq

    context = stack.enter_context(zmq.Context())
    pair = stack.enter_context(context.socket(zmq.PAIR))
    address = f"ipc://{job.there}"
    _ = pair.bind(address) if asks else pair.connect(address)
    return pair.send, pair.recv


def blocking_tachyon(job: Job, stack: ExitStack, asks: bool) -> Any:
    import tachyon

    def bus(path: str) -> Any:
        if asks:
            return tachyon.Bus.listen(path, job.capacity)
        wait_for(path)
        while True:
            with suppress(ConnectionError, OSError):
                return tachyon.Bus.connect(path)
            time.sleep(0.001)

    buses = [stack.enter_context(bus(path)) for path in (job.there, job.back)]
    out, into = buses if asks else buses[::-1]

    def receive() -> bytes:
        with into.recv_zero_copy() as message, memoryview(message) as view:
            return bytes(view)

    return out.send, receive


BLOCKING: dict[str, Any] = {
    "blocking_zmq": blocking_zmq,
    "blocking_tachyon": blocking_tachyon,
}

ROLES: dict[str, Callable[[Job], None]] = {
    "produce": produce,
    "consume": consume,
    "ask": partial(trip, asks=True),
    "echo": partial(trip, asks=False),
}

if __name__ == "__main__":
    told: Job = Job(**json.loads(sys.argv[1]))
    ROLES[told.role](told)
