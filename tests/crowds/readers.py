"""A process with some of the other ends: it reads, and notes each message's age.

``python -m crowds.readers SIZE SKIP fd...`` or ``... viewers|web PORT COUNT``.  A
message has SIZE bytes, and the time at which it was made behind the first SKIP.  At the
end of all streams the ages are printed, as JSON.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
import sys
import time

HELLO = {
    "viewers": b"",
    "web": b"GET /raw HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
}
PING = b"\x89\x00"


class Reader:
    """One stream, cut into messages."""

    def __init__(self, fd: int, size: int, skip: int, has_pings: bool) -> None:
        self.fd, self.size, self.skip, self.has_pings = fd, size, skip, has_pings
        self.ages: list[float] = []
        self.rest = bytearray()
        self.last = 0

    def read(self) -> bool:
        """Whether there may be more."""
        try:
            piece = os.read(self.fd, 1 << 18)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False
        now = time.monotonic_ns() / 1e9
        self.rest += piece
        while True:
            if self.has_pings and self.rest.startswith(PING):
                del self.rest[: len(PING)]
            elif len(self.rest) >= self.size:
                stamp = int.from_bytes(self.rest[self.skip : self.skip + 8], "little")
                if not self.last < stamp <= now * 1e9:
                    raise SystemExit(f"a message of {stamp} after one of {self.last}")
                self.last = stamp
                self.ages.append(now - stamp / 1e9)
                del self.rest[: self.size]
            else:
                return bool(piece)


def connected(kind: str, port: int) -> int:
    sock = socket.create_connection(("127.0.0.1", port))
    if hello := HELLO[kind]:
        sock.sendall(hello)
        answer = b""
        while not answer.endswith(b"\r\n\r\n"):
            answer += sock.recv(1)
    return sock.detach()


def main() -> None:
    size, skip = map(int, sys.argv[1:3])
    kind, *numbers = sys.argv[3:]
    if kind in HELLO:
        port, count = map(int, numbers)
        fds = [connected(kind, port) for _ in range(count)]
    else:
        fds = [*map(int, sys.argv[3:])]
    readers = [Reader(fd, size, skip, kind == "web") for fd in fds]
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            os.set_blocking(reader.fd, False)
            selector.register(reader.fd, selectors.EVENT_READ, reader)
        while selector.get_map():
            for key, _ in selector.select():
                if not key.data.read():
                    selector.unregister(key.fd)
                    os.close(key.fd)
    print(json.dumps([age for reader in readers for age in reader.ages]))


if __name__ == "__main__":
    main()
