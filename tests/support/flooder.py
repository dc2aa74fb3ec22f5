"""A client that sends as fast as it can: `flooder.py PORT OPENING FLOOD`, both in hex.

It reads whatever the server sends, and connects again when the server closes.
"""

import contextlib
import socket
import sys
import threading


def flood(port: int, opening: bytes, pieces: bytes) -> None:
    """Send the opening, then the pieces, until the server closes."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        threading.Thread(target=take_all, args=(sock,), daemon=True).start()
        sock.sendall(opening)
        while True:
            sock.sendall(pieces)


def take_all(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while sock.recv(1 << 16):
            pass


def main() -> None:
    port, opening, piece = sys.argv[1:]
    pieces = bytes.fromhex(piece)
    pieces *= 1 + (1 << 16) // len(pieces)
    while True:
        with contextlib.suppress(OSError):
            flood(int(port), bytes.fromhex(opening), pieces)


if __name__ == "__main__":
    main()
