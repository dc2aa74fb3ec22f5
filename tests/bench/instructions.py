"""How many instructions a small message takes in user mode, by callgrind.

Neither other load nor the processor's clock changes a count, so a hot path that has
grown is seen where no time can be measured.  What the kernel does is not counted.
The seed of string hashes is fixed.  That does not suffice for Python 3.10: it keeps the
attributes of all types in a small table, and where two meet there, by what was imported
before, a message takes up to 4,000 instructions more.

Two stretches are counted: what happens only once is not in their difference.  The
process itself is the other end of the socket, so every call is done at once.
"""

import asyncio
import ctypes
import re
import shutil
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from aiozerocopy import transport, wrap_socket
from bench.processes import Lab, worker
from bench.race import Lacking
from bench.worker import Job

HEADER = Path("/usr/include/valgrind/callgrind.h")
SIZE, AT_ONCE = 1024, 32  # (which is one batch, too)
SHORT, LONG = 2, 12  # times AT_ONCE messages


def counted(lab: Lab) -> dict[str, float]:
    """Return the instructions of a message by call and kind of buffer."""
    if shutil.which("valgrind") is None or not HEADER.exists():
        raise Lacking("valgrind: on Debian, apt install valgrind")
    command = ["env", "PYTHONHASHSEED=0", "valgrind", "-q"]
    command += ["--tool=callgrind", "--instr-atstart=no"]
    command += [f"--callgrind-out-file={lab.path}/count"]
    command += worker(measure, library=lab.library("instructions"))
    names = lab.reports(command)["sender"]["names"]
    files = (
        Path(lab.path, f"count.{n + 1}").read_text() for n in range(3 * len(names))
    )
    totals = [int(re.findall(r"^totals: (\d+)", text, re.M)[0]) for text in files]
    stretches = zip(names, totals[1::3], totals[2::3], strict=True)
    messages = (LONG - SHORT) * AT_ONCE
    return {name: (long - short) / messages for name, short, long in stretches}


async def measure(job: Job) -> dict[str, Any]:
    mark = ctypes.CDLL(job.library).mark
    loop = asyncio.get_running_loop()
    near, far = socket.socketpair()
    near.setblocking(False)
    room = memoryview(bytearray(SIZE * AT_ONCE))
    memory = room[:SIZE]
    batch, small = [memory] * AT_ONCE, bytes(SIZE)

    async def send(once: Callable[[Any], Awaitable[object]], data: Any) -> None:
        for _ in range(AT_ONCE):
            await once(data)
        assert far.recv_into(room) == len(room)

    async def send_batch(once: Callable[[Any], Awaitable[object]]) -> None:
        await once(batch)
        assert far.recv_into(room) == len(room)

    async def receive(once: Callable[[Any], Awaitable[object]]) -> None:
        far.sendall(room)
        for _ in range(AT_ONCE):
            await once(memory)

    async def write(once: Callable[[Any], object]) -> None:
        for _ in range(AT_ONCE):
            once(small)
        assert far.recv_into(room) == len(room)

    ours, _ = await transport.create_connection(asyncio.Protocol, sock=near.dup())
    theirs, _ = await loop.create_connection(asyncio.Protocol, sock=near.dup())
    for each in (ours, theirs):
        each.pause_reading()
    async with wrap_socket(near.dup()) as stream:
        ways = {
            f"{name}, {type(data).__name__}": partial(send, once, data)
            for name, once in (
                ("send", stream.send),
                ("sock_sendall", partial(loop.sock_sendall, near)),
            )
            for data in (small, memory)
        }
        ways["send_many"] = partial(send_batch, stream.send_many)
        ways["receive_exactly"] = partial(receive, stream.receive_exactly)
        ways["sock_recv_into"] = partial(receive, partial(loop.sock_recv_into, near))
        ways["transport write"] = partial(write, ours.write)
        ways["asyncio's write"] = partial(write, theirs.write)
        ways["socket.send"] = partial(write, near.send)
        for way in ways.values():
            for times in (SHORT, SHORT, LONG):  # the first warms up
                for _ in range(times):
                    await way()
                mark()
    for each in (ours, theirs):
        each.abort()
    return {"names": [*ways]}
