"""Small messages between two processes: a ring, beside pipes, sockets and ZeroMQ.

First vectors from C into NumPy, and their means; then messages of any size one way, by
a producer in C (feed.c) and a consumer in Python; then round trips in Python.
"""

from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from aiozerocopy import FramePool
from aiozerocopy._core.binding import PORTABLE
from bench.feeding import fed, in_c, in_python, pipe_link, python_sink, unix_link
from bench.processes import PATIENCE, Lab
from bench.race import Contender, Lacking, Race, Work, WrongBytes, duels, need
from bench.receive import opened
from bench.worker import Job

SIZES = {"32 B": 32, "1 KiB": 1 << 10, "32 KiB": 32 << 10, "1 MiB": 1 << 20}
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
            trip(lab, "ring, asyncio", "ring"),
            trip(lab, "pyzmq ipc, asyncio", "zmq", "zmq"),
        ],
        duels(
            "ring, asyncio",
            {"pyzmq ipc, asyncio": "pyzmq over ipc"},
            "64 B there and back, in asyncio: two rings",
            unit="turns",
        ),
    )


def capacity(size: int) -> int:
    """The capacity of a ring: a power of two, with room for four messages."""
    return 1 << (max(LEAST_RING, 4 * (size + 256)) - 1).bit_length()


# ---- one way -------------------------------------------------------------------------


def one_way(lab: Lab, *, means: bool) -> list[Contender]:
    """Whole batches through an fd, or record by record through a ring at a path."""
    path = str(lab.path / "ring")

    def produce(ring: str, work: Work, fd: int, sink: list[str]) -> list[str]:
        command = in_c(lab, work, ring or fd, sink)
        return command if ring else [*command, str(work.buffers)]

    return [
        fed(
            lab,
            name,
            link,  # (unused by a ring)
            partial(produce, ring),
            receiver=partial(
                python_sink, lab, consume, "asyncio", means=means, ring=ring
            ),
        )
        for name, link, ring in (
            ("ring", unix_link, path),
            ("pipe, batches", pipe_link, ""),
            ("UNIX, batches", unix_link, ""),
        )
    ]


async def consume(job: Job) -> dict[str, Any]:
    from aiozerocopy import shm

    came = 0

    def take(batch: Any) -> bool:
        """Take rows of floats, a message each; return whether more are wanted."""
        nonlocal came
        if job.means:
            batch.mean(axis=1)
        for number, row in enumerate(batch if job.check else (), came):
            job.look(number, row)
        before, came = came, came + len(batch)
        if before < job.warm <= came:
            job.begin()
        return bool(came < job.warm + job.messages)

    more = True
    if job.ring:
        async with shm.listen_ring(job.ring, capacity(job.size)) as ring:
            while more:
                with await ring.receive_batch(BATCH) as batch:
                    more = take(batch.array("f4"))
            job.end()
    else:
        most = max(1, min(BATCH, BATCH_BYTES // job.size))
        # (from a pool: fresh memory for each batch would take two thirds of the time)
        async with opened() as stream, FramePool(most * job.size, slots=3) as pool:
            async for rows in stream.batches((most, job.size // 4), "f4", pool):
                take(rows)
            job.end()
    return {**job.received(), "bytes": came * job.size}


# ---- there and back ------------------------------------------------------------------


def trip(lab: Lab, name: str, way: str, *needs: str) -> Contender:
    """One process asks, the other echoes: every answer is compared, in every round."""
    told: Any = {"by": way, "folder": str(lab.path)}
    asks = partial(python_sink, lab, ask, "asyncio", **told)
    made = fed(lab, name, unix_link, in_python(lab, echo, **told), receiver=asks)
    return replace(made, needs=needs)


async def ask(job: Job) -> dict[str, Any]:
    data = job.data()
    async with AsyncExitStack() as stack:
        send, receive = await exchange(job, stack, asks=True)
        for _ in job.numbers():
            await send(data)
            if await receive() != data:
                raise WrongBytes("another message has come back")
    return job.received()


async def echo(job: Job) -> None:
    async with AsyncExitStack() as stack:
        send, receive = await exchange(job, stack, asks=False)
        for _ in job.numbers():
            await send(await receive())


async def exchange(
    job: Job, stack: AsyncExitStack, *, asks: bool
) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """How to send a message, and how to receive one."""
    if job.by == "ring":
        from aiozerocopy import shm

        rings: list[Any] = []
        for name, sends in (("there", asks), ("back", not asks)):
            path = f"{job.folder}/{name}"
            made: Any = (
                shm.listen_ring(path, capacity(job.size), sends=sends)
                if asks
                else shm.connect_ring(path, timeout=PATIENCE)
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
    address = f"ipc://{job.folder}/zmq"
    _ = pair.bind(address) if asks else pair.connect(address)
    return pair.send, pair.recv
