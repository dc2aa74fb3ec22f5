"""A pipe that is not read, and a channel of ours that writes to it, for tests."""

import os

from aiozerocopy._core.binding import IN_PROGRESS
from aiozerocopy._core.borrows import Operation, Port
from aiozerocopy._core.channel import OUT, OWN, Channel

SIZE = 1 << 20  # more than a pipe holds


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


class Unread:
    def __init__(self) -> None:
        self.fd, write_fd = os.pipe()
        self.channel = Channel(write_fd, OUT | OWN)

    def send(self, port: Port, data: bytes | bytearray) -> Operation:
        """Begin a message that C borrows until the pipe is read."""
        operation = Operation(port, [])
        assert self.channel.submit(port, operation, (data,)) == IN_PROGRESS
        return operation

    def read(self, n: int = SIZE) -> bytes:
        """Read exactly n bytes."""
        data = bytearray()
        while len(data) < n:
            data += os.read(self.fd, n - len(data))
        return bytes(data)

    def close(self) -> None:
        os.close(self.fd)
        self.channel.abort()
