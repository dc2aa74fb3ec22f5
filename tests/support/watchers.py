"""Clients of a broadcast in a process of their own: eight fast, one slow, one stuck.

    python watchers.py PATH SLOW_SECONDS

Each connects to the Unix socket and says who it is: f0 to f7, s0, x0.  What the fast
and the slow one saw is printed as JSON at the end.  They are threads that mostly wait
inside of recv, into memory that stays in the cache: so cheap that two cores are enough
for all.
"""

import json
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass, field

from aiozerocopy._net.frame_header import HEADER_SIZE, FrameHeader

PIECE = 256 << 10
ALL_BYTES_EVERY = 20  # of other frames only the ends of each piece are looked at


@dataclass
class Watcher:
    """One client, and what it saw."""

    name: str
    sequences: list[int] = field(default_factory=list)
    ages_ms: list[float] = field(default_factory=list)
    wrong: int = 0  # frames with a byte that is not theirs
    cut: int = 0  # bytes of a frame of which the rest is missing

    def run(self, path: str, pause: float) -> None:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)
            sock.sendall(self.name.encode())
            memory = memoryview(bytearray(PIECE))
            while self._frame(sock, memory):
                time.sleep(pause)

    def _frame(self, sock: socket.socket, memory: memoryview) -> bool:
        """One frame; False at the end."""
        head = memory[:HEADER_SIZE]
        got = sock.recv_into(head, HEADER_SIZE, socket.MSG_WAITALL)
        if got < HEADER_SIZE:
            self.cut += got
            return False
        header = FrameHeader.unpack(head)
        sequence, left = header.sequence, header.payload_length
        right = True
        while left:
            n = min(left, PIECE)
            if sock.recv_into(memory, n, socket.MSG_WAITALL) < n:
                self.cut += 1
                return False
            left -= n
            right &= is_of(memory[:n], sequence)
        self.wrong += not right
        self.sequences.append(sequence)
        self.ages_ms.append((time.time_ns() - header.timestamp_ns) / 1e6)
        return True


def is_of(piece: memoryview, sequence: int) -> bool:
    """Is that a piece of a frame whose bytes are all its number?"""
    number = sequence % 256
    if sequence % ALL_BYTES_EVERY == 0:
        return bytes(piece).count(number) == len(piece)
    return piece[0] == piece[-1] == piece[len(piece) // 2] == number


def main(path: str, slow: float) -> None:
    watchers = [*(Watcher(f"f{number}") for number in range(8)), Watcher("s0")]
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.connect(path)
        stuck.sendall(b"x0")
        threads = [
            threading.Thread(target=watcher.run, args=(path, pause))
            for watcher in watchers
            for pause in [slow if watcher.name == "s0" else 0]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(json.dumps([asdict(watcher) for watcher in watchers]))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
