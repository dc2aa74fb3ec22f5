"""Forks senders, and kills them: a few milliseconds each.

Over the socket on stdin come a line of JSON and an fd.  A sender sends to that fd, uses
again all memory that it gets back, and is killed after so many seconds, wherever it is.
The answer is its exit status, negative for a signal.
"""

import contextlib
import json
import os
import signal
import socket
import time
import traceback
from typing import Any

import anyio
from oracle import CANARY, message, poison

import aiozerocopy as azc

SIZE = FRAME = 300_000


class Begun:
    """A pipe from each sender, through which it says so with its first message."""

    def __init__(self) -> None:
        self.fds = os.pipe()
        self._is_told = False

    def set(self) -> None:
        if not self._is_told:
            os.write(self.fds[1], b"!")
            self._is_told = True

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)


async def _send(fd: int, begun: Begun) -> None:
    """Send, cancel, and fill what is freed with what must never arrive."""
    stream = azc.wrap_socket(fd) if _is_socket(fd) else azc.open_writer(fd)
    waste = []
    for number in range(1 << 40):
        data = message(number, 0, SIZE - number % 7 * 40_000)
        with anyio.move_on_after(0.001 if number % 3 == 2 else None):
            await stream.send(data)
        begun.set()
        poison(data)
        size = len(data)
        del data
        waste.append(bytearray([CANARY]) * size)
        del waste[:-3]


async def _lend(fd: int, begun: Begun) -> None:
    stream = azc.open_writer(fd, peer="reads")
    pool = azc.FramePool(FRAME, slots=2)
    for number in range(1 << 40):
        frame = await pool.acquire()
        frame.view[:] = message(number, 0, FRAME - 32)
        if number % 3 == 2:
            await stream.put(frame)  # it is lent as long as the reader has not read it
        else:
            await stream.send(frame)
            poison(frame.view)
        begun.set()
        frame.release()


def _is_socket(fd: int) -> bool:
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)):
        return True
    return False


def _live(fd: int, order: dict[str, Any]) -> None:
    try:
        anyio.run(_lend if order["lends"] else _send, fd, order["begun"])
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    orders = socket.socket(fileno=0)
    while True:
        data, fds, _, _ = socket.recv_fds(orders, 1000, 1)
        if not data:
            return
        order = json.loads(data)
        begun = Begun()
        pid = os.fork()
        if not pid:
            orders.close()
            _live(fds[0], order | {"begun": begun})
        os.close(fds[0])
        if order["begun"]:
            os.read(begun.fds[0], 1)
        time.sleep(order["seconds"])
        os.kill(pid, signal.SIGKILL)
        begun.close()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        orders.send(json.dumps(status).encode())


if __name__ == "__main__":
    main()
