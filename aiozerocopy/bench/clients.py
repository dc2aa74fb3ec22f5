"""The clients of the bench `fanout`, all in one process."""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from array import array
from pathlib import Path
from typing import Any

from aiozerocopy.bench.frames import cpu
from aiozerocopy.bench.network import tell

# Bytes of the header before each frame (of a frame of more than 64 KiB).
PREFIX = {"wire": 128, "websocket": 10}
HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    b"Sec-WebSocket-Version: 13\r\n\r\n"
)


class Sink:
    """Many clients that read whatever comes; with check, each compares every byte."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.prefix: int = PREFIX[told["framing"]]
        self.pattern: bytearray = (
            bytearray()
        )  # (on the left of == it is faster than bytes)
        if told["check"]:
            self.pattern += Path(told["pattern"]).read_bytes()
        self.whole: Any = self.prefix + told["size"]
        self.total: Any = self.whole * (told["warm"] + told["frames"])
        self.memory: bytearray = bytearray(1 << 20)
        self.sockets: dict[int, socket.socket] = {}
        self.received: dict[int, int] = {}
        self.arrived: dict[int, array[int]] = {}
        self.wrong: set[int] = set()
        for _ in range(told["clients"]):
            self._connect(told["address"], told["framing"])

    def _connect(self, address: Any, framing: str) -> None:
        if isinstance(address, str):
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(address)
        else:
            sock = socket.create_connection(address)
        if framing == "websocket":
            sock.sendall(HANDSHAKE)
            answer = b""
            while not answer.endswith(b"\r\n\r\n"):
                answer += sock.recv(1)
        sock.setblocking(False)
        self.sockets[sock.fileno()] = sock
        self.received[sock.fileno()] = 0
        self.arrived[sock.fileno()] = array("q")

    def run(self) -> None:
        poll = select.epoll()
        for fd in self.sockets:
            poll.register(fd, select.EPOLLIN)
        left = len(self.sockets)
        while left:
            for fd, _ in poll.poll():
                if not self._read(fd):
                    poll.unregister(fd)
                    left -= 1

    def _read(self, fd: int) -> bool:
        """True if more must come."""
        # Without a check, the kernel itself discards the bytes.
        flags = 0 if self.pattern else socket.MSG_TRUNC
        n = self.sockets[fd].recv_into(self.memory, len(self.memory), flags)
        now, before = time.monotonic_ns(), self.received[fd]
        if self.pattern and not self._is_right(before, n):
            self.wrong.add(fd)
        self.received[fd] = received = before + n
        completed = received // self.whole - before // self.whole
        self.arrived[fd].extend([now] * completed)
        return n > 0 and received < self.total

    def _is_right(self, start: int, n: int) -> bool:
        """Compare what came, except the headers."""
        view = memoryview(self.memory)[:n]
        while view:
            at = start % self.whole
            end = self.prefix if at < self.prefix else self.whole
            size = min(len(view), end - at)
            if at >= self.prefix:
                expected = self.pattern[at - self.prefix : at - self.prefix + size]
                if expected != view[:size]:
                    return False
            view, start = view[size:], start + size
        return True


def view(told: dict[str, Any]) -> None:
    sink = Sink(told)
    before = cpu()
    sink.run()
    report = {
        "who": "sink",
        "bytes": sum(sink.received.values()),
        "wrong": len(sink.wrong),
        "cpu": cpu() - before,
    }
    with (Path(told["folder"]) / "arrived").open("wb") as file:
        for times in sink.arrived.values():
            times.tofile(file)
    tell(report)


if __name__ == "__main__":
    view(json.loads(sys.argv[1]))
